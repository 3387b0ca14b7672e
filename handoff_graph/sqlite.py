"""The SQLite side of the saver: one transaction around the inner saver, and retention.

`SqliteSaver` commits at the end of each of its methods, even after an error. To have its
checkpoint row, our journal row and the removal of what they supersede land together or not at
all, it is driven over a connection whose `commit` waits while a transaction of ours is open.
"""

from __future__ import annotations

import copy
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.sqlite import SqliteSaver

from handoff_graph import journal
from handoff_graph.errors import NotAHandoffDatabase

__all__ = ["SqliteStore", "connect"]

_PAGE = 50  # checkpoints read at a time while listing

BUSY_TIMEOUT = 30.0
"""Seconds a connection that we open waits for another process's transaction."""


def connect(path: str) -> sqlite3.Connection:
    """Open a database file, or `:memory:`, for use from any thread.

    Raises:
        NotAHandoffDatabase: the folder is missing, or the file is something else.
    """
    try:
        conn = sqlite3.connect(path, timeout=BUSY_TIMEOUT, check_same_thread=False)
        conn.execute("PRAGMA journal_mode=WAL")
    except sqlite3.DatabaseError as error:
        raise NotAHandoffDatabase(
            path, f"cannot be opened as a SQLite database: {error}"
        ) from error
    return conn


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
    """A `SqliteSaver` with transactions, a journal beside it and retention.

    Args:
        inner: the saver.
        owned: whether its connection is ours alone, opened by `connect`.

    Attributes:
        saver: the inner saver, driven over the held connection. Use it only inside
            `reading` or `writing`, which take the original saver's lock.
    """

    def __init__(self, inner: SqliteSaver, *, owned: bool = False) -> None:
        self._owned = owned
        self._lock = inner.lock
        self._held = _HeldConnection(inner.conn)
        self._ready = False
        # The copy shares the connection and serializer; whoever still uses the original
        # directly takes the same lock, and so never commits a transaction of ours half-way.
        self.saver = copy.copy(inner)
        self.saver.conn = cast(sqlite3.Connection, self._held)
        self.saver.lock = cast(Any, nullcontext())

    @property
    def conn(self) -> sqlite3.Connection:
        """The connection, for the journal's statements."""
        return cast(sqlite3.Connection, self._held)

    def setup(self) -> None:
        """Create the tables of the inner saver and the journal where they are missing."""
        with self._lock:
            self._setup()

    def _setup(self) -> None:
        if self._ready:
            return
        self.saver.setup()
        with self._transaction():
            journal.create_tables(self.conn)
        self._ready = True

    @contextmanager
    def reading(self) -> Iterator[SqliteSaver]:
        """The inner saver, for reads or for a single write of its own."""
        with self._lock:
            self._setup()
            yield self.saver

    @contextmanager
    def noting(self) -> Iterator[SqliteSaver]:
        """The inner saver, for one write that the next transaction makes durable.

        On a connection of our own it is not flushed to the disk by itself: a killed process
        loses nothing, a power cut at most what was noted since the last checkpoint, whose
        tasks then run again.
        """
        with self.reading() as saver:
            if not self._owned:
                yield saver
                return
            self._held.execute("PRAGMA synchronous=NORMAL")
            try:
                yield saver
            finally:
                self._held.execute("PRAGMA synchronous=FULL")

    @contextmanager
    def writing(self, on_commit: Callable[[], None] | None = None) -> Iterator[SqliteSaver]:
        """The inner saver within one transaction, rolled back whole on any exception.

        Args:
            on_commit: called after the commit, before anybody else gets the database.
        """
        with self._lock:
            self._setup()
            with self._transaction():
                yield self.saver
            if on_commit is not None:
                on_commit()

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

    def pages(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Iterator[CheckpointTuple]:
        """List checkpoints as the inner saver does, a page at a time within one thread."""
        paged = config is not None and "thread_id" in config.get("configurable", {})
        while limit is None or limit > 0:
            size = limit if not paged else min(_PAGE, limit if limit is not None else _PAGE)
            with self.reading() as saver:
                page = [*saver.list(config, filter=filter, before=before, limit=size)]
            yield from page
            if not paged or len(page) < _PAGE:
                return
            before = page[-1].config
            limit = None if limit is None else limit - len(page)

    def retire(self, thread_id: str, ns: str, checkpoint_id: str) -> list[str]:
        """Remove the checkpoints that a fold has superseded, with their writes.

        Those are the ancestors of the checkpoint that the fold landed in, back to a branch
        point (a checkpoint that another branch also starts from, which stays), what the
        subgraph calls of those supersteps stored under namespaces of their own, and what a
        killed run left without a checkpoint. Call inside `writing`.

        Args:
            thread_id: the thread.
            ns: the namespace of the folded transcript.
            checkpoint_id: the checkpoint that stands on its own.

        Returns:
            The ids of the removed checkpoints.
        """
        rows = self.conn.execute(
            "SELECT checkpoint_id, parent_checkpoint_id FROM checkpoints"
            " WHERE thread_id = ? AND checkpoint_ns = ?",
            (thread_id, ns),
        ).fetchall()
        parents: dict[str, str | None] = dict(rows)
        children = Counter(parent for _, parent in rows)
        gone: list[str] = []
        ancestor = parents.get(checkpoint_id)
        while ancestor and ancestor in parents and children[ancestor] == 1:
            gone.append(ancestor)
            ancestor = parents.pop(ancestor)
        self._delete_orphans(thread_id, ns, checkpoint_id)
        if gone:
            self._delete_subgraph_calls(thread_id, ns, gone)
            keys = [(thread_id, ns, checkpoint) for checkpoint in gone]
            for table in ("checkpoints", "writes"):
                self.conn.executemany(
                    f"DELETE FROM {table}"
                    " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
                    keys,
                )
            self.conn.execute(
                "UPDATE checkpoints SET parent_checkpoint_id = ?"
                " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
                (ancestor if ancestor in parents else None, thread_id, ns, checkpoint_id),
            )
        return gone

    def folded_away(self, thread_id: str, ns: str, checkpoint_id: str) -> bool:
        """Whether this missing checkpoint is older than a fold of its thread."""
        fold = self.conn.execute(
            "SELECT 1 FROM handoff_journal WHERE thread_id = ? AND checkpoint_ns = ?"
            " AND reason = 'fold' AND checkpoint_id > ? LIMIT 1",
            (thread_id, ns, checkpoint_id),
        ).fetchone()
        return bool(checkpoint_id) and fold is not None

    def _delete_orphans(self, thread_id: str, ns: str, checkpoint_id: str) -> None:
        """Remove writes whose checkpoint was never stored.

        A run goes ahead of its background puts, so a kill can leave them. Checkpoint ids grow
        with time: what the living run writes ahead is newer than the checkpoint in hand.
        """
        prefix = f"{ns}|" if ns else ""
        self.conn.execute(
            "DELETE FROM writes WHERE thread_id = ? AND checkpoint_id < ?"
            " AND (checkpoint_ns = ? OR substr(checkpoint_ns, 1, ?) = ?)"
            " AND NOT EXISTS (SELECT 1 FROM checkpoints c WHERE c.thread_id = writes.thread_id"
            " AND c.checkpoint_ns = writes.checkpoint_ns"
            " AND c.checkpoint_id = writes.checkpoint_id)",
            (thread_id, checkpoint_id, ns, len(prefix), prefix),
        )

    def _delete_subgraph_calls(self, thread_id: str, ns: str, gone: Sequence[str]) -> None:
        """Remove what the subgraphs called from the given checkpoints have stored.

        A subgraph without memory of its own keeps its rows under `node:<task id>`, and names
        the checkpoint it was called from in the `parents` of its metadata.
        """
        prefix = f"{ns}|" if ns else ""
        rows = self.conn.execute(
            "SELECT DISTINCT checkpoint_ns, metadata FROM checkpoints"
            " WHERE thread_id = ? AND checkpoint_ns > ?",
            (thread_id, prefix),
        ).fetchall()
        for space, metadata in rows:
            call = space[len(prefix) :].split("|")[0] if space.startswith(prefix) else ""
            parents = json.loads(metadata or b"{}").get("parents") or {}
            if ":" in call and parents.get(ns) in gone:
                for table in ("checkpoints", "writes"):
                    self.conn.execute(
                        f"DELETE FROM {table} WHERE thread_id = ? AND checkpoint_ns = ?",
                        (thread_id, space),
                    )

    def rewrite_writes(self, at: tuple[str, str, str], change: Callable[[Any], Any]) -> None:
        """Pass the writes stored for a checkpoint through a function. Call inside `writing`.

        Args:
            at: thread, namespace and checkpoint id.
            change: gives the new value, or the very same object to leave a row alone.
        """
        where = "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
        rows = self.conn.execute(f"SELECT task_id, idx, type, value FROM writes {where}", at)
        for task_id, index, kind, data in rows.fetchall():
            value = self.saver.serde.loads_typed((kind, data))
            changed = change(value)
            if changed is not value:
                self.conn.execute(
                    f"UPDATE writes SET type = ?, value = ? {where} AND task_id = ? AND idx = ?",
                    (*self.saver.serde.dumps_typed(changed), *at, task_id, index),
                )

    def delete_journal(self, thread_id: str) -> None:
        """Remove a thread's journal and head rows. Call inside `writing`."""
        for table in ("handoff_journal", "handoff_threads"):
            self.conn.execute(f"DELETE FROM {table} WHERE thread_id = ?", (thread_id,))
