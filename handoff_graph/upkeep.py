"""Looking after a database from outside a run: pruning, giving space back, moving threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from langgraph.checkpoint.base import CheckpointTuple

from handoff_graph import journal, threads
from handoff_graph.backends import open_store
from handoff_graph.edits import amend
from handoff_graph.encryption import codec_of
from handoff_graph.errors import ThreadExists, UnknownThread
from handoff_graph.export import LedgerExporter
from handoff_graph.mirror import LedgerMirror
from handoff_graph.reader import is_postgres_url, open_readonly
from handoff_graph.retention import History
from handoff_graph.steps import Done, Inner, Many, Query, Steps
from handoff_graph.store import Store
from handoff_graph.superstep import Saved
from handoff_graph.verbatim import verbatim_serializer

__all__ = ["changed", "copied", "opened", "pruned", "size", "vacuum"]


class _Counted(Exception):
    """Carries a result out of a transaction that is to be rolled back."""

    def __init__(self, value: Any) -> None:
        self.value = value


@contextmanager
def opened(name: str, *, create: bool = False) -> Iterator[Store]:
    """A store on a database, through which no object of a foreign class is changed.

    Args:
        name: the SQLite file, or a `postgresql://` URL.
        create: whether it may be a new one.

    Raises:
        NotAHandoffDatabase: there is no such database, or it holds something else.
    """
    if not create:
        open_readonly(name).close()
    _, store = open_store(name, verbatim_serializer())
    try:
        store.setup()
        yield store
    finally:
        store.close()


# -- a person's change -------------------------------------------------------------------------


def changed(
    store: Store,
    thread_id: str,
    change: Callable[[dict[str, Any]], Mapping[str, Any]],
    *,
    reason: str,
    ledger: Path | None = None,
) -> int:
    """Merge a change into a thread's task, and bring its ledger in step.

    Args:
        store: the database.
        thread_id: the thread.
        change: from the task state to the `TaskUpdate`.
        reason: what the journal says of the revision.
        ledger: the file of its ledger, if it has one.

    Raises:
        UnknownThread: there is no such thread, or it has no task yet.

    Returns:
        The revision; 0 if nothing was changed.
    """
    codec = codec_of(store.serde)
    steps = amend(store.dialect, thread_id, change, reason=reason, codec=codec)
    made = store.write(thread_id, steps)
    if made is None:
        return 0
    checkpoint_id, state, at = made
    if ledger is not None:
        exporter = LedgerExporter(ledger.parent)
        if exporter.path(thread_id) != ledger:
            exporter = LedgerExporter(ledger.parent.parent, spread=True)
        LedgerMirror(store, exporter, codec)(Saved(thread_id, "", checkpoint_id, state, at))
    return int(state["revision"])


# -- pruning -----------------------------------------------------------------------------------


def pruned(
    store: Store, names: Iterable[str], history: History, *, dry_run: bool = False
) -> Iterator[tuple[str, int]]:
    """Apply a retention policy to threads, each in a transaction of its own.

    Args:
        store: the database.
        names: the threads.
        history: the policy.
        dry_run: count only; each transaction is rolled back.

    Yields:
        Each thread, and how many of its checkpoints went.

    Raises:
        UnknownThread: there is no such thread.
    """
    codec = codec_of(store.serde)
    for name in names:
        steps = threads.prune(store.dialect, name, history, codec)
        try:
            yield name, store.write(name, _counted(steps) if dry_run else steps)
        except _Counted as counted:
            yield name, counted.value


def _counted(steps: Steps[Done]) -> Steps[Done]:
    done = yield from steps
    raise _Counted(done.value)


def size(store: Store, name: str) -> int:
    """Bytes that the database takes on the disk: the file, or the tables of PostgreSQL."""
    if not is_postgres_url(name):
        files = (Path(name), Path(f"{name}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())
    return store.read(_table_sizes(store))


def _table_sizes(store: Store) -> Steps[int]:
    total = 0
    for table in (*store.dialect.tables, *journal.TABLES):
        rows = yield Query("SELECT pg_total_relation_size(CAST(? AS regclass))", (table,))
        total += rows[0][0]
    return total


def vacuum(store: Store) -> None:
    """Give the space of what has been removed back to the disk."""
    store.read(_vacuumed(store))


def _vacuumed(store: Store) -> Steps[None]:
    if store.dialect.blobs:
        for table in (*store.dialect.tables, *journal.TABLES):
            yield Query(f"VACUUM FULL {table}")
    else:
        yield Query("VACUUM")
        yield Query("PRAGMA wal_checkpoint(TRUNCATE)")


# -- moving ------------------------------------------------------------------------------------


class _Packed(NamedTuple):
    """All of a thread, on its way from one database to another."""

    checkpoints: Sequence[CheckpointTuple]
    writes: Sequence[tuple[Any, ...]]
    journal: dict[str, Sequence[tuple[Any, ...]]]


def copied(source: Store, target: Store, names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Copy threads from one database to another, each in a transaction of its own.

    Yields:
        Each thread, and how many checkpoints it has.

    Raises:
        UnknownThread: the source has no such thread.
        ThreadExists: the target has one of this name; it is left as it is.
    """
    for name in names:
        packed = source.read(_packed(source, name))
        target.write(name, _unpacked(target, name, packed))
        yield name, len(packed.checkpoints)


_WRITES = "checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type"


def _packed(store: Store, name: str) -> Steps[_Packed]:
    found = yield Inner("list", ({"configurable": {"thread_id": name}},))
    if not found:
        raise UnknownThread(name)
    writes = yield Query(
        f"SELECT {_WRITES}, {store.dialect.value} FROM {store.dialect.writes} WHERE thread_id = ?",
        (name,),
    )
    rows: dict[str, Sequence[tuple[Any, ...]]] = {}
    for table, columns in threads.JOURNAL_COLUMNS.items():
        rows[table] = yield Query(f"SELECT {columns} FROM {table} WHERE thread_id = ?", (name,))
    return _Packed(found, writes, rows)


def _unpacked(store: Store, name: str, packed: _Packed) -> Steps[Done]:
    dialect = store.dialect
    if (yield Query("SELECT 1 FROM checkpoints WHERE thread_id = ? LIMIT 1", (name,))):
        raise ThreadExists(name)
    yield from journal.undelete(name)
    for saved in sorted(packed.checkpoints, key=lambda s: s.checkpoint["id"]):
        here = {**saved.config["configurable"]}
        here.pop("checkpoint_id")
        parent = saved.parent_config or {"configurable": here}
        versions = saved.checkpoint["channel_versions"]
        yield Inner("put", (parent, saved.checkpoint, saved.metadata, versions))
    tables = {dialect.writes: (f"{_WRITES}, {dialect.value}", packed.writes)}
    tables |= {t: (columns, packed.journal[t]) for t, columns in threads.JOURNAL_COLUMNS.items()}
    for table, (columns, rows) in tables.items():
        if rows:
            marks = ", ".join("?" for _ in range(len(rows[0]) + 1))
            sql = f"INSERT INTO {table} (thread_id, {columns}) VALUES ({marks})"
            yield Many(sql, [(name, *row) for row in rows])
    return Done(None)
