"""Connections to PostgreSQL, and whose turn it is on a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from weakref import WeakSet

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

__all__ = ["Shared", "ataken", "sync_pool", "taken"]

# As LangGraph's own `from_conn_string` opens its connection.
_OPTIONS = {"autocommit": True, "prepare_threshold": 0}
# Connections are made when they are needed: one that is still being made when an event loop ends
# can keep it from ending.
_POOL: dict[str, Any] = {"min_size": 0, "max_size": 10, "open": False, "kwargs": _OPTIONS}
_CONNECT_TIMEOUT = 10  # seconds for the first connection of all
_STRIPES = 256  # locks that threads share, by the hash of their ids


def sync_pool(url: str) -> ConnectionPool[Any]:
    """A pool that is not open yet."""
    return ConnectionPool(url, **_POOL)


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
    pool: AsyncConnectionPool[Any], first: str
) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """`taken`, without blocking the event loop."""
    await pool.open()
    while True:
        conn = await pool.getconn()
        try:
            async with conn:
                try:
                    await conn.execute(first, prepare=False)
                except psycopg.OperationalError:
                    if not conn.closed:
                        raise
                    continue
                yield conn
                return
        finally:
            await pool.putconn(conn)


class _Loop:
    """What belongs to one event loop: locks, a pool, and the connections that this has made."""

    def __init__(self) -> None:
        self.locks = [asyncio.Lock() for _ in range(_STRIPES + 1)]
        self.pool: AsyncConnectionPool[Any] | None = None
        self.connections: WeakSet[psycopg.AsyncConnection[Any]] = WeakSet()

    async def note(self, conn: psycopg.AsyncConnection[Any]) -> None:
        """Remember a new connection of the pool."""
        self.connections.add(conn)


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

    def pool(self) -> AsyncConnectionPool[Any]:
        """The pool of this event loop."""
        here = self._here()
        if here.pool is None:
            here.pool = AsyncConnectionPool(self.url, configure=here.note, **_POOL)
        return here.pool

    async def aclose(self) -> None:
        """Close the pool of this event loop, if it has one."""
        here = self._here()
        pool, here.pool = here.pool, None
        if pool is not None:
            await pool.close()

    def close(self) -> None:
        """Close the pools of all event loops; a loop that is running does so in its turn."""
        self._sweep()
        for loop, its in list(self._loops.items()):
            pool, its.pool = its.pool, None
            if pool is not None:
                with suppress(RuntimeError):  # the loop has just ended
                    asyncio.run_coroutine_threadsafe(pool.close(), loop)

    def _here(self) -> _Loop:
        loop = asyncio.get_running_loop()
        its = self._loops.get(loop)
        if its is None:
            self._sweep()
            its = self._loops[loop] = _Loop()
        return its

    def _sweep(self) -> None:
        """Hang up for the event loops that have ended: nobody can close their pools any more."""
        with self._sweeping:
            for loop in [loop for loop in list(self._loops) if loop.is_closed()]:
                for conn in self._loops.pop(loop).connections:
                    conn.pgconn.finish()
