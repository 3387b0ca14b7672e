"""The PostgreSQL side of the saver: operations on pooled connections, sync and async.

`from_conn_string` opens a pool for `invoke` and another, native to the event loop, for
`ainvoke`, each when it is first needed. Around a saver that the caller has opened, the
interface it lacks is served through the one it has. Every operation has one connection and one
transaction; a connection that was lost while nobody used it is replaced by the pool.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar, cast

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout
from typing_extensions import Self

from handoff_graph import journal
from handoff_graph.dialect import POSTGRES
from handoff_graph.errors import NotAHandoffDatabase, StorageError
from handoff_graph.pools import LoopPool, Shared, ataken, running_loop, sync_pool, taken
from handoff_graph.statements import aperform, perform
from handoff_graph.steps import Done, Query, Steps, adrive, drive

__all__ = ["PostgresStore"]

T = TypeVar("T")
Saver = PostgresSaver | AsyncPostgresSaver

_SETUP_LOCK = 0x68616E646F6666  # an advisory lock of this package's own
_SETUP_POLL = 0.05  # seconds between two looks whether another worker's set-up is over


class PostgresStore:
    """Runs operations on PostgreSQL, each within one transaction of one pooled connection.

    Operations on one thread of this process run one after the other, and the transactions of
    all processes that fold or store checkpoints of one thread too.
    """

    dialect = POSTGRES

    def __init__(self, inner: Saver, url: str = "") -> None:
        self.inner = inner
        self.serde: SerializerProtocol = inner.serde
        self._shared = Shared(url)

    @classmethod
    def open(cls, url: str, serde: SerializerProtocol | None = None) -> Self:
        """A store on this database, with pools of its own.

        Raises:
            NotAHandoffDatabase: the URL is not one that libpq understands.
        """
        try:
            psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            raise NotAHandoffDatabase(_hidden(url), f"not a PostgreSQL URL: {error}") from error
        return cls(PostgresSaver(cast(Any, sync_pool(url)), serde=serde), url)

    @classmethod
    def around(cls, inner: Saver) -> Self:
        """A store on the connection or pool of a saver that the caller has opened.

        Raises:
            TypeError: the saver runs on a pipeline, which commits on its own.
        """
        if not isinstance(inner, Saver):
            raise TypeError(
                f"HandoffSaver wraps a PostgresSaver or an AsyncPostgresSaver, not "
                f"{type(inner).__name__}"
            )
        if inner.pipe is not None:
            raise TypeError("open the PostgresSaver without a pipeline: it commits on its own")
        return cls(inner)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """The same store with a serializer that also accepts these types."""
        clone = copy.copy(self)
        clone.inner = cast(Saver, self.inner.with_allowlist(extra_allowlist))
        clone.serde = clone.inner.serde
        return clone

    # -- sync ----------------------------------------------------------------------------------

    def setup(self) -> None:
        """Create the tables of the inner saver and the journal where they are missing."""
        if self._is_foreign_to_sync:
            return self._from_loop(self.asetup())
        with self._shared.setting_up:
            if self._shared.ready:
                return None
            with self._named(""):
                self._shared.check()
                with self._connection() as conn:
                    _setup(conn, self._on(conn))
            self._shared.ready = True
        return None

    def read(self, steps: Steps[T]) -> T:
        """Run an operation that only reads."""
        if self._is_foreign_to_sync:
            return self._from_loop(self.aread(steps))
        self.setup()
        with self._named(""), self._connection() as conn:
            return drive(steps, partial(perform, conn, self._on(conn)))

    def write(self, thread_id: str, steps: Steps[Done]) -> Any:
        """Run an operation within one transaction, rolled back whole on any exception."""
        if self._is_foreign_to_sync:
            return self._from_loop(self.awrite(thread_id, steps))
        self.setup()
        with self._named(thread_id), self._shared.lock(thread_id):
            with self._transaction(thread_id) as conn:
                done = drive(steps, partial(perform, conn, self._on(conn)))
            done.on_commit()
        return done.value

    def note(self, thread_id: str, steps: Steps[Done]) -> Any:
        """Run an operation whose single write is a transaction of its own."""
        if self._is_foreign_to_sync:
            return self._from_loop(self.anote(thread_id, steps))
        self.setup()
        with self._named(thread_id), self._shared.lock(thread_id), self._connection() as conn:
            return drive(steps, partial(perform, conn, self._on(conn))).value

    def close(self) -> None:
        """Close the pools that were opened here; may be called again."""
        self._shared.close()
        if self._shared.url:
            cast(Any, self.inner.conn).close()

    @property
    def _is_foreign_to_sync(self) -> bool:
        return isinstance(self.inner, AsyncPostgresSaver)

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        conn = self.inner.conn
        if isinstance(conn, ConnectionPool):
            with taken(conn, "") as pooled:
                yield pooled
        else:
            with cast(PostgresSaver, self.inner).lock:
                yield cast(psycopg.Connection[Any], conn)

    @contextmanager
    def _transaction(self, thread_id: str) -> Iterator[psycopg.Connection[Any]]:
        """A connection in a transaction for which others on this thread wait."""
        if isinstance(self.inner.conn, ConnectionPool):
            with taken(self.inner.conn, f"BEGIN; {_turn(thread_id)}") as conn:
                yield conn
        else:
            with self._connection() as conn, conn.transaction():
                conn.execute(_turn(thread_id))
                yield conn

    def _on(self, conn: psycopg.Connection[Any]) -> PostgresSaver:
        """The inner saver on one connection, within whatever transaction that is in."""
        return cast(PostgresSaver, _bound(self.inner, conn, nullcontext()))

    def _from_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run async work on the event loop that the caller's async saver belongs to."""
        loop = cast(AsyncPostgresSaver, self.inner).loop
        if loop is running_loop():
            work.close()
            raise RuntimeError(
                "a HandoffSaver around an AsyncPostgresSaver cannot be used synchronously from "
                "its own event loop: use ainvoke, aget_state and the like"
            )
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    # -- async ---------------------------------------------------------------------------------

    async def asetup(self) -> None:
        """`setup`, without blocking the event loop."""
        if self._is_foreign_to_async:
            return await asyncio.to_thread(self.setup)
        async with self._shared.alock(""):
            if self._shared.ready:
                return None
            with self._named(""):
                await asyncio.to_thread(self._shared.check)
                async with self._aconnection() as conn:
                    await _asetup(conn, await self._aon(conn))
            self._shared.ready = True
        return None

    async def aread(self, steps: Steps[T]) -> T:
        """`read`, without blocking the event loop."""
        if self._is_foreign_to_async:
            return await asyncio.to_thread(self.read, steps)
        await self.asetup()
        with self._named(""):
            async with self._aconnection() as conn:
                return await adrive(steps, partial(aperform, conn, await self._aon(conn)))

    async def awrite(self, thread_id: str, steps: Steps[Done]) -> Any:
        """`write`, without blocking the event loop."""
        if self._is_foreign_to_async:
            return await asyncio.to_thread(self.write, thread_id, steps)
        await self.asetup()
        with self._named(thread_id):
            async with self._shared.alock(thread_id):
                async with self._atransaction(thread_id) as conn:
                    saver = await self._aon(conn)
                    done = await adrive(steps, partial(aperform, conn, saver))
                done.on_commit()
        return done.value

    async def anote(self, thread_id: str, steps: Steps[Done]) -> Any:
        """`note`, without blocking the event loop."""
        if self._is_foreign_to_async:
            return await asyncio.to_thread(self.note, thread_id, steps)
        await self.asetup()
        with self._named(thread_id):
            async with self._shared.alock(thread_id), self._aconnection() as conn:
                done = await adrive(steps, partial(aperform, conn, await self._aon(conn)))
        return done.value

    async def aclose(self) -> None:
        """`close`, off the event loop."""
        self._shared.close()
        await asyncio.to_thread(self.close)

    @property
    def _is_foreign_to_async(self) -> bool:
        return isinstance(self.inner, PostgresSaver) and not self._shared.url

    @asynccontextmanager
    async def _aconnection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        conn = self._aconn
        if isinstance(conn, (AsyncConnectionPool, LoopPool)):
            async with ataken(conn, "") as pooled:
                yield pooled
        else:
            async with cast(AsyncPostgresSaver, self.inner).lock:
                yield conn

    @asynccontextmanager
    async def _atransaction(self, thread_id: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """`_transaction`, without blocking the event loop."""
        conn = self._aconn
        if isinstance(conn, (AsyncConnectionPool, LoopPool)):
            async with ataken(conn, f"BEGIN; {_turn(thread_id)}") as pooled:
                yield pooled
        else:
            async with self._aconnection() as single, single.transaction():
                await single.execute(_turn(thread_id))
                yield single

    @property
    def _aconn(self) -> Any:
        return self._shared.pool() if self._shared.url else self.inner.conn

    async def _aon(self, conn: psycopg.AsyncConnection[Any]) -> AsyncPostgresSaver:
        inner = self.inner
        if isinstance(inner, PostgresSaver):
            inner = AsyncPostgresSaver(conn, serde=self.serde)
        return cast(AsyncPostgresSaver, _bound(inner, conn, nullcontext()))

    # -- errors --------------------------------------------------------------------------------

    @contextmanager
    def _named(self, thread_id: str) -> Iterator[None]:
        """Say of a failure of the database's which thread it struck, and what to do."""
        try:
            yield
        except PoolTimeout as error:
            raise StorageError(thread_id, str(error), _UNREACHABLE) from error
        except UnicodeEncodeError as error:
            raise StorageError(thread_id, str(error), _TEXT) from error
        except psycopg.Error as error:
            reason = str(error).strip() or type(error).__name__
            hint = _UNREACHABLE if isinstance(error, psycopg.OperationalError) else ""
            hint = _TEXT if isinstance(error, psycopg.DataError) and "NUL" in reason else hint
            raise StorageError(thread_id, reason, hint) from error


_UNREACHABLE = "Is the server up, and reachable with this URL? Run the step again when it is."

_TEXT = "A thread id is text that has a form in UTF-8, without NUL characters."


def _turn(thread_id: str) -> str:
    """The statement that has other transactions on a thread wait for the end of this one."""
    key = sha256(thread_id.encode("utf-8", "surrogatepass")).digest()[:8]
    return f"SELECT pg_advisory_xact_lock({int.from_bytes(key, 'big', signed=True)})"


def _bound(inner: Saver, conn: Any, lock: Any) -> Saver:
    saver = copy.copy(inner)
    saver.conn = conn
    saver.lock = lock
    saver.pipe = None
    return saver


def _hidden(url: str) -> str:
    """A URL without its password."""
    head, at, tail = url.rpartition("@")
    return f"{head.split('://')[0]}://...@{tail}" if at else url


# -- setting up --------------------------------------------------------------------------------

_TRY_LOCK = f"SELECT pg_try_advisory_lock({_SETUP_LOCK})"
_UNLOCK = f"SELECT pg_advisory_unlock({_SETUP_LOCK})"
# Waiting inside the server would hold a snapshot, for whose end the index that the inner saver
# creates concurrently waits in turn.


def _setup(conn: psycopg.Connection[Any], saver: PostgresSaver) -> None:
    ask = partial(perform, conn, saver)
    while not ask(Query(_TRY_LOCK))[0][0]:
        time.sleep(_SETUP_POLL)
    try:
        saver.setup()
        with conn.transaction():
            drive(journal.create_tables(), ask)
    finally:
        ask(Query(_UNLOCK))


async def _asetup(conn: psycopg.AsyncConnection[Any], saver: AsyncPostgresSaver) -> None:
    ask = partial(aperform, conn, saver)
    while not (await ask(Query(_TRY_LOCK)))[0][0]:
        await asyncio.sleep(_SETUP_POLL)
    try:
        await saver.setup()
        async with conn.transaction():
            await adrive(journal.create_tables(), ask)
    finally:
        await ask(Query(_UNLOCK))
