"""The SQLite side of the saver: one transaction around the inner saver.

`SqliteSaver` commits at the end of each of its methods, even after an error. To have its
checkpoint row, our journal row and the removal of what they supersede land together or not at
all, it is driven over a connection whose `commit` waits while a transaction of ours is open.
"""

from __future__ import annotations

import asyncio
import copy
import sqlite3
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, TypeVar, cast

from langgraph.checkpoint.sqlite import SqliteSaver
from typing_extensions import Self

from handoff_graph import journal
from handoff_graph.dialect import SQLITE
from handoff_graph.errors import NotAHandoffDatabase, StorageError
from handoff_graph.refusals import refusal
from handoff_graph.steps import Done, Inner, Many, Step, Steps, drive

__all__ = ["SqliteStore", "connect"]

T = TypeVar("T")

_WAL_POLL = 0.02  # seconds between two tries to open a file
_SMALL = 4096  # pages of a file that is rewritten in no time; a larger one is for `handoff prune`
_SPARE = 0.2  # of a file may be free pages: the next steps need some again

BUSY_TIMEOUT = 30.0
"""Seconds a connection that we open waits for another process's transaction."""


def connect(path: str) -> sqlite3.Connection:
    """Open a database file, or `:memory:`, for use from any thread.

    Raises:
        NotAHandoffDatabase: the folder is missing, or the file is something else.
    """
    try:
        conn = sqlite3.connect(path, timeout=BUSY_TIMEOUT, check_same_thread=False)
        _enter_wal(conn)
        # Some builds overwrite what is deleted with zeros, and so write a folded tail once more.
        conn.execute("PRAGMA secure_delete=FAST")
    except sqlite3.DatabaseError as error:
        raise NotAHandoffDatabase(
            path, f"cannot be opened as a SQLite database: {error}"
        ) from error
    return conn


def _enter_wal(conn: sqlite3.Connection) -> None:
    """Switch to WAL; while another process opens or closes the file SQLite does not wait."""
    deadline = time.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            conn.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(_WAL_POLL)


class _HeldConnection:
    """A connection whose `commit` does nothing while a transaction of ours is open."""

    def __init__(self, conn: sqlite3.Connection) -> None:
        self._conn = conn
        self.held = False

    def commit(self) -> None:
        if not self.held:
            self._conn.commit()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)


class SqliteStore:
    """Runs operations on a `SqliteSaver`, each within one transaction.

    The async methods are the sync ones in a worker thread: SQLite has no async interface of
    its own, and so one connection serves `invoke` and `ainvoke`.

    Args:
        inner: the saver.
        owned: whether its connection is ours alone, opened by `connect`.
    """

    dialect = SQLITE

    def __init__(self, inner: SqliteSaver, *, owned: bool = False) -> None:
        self._owned = owned
        self._lock = inner.lock
        self._held = _HeldConnection(inner.conn)
        self._ready = False
        # The copy shares the connection and serializer; whoever still uses the original
        # directly takes the same lock, and so never commits a transaction of ours half-way.
        self._saver = copy.copy(inner)
        self._saver.conn = cast(sqlite3.Connection, self._held)
        self._saver.lock = cast(Any, nullcontext())
        self.serde = inner.serde

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """The same store with a serializer that also accepts these types."""
        clone = copy.copy(self)
        clone._saver = cast(SqliteSaver, self._saver.with_allowlist(extra_allowlist))
        clone.serde = clone._saver.serde
        return clone

    # -- opening and closing -------------------------------------------------------------------

    def setup(self) -> None:
        """Create the tables of the inner saver and the journal where they are missing."""
        with self._lock, self._named(""):
            self._setup()

    async def asetup(self) -> None:
        """`setup`, off the event loop."""
        await asyncio.to_thread(self.setup)

    def close(self) -> None:
        """Close the connection, if it is ours, and give the space of folds back to the disk."""
        if self._owned:
            with suppress(sqlite3.Error):  # closed already, or somebody else is writing
                self._give_back()
            self._held.close()

    def _give_back(self) -> None:
        self._held.execute("PRAGMA busy_timeout=0")
        (free,) = self._held.execute("PRAGMA freelist_count").fetchone()
        (pages,) = self._held.execute("PRAGMA page_count").fetchone()
        if pages <= _SMALL and free > pages * _SPARE:
            self._held.execute("VACUUM")

    async def aclose(self) -> None:
        """`close`, off the event loop."""
        await asyncio.to_thread(self.close)

    def _setup(self) -> None:
        if self._ready:
            return
        self._saver.setup()
        try:
            with self._transaction():
                drive(journal.create_tables(), self._perform)
        except sqlite3.OperationalError as error:
            if "readonly" not in str(error):
                raise
            drive(journal.check_version(), self._perform)  # the tables are there: it can be read
        self._ready = True

    # -- operations ----------------------------------------------------------------------------

    def read(self, steps: Steps[T]) -> T:
        """Run an operation that only reads."""
        with self._lock, self._named(""):
            self._setup()
            return drive(steps, self._perform)

    def write(self, thread_id: str, steps: Steps[Done]) -> Any:
        """Run an operation within one transaction, rolled back whole on any exception."""
        with self._lock, self._named(thread_id):
            self._setup()
            with self._transaction():
                done = drive(steps, self._perform)
            done.on_commit()
            return done.value

    def note(self, thread_id: str, steps: Steps[Done]) -> Any:
        """Run an operation with a single write, which the next transaction makes durable.

        On a connection of our own it is not flushed to the disk by itself: a killed process
        loses nothing, a power cut at most what was noted since the last checkpoint, whose
        tasks then run again.
        """
        with self._lock, self._named(thread_id):
            self._setup()
            if not self._owned:
                return drive(steps, self._perform).value
            self._held.execute("PRAGMA synchronous=NORMAL")
            try:
                return drive(steps, self._perform).value
            finally:
                self._held.execute("PRAGMA synchronous=FULL")

    async def aread(self, steps: Steps[T]) -> T:
        """`read`, off the event loop."""
        return await asyncio.to_thread(self.read, steps)

    async def awrite(self, thread_id: str, steps: Steps[Done]) -> Any:
        """`write`, off the event loop."""
        return await asyncio.to_thread(self.write, thread_id, steps)

    async def anote(self, thread_id: str, steps: Steps[Done]) -> Any:
        """`note`, off the event loop."""
        return await asyncio.to_thread(self.note, thread_id, steps)

    def _perform(self, step: Step) -> Any:
        if isinstance(step, Inner):
            try:
                answer = getattr(self._saver, step.method)(*step.args, **step.kwargs)
            except (TypeError, ValueError) as error:
                if refused := refusal(step, error, self.serde):
                    raise refused from error
                raise
            return list(answer) if isinstance(answer, Iterator) else answer
        if isinstance(step, Many):
            self._held.executemany(*step)
            return None
        rows = self._held.execute(step.sql, step.params).fetchall()
        return [tuple(row) for row in rows]  # whatever row factory the connection has

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._held.execute("BEGIN IMMEDIATE")
        self._held.held = True
        try:
            yield
            self._held.held = False
            self._held.commit()
        except BaseException:
            self._held.held = False
            self._held.rollback()
            raise

    @contextmanager
    def _named(self, thread_id: str) -> Iterator[None]:
        """Say of a failure of SQLite's which thread it struck, and what to do."""
        try:
            yield
        except (sqlite3.Error, UnicodeEncodeError) as error:
            hint = next((text for sign, text in _HINTS if sign in str(error)), "")
            raise StorageError(thread_id, str(error), hint) from error


_HINTS = (
    ("locked", f"Another process has held the file for {BUSY_TIMEOUT:.0f} s."),
    ("full", "Free some space on the disk, then run the step again."),
    ("readonly", "Make the file and its folder writable for this process."),
    ("surrogates", "A thread id is text that has a form in UTF-8."),
    ("closed database", "The saver has been closed: use it inside its `with` block."),
)
