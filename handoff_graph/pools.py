"""Connections to PostgreSQL, and whose turn it is on a thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

__all__ = ["LoopPool", "Shared", "ataken", "running_loop", "sync_pool", "taken"]

_IDLE = psycopg.pq.TransactionStatus.IDLE

# As LangGraph's own `from_conn_string` opens its connection.
_OPTIONS: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0}
_MOST = 10  # connections of a pool
_PATIENCE = 30.0  # seconds to go on trying to connect, as psycopg_pool does
_CONNECT_TIMEOUT = 10  # seconds for the first connection of all
_STRIPES = 256  # locks that threads share, by the hash of their ids


def sync_pool(url: str) -> ConnectionPool[Any]:
    """A pool that is not open yet."""
    return ConnectionPool(url, min_size=0, max_size=_MOST, open=False, kwargs=_OPTIONS)


@contextmanager
def taken(pool: ConnectionPool[Any], first: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of a pool; its transaction, if there is one, ends with the block.

    Args:
        pool: the pool, which is opened if it is not.
        first: SQL without parameters that tries the connection, so that one which was lost
            while nobody used it costs no round trip to find, and is replaced.

    Raises:
        psycopg.OperationalError: the statement failed on a connection that is alive.
        PoolTimeout: no server to connect to.
    """
    pool.open()
    while True:
        conn = pool.getconn()
        try:
            with conn:
                try:
                    conn.execute(first, prepare=False)
                except psycopg.OperationalError:
                    if not conn.closed:
                        raise
                    continue
                yield conn
                return
        finally:
            pool.putconn(conn)


@asynccontextmanager
async def ataken(
    pool: AsyncConnectionPool[Any] | LoopPool, first: str
) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """`taken`, without blocking the event loop."""
    await pool.open()
    while True:
        conn = await pool.getconn()
        try:
            try:
                await conn.execute(first, prepare=False)
            except psycopg.OperationalError:
                if not conn.closed:
                    raise
                continue
            yield conn
            await conn.commit()
            return
        finally:
            await pool.putconn(conn)  # which rolls back what has not been committed


class _Connection(psycopg.AsyncConnection[Any]):
    """Hangs up when nobody has it any more: to forget to close a saver is no mistake."""

    def __del__(self, *_: Any) -> None:
        if hasattr(self, "pgconn"):
            self.pgconn.finish()


class LoopPool:
    """Connections of one event loop, each made by the task that needs it.

    psycopg_pool makes them in background tasks. Before Python 3.12 one that is just connecting
    can miss its cancellation (`asyncio.wait_for` loses it), and then `asyncio.run` never returns.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle: list[psycopg.AsyncConnection[Any]] = []
        self._slots = asyncio.Semaphore(_MOST)
        self._round = 0  # how often it was closed
        self._made: WeakKeyDictionary[psycopg.AsyncConnection[Any], int] = WeakKeyDictionary()

    async def open(self) -> None:
        """Nothing: a connection is made when it is needed."""

    async def getconn(self) -> psycopg.AsyncConnection[Any]:
        """A connection for one task, to be put back.

        Raises:
            PoolTimeout: no server to connect to.
        """
        await self._slots.acquire()
        try:
            return self._idle.pop() if self._idle else await self._connected()
        except BaseException:
            self._slots.release()
            raise

    async def putconn(self, conn: psycopg.AsyncConnection[Any]) -> None:
        """Take a connection back, rolled back if it is in a transaction."""
        try:
            if not conn.closed and conn.pgconn.transaction_status != _IDLE:
                await conn.rollback()
        except psycopg.Error:
            await conn.close()
        finally:
            self._slots.release()
            if self._made[conn] != self._round:
                await conn.close()
            elif not conn.closed:
                self._idle.append(conn)

    def close(self) -> None:
        """Hang up what is idle now, and the rest when it is put back; it may be used again."""
        self._round += 1
        for conn in self._idle:
            conn.pgconn.finish()
        self._idle.clear()

    def abandon(self) -> None:
        """Hang up everything: the event loop has ended."""
        for conn in list(self._made):
            conn.pgconn.finish()

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        """A new connection; while the server starts again it is tried for some time."""
        deadline, pause = time.monotonic() + _PATIENCE, 0.05
        while True:
            try:
                conn = await _Connection.connect(self._url, **_OPTIONS)
            except psycopg.OperationalError as error:
                if time.monotonic() + pause > deadline:
                    raise PoolTimeout(f"no connection after {_PATIENCE:g} s: {error}") from error
                await asyncio.sleep(pause)
                pause = min(2 * pause, 2.0)
            else:
                self._made[conn] = self._round
                return conn


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class _Loop:
    """What belongs to one event loop."""

    def __init__(self, url: str) -> None:
        self.locks = [asyncio.Lock() for _ in range(_STRIPES + 1)]
        self.pool = LoopPool(url)


class Shared:
    """What clones of a store have in common: locks, pools, and whether the tables are there.

    Args:
        url: the database, where the store opens its own pools; else `""`.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.ready = False
        self.setting_up = threading.Lock()
        self._locks = [threading.Lock() for _ in range(_STRIPES)]
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}
        self._sweeping = threading.Lock()

    def check(self) -> None:
        """Fail at once where there is no server; a pool would go on trying for a while."""
        if self.url:
            psycopg.connect(self.url, connect_timeout=_CONNECT_TIMEOUT).close()

    def lock(self, thread_id: str) -> threading.Lock:
        """The lock of a thread."""
        return self._locks[hash(thread_id) % _STRIPES]

    def alock(self, thread_id: str) -> asyncio.Lock:
        """The lock of a thread in this event loop; the first is for setting up."""
        return self._here().locks[1 + hash(thread_id) % _STRIPES if thread_id else 0]

    def pool(self) -> LoopPool:
        """The pool of this event loop."""
        return self._here().pool

    def close(self) -> None:
        """Close the pools of all event loops; another thread's loop does so in its turn."""
        self._sweep()
        for loop, its in list(self._loops.items()):
            if loop is running_loop():
                its.pool.close()
            else:
                with suppress(RuntimeError):  # it has just ended
                    loop.call_soon_threadsafe(its.pool.close)

    def _here(self) -> _Loop:
        loop = asyncio.get_running_loop()
        its = self._loops.get(loop)
        if its is None:
            self._sweep()
            its = self._loops[loop] = _Loop(self.url)
        return its

    def _sweep(self) -> None:
        """Hang up for the event loops that have ended: nobody can close their pools any more."""
        with self._sweeping:
            for loop in [loop for loop in list(self._loops) if loop.is_closed()]:
                self._loops.pop(loop).pool.abandon()
