"""The journal: one row per revision of a task state, in the checkpoints' own database.

`handoff_journal` is append-only: each row holds the change since its parent revision, and
every few rows the whole state beside it, so any revision is a short walk away.
`handoff_threads` holds one row per thread and namespace: the head, for `handoff list`.
`handoff_sessions` notes the checkpoint from which a saver went on with a thread: where the
session before it ended. All are written inside the transaction of the checkpoint they belong
to. The statements run on SQLite and on PostgreSQL; LangGraph is not imported here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from handoff_graph.codec import ENCRYPTED, PLAIN, Codec, dumps, storable
from handoff_graph.diff import apply_change, diff
from handoff_graph.errors import UnsupportedSchema
from handoff_graph.steps import Query, Steps
from handoff_graph.task import upcast

__all__ = [
    "HeadRow",
    "Position",
    "append",
    "begin_session",
    "check_version",
    "create_tables",
    "forget",
    "head",
    "next_revision",
    "position",
    "record_ledger",
    "session_ends",
    "set_head",
    "state_at",
    "undelete",
]

TABLES = ("handoff_journal", "handoff_threads", "handoff_sessions")
"""The tables that hold rows of a thread."""

VERSION = 1
"""Schema version of the tables, kept in `handoff_meta`."""

_KEYFRAME = 16
"""At most this many changes are replayed to rebuild a revision."""

_CREATE = (
    """CREATE TABLE IF NOT EXISTS handoff_meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS handoff_journal (
        thread_id TEXT NOT NULL,
        checkpoint_ns TEXT NOT NULL DEFAULT '',
        revision INTEGER NOT NULL,
        parent_revision INTEGER,
        keyframe INTEGER NOT NULL,
        checkpoint_id TEXT NOT NULL,
        at TEXT NOT NULL,
        owner TEXT NOT NULL,
        reason TEXT NOT NULL,
        change TEXT NOT NULL,
        state TEXT,
        PRIMARY KEY (thread_id, checkpoint_ns, revision))""",
    """CREATE TABLE IF NOT EXISTS handoff_threads (
        thread_id TEXT NOT NULL,
        checkpoint_ns TEXT NOT NULL DEFAULT '',
        revision INTEGER NOT NULL,
        checkpoint_id TEXT NOT NULL,
        fold_checkpoint_id TEXT,
        at TEXT NOT NULL,
        title TEXT NOT NULL,
        status TEXT NOT NULL,
        owner TEXT NOT NULL,
        state TEXT NOT NULL,
        ledger TEXT,
        ledger_revision INTEGER,
        ledger_error TEXT,
        PRIMARY KEY (thread_id, checkpoint_ns))""",
    """CREATE TABLE IF NOT EXISTS handoff_sessions (
        thread_id TEXT NOT NULL,
        checkpoint_ns TEXT NOT NULL DEFAULT '',
        checkpoint_id TEXT NOT NULL,
        owner TEXT NOT NULL,
        at TEXT NOT NULL,
        PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id))""",
    """CREATE TABLE IF NOT EXISTS handoff_deleted (
        thread_hash TEXT PRIMARY KEY, checkpoint_id TEXT NOT NULL)""",
    """CREATE INDEX IF NOT EXISTS handoff_threads_at
        ON handoff_threads (checkpoint_ns, at, thread_id)""",
    """CREATE INDEX IF NOT EXISTS handoff_threads_status
        ON handoff_threads (checkpoint_ns, status, at, thread_id)""",
    """CREATE INDEX IF NOT EXISTS handoff_threads_owner
        ON handoff_threads (checkpoint_ns, owner, at, thread_id)""",
)


# -- writing (inside the caller's transaction) -------------------------------------------------


def create_tables() -> Steps[None]:
    """Create the journal's tables where they are missing; a newer version is refused."""
    for statement in _CREATE:
        yield Query(statement)
    yield Query(
        "INSERT INTO handoff_meta VALUES ('version', ?) ON CONFLICT DO NOTHING", (str(VERSION),)
    )
    yield from check_version()


def check_version() -> Steps[None]:
    """Refuse tables that a newer handoff_graph has written."""
    rows = yield Query("SELECT value FROM handoff_meta WHERE key = 'version'")
    if rows and int(rows[0][0]) > VERSION:
        raise UnsupportedSchema("the journal", int(rows[0][0]), VERSION)


def next_revision(thread_id: str, ns: str) -> Steps[int]:
    """The number of the next revision of this thread and namespace, from 1."""
    rows = yield Query(
        "SELECT max(revision) FROM handoff_journal WHERE thread_id = ? AND checkpoint_ns = ?",
        (thread_id, ns),
    )
    return int(rows[0][0] or 0) + 1


def append(
    thread_id: str,
    ns: str,
    checkpoint_id: str,
    *,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any],
    at: str,
    reason: str,
    unlisted: Mapping[str, list[Any]] | None = None,
    codec: Codec = PLAIN,
) -> Steps[None]:
    """Write a revision and make it the head, unless a newer checkpoint has brought one.

    Args:
        thread_id: the thread.
        ns: the checkpoint namespace, `""` for the root graph.
        checkpoint_id: the checkpoint that this revision is written with.
        before: the state it comes from, or None for the first.
        after: the new state; its `revision` is the key.
        at: the stamp of the revision.
        reason: what made it: `fold` or `update`.
        unlisted: items that came and rolled up within this revision, by section.
        codec: how the text is stored.
    """
    revision = int(after["revision"])
    parent = int(before["revision"]) if before and before["revision"] else None
    keyframe = yield from _keyframe_of(thread_id, ns, parent)
    full = keyframe is None or revision - keyframe >= _KEYFRAME
    state = codec.dumps(dumps(after))
    change = diff(before, after)
    if unlisted:
        change["unlisted"] = dict(unlisted)
    yield Query(
        "INSERT INTO handoff_journal VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            thread_id,
            ns,
            revision,
            parent,
            revision if full else keyframe,
            checkpoint_id,
            at,
            storable(after["owner"]),
            reason,
            codec.dumps(dumps(change)),
            state if full else None,
        ),
    )
    yield Query(
        """INSERT INTO handoff_threads AS head
             (thread_id, checkpoint_ns, revision, checkpoint_id, fold_checkpoint_id, at, title,
              status, owner, state)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
           ON CONFLICT (thread_id, checkpoint_ns) DO UPDATE SET
             revision = excluded.revision, checkpoint_id = excluded.checkpoint_id,
             fold_checkpoint_id = coalesce(excluded.fold_checkpoint_id, head.fold_checkpoint_id),
             at = excluded.at, title = excluded.title, status = excluded.status,
             owner = excluded.owner, state = excluded.state
           WHERE excluded.checkpoint_id >= head.checkpoint_id""",
        (
            thread_id,
            ns,
            revision,
            checkpoint_id,
            checkpoint_id if reason == "fold" else None,
            at,
            storable(after["title"]) if codec is PLAIN else ENCRYPTED,
            after["status"],
            storable(after["owner"]),
            state,
        ),
    )


def set_head(
    thread_id: str, ns: str, checkpoint_id: str, state: Mapping[str, Any], codec: Codec = PLAIN
) -> Steps[None]:
    """Make an earlier revision the head again, as of this checkpoint."""
    yield Query(
        """UPDATE handoff_threads SET revision = ?, checkpoint_id = ?, title = ?, status = ?,
             owner = ?, state = ?
           WHERE thread_id = ? AND checkpoint_ns = ?""",
        (
            int(state["revision"]),
            checkpoint_id,
            storable(state["title"]) if codec is PLAIN else ENCRYPTED,
            state["status"],
            storable(state["owner"]),
            codec.dumps(dumps(state)),
            thread_id,
            ns,
        ),
    )


def record_ledger(
    thread_id: str, *, path: str, revision: int | None, error: str | None
) -> Steps[None]:
    """Note which revision the thread's ledger shows, or why it could not be written."""
    yield Query(
        """UPDATE handoff_threads SET ledger = ?, ledger_error = ?,
             ledger_revision = coalesce(?, ledger_revision)
           WHERE thread_id = ? AND checkpoint_ns = ''""",
        (path, error, revision, thread_id),
    )


def begin_session(
    thread_id: str, ns: str, checkpoint_id: str, *, owner: str, at: str
) -> Steps[None]:
    """Note that a session goes on from this checkpoint, with which the one before it ended."""
    yield Query(
        "INSERT INTO handoff_sessions VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (thread_id, ns, checkpoint_id, owner, at),
    )


def forget(thread_id: str, tombstone: str) -> Steps[None]:
    """Remove a thread's rows; what was under way before `tombstone` must not bring it back.

    Args:
        thread_id: the thread.
        tombstone: a checkpoint id of this moment: checkpoint ids grow with time.
    """
    for table in TABLES:
        yield Query(f"DELETE FROM {table} WHERE thread_id = ?", (thread_id,))
    yield Query(
        "INSERT INTO handoff_deleted VALUES (?, ?) ON CONFLICT (thread_hash)"
        " DO UPDATE SET checkpoint_id = excluded.checkpoint_id",
        (_hashed(thread_id), tombstone),
    )


def _keyframe_of(thread_id: str, ns: str, revision: int | None) -> Steps[int | None]:
    rows = yield Query(
        "SELECT keyframe FROM handoff_journal"
        " WHERE thread_id = ? AND checkpoint_ns = ? AND revision = ?",
        (thread_id, ns, revision),
    )
    return int(rows[0][0]) if rows else None


# -- reading -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadRow:
    """The newest revision of a thread, and the checkpoint it was written with.

    Attributes:
        ledger_revision: the revision that its ledger is known to show.
    """

    state: dict[str, Any]
    checkpoint_id: str
    at: str
    ledger_revision: int | None = None


def head(thread_id: str, codec: Codec = PLAIN) -> Steps[HeadRow | None]:
    """The newest revision of a thread's root graph, or None if it has none."""
    rows = yield Query(
        "SELECT state, checkpoint_id, at, ledger_revision FROM handoff_threads"
        " WHERE thread_id = ? AND checkpoint_ns = ''",
        (thread_id,),
    )
    if not rows:
        return None
    state, *rest = rows[0]
    return HeadRow(upcast(json.loads(codec.loads(state))), *rest)


def state_at(
    thread_id: str, ns: str, revision: int, codec: Codec = PLAIN
) -> Steps[dict[str, Any] | None]:
    """Rebuild the task state of a revision; None if the journal does not hold it."""
    changes: list[dict[str, Any]] = []
    state: dict[str, Any] | None = None
    wanted: int | None = revision
    while wanted is not None:
        rows = yield Query(
            "SELECT parent_revision, change, state FROM handoff_journal"
            " WHERE thread_id = ? AND checkpoint_ns = ? AND revision = ?",
            (thread_id, ns, wanted),
        )
        if not rows:
            return None
        parent, change, full = rows[0]
        if full is not None:
            state = json.loads(codec.loads(full))
            break
        changes.append(json.loads(codec.loads(change)))
        wanted = parent
    for change in reversed(changes):
        state = apply_change(state, change)
    return upcast(state)


def session_ends(thread_id: str, ns: str, since: str) -> Steps[set[str]]:
    """The checkpoints, from `since` on, with which a session ended."""
    rows = yield Query(
        "SELECT checkpoint_id FROM handoff_sessions"
        " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id >= ?",
        (thread_id, ns, since),
    )
    return {row[0] for row in rows}


class Position(NamedTuple):
    """Where a thread stands: checkpoint ids, or `""`, and a revision.

    Attributes:
        tombstone: as of which it was deleted.
        fold: the newest fold's.
        checkpoint: with which its newest revision was written,
        revision: and that revision; 0 if there is none.
    """

    tombstone: str
    fold: str
    checkpoint: str
    revision: int


def position(thread_id: str, ns: str = "") -> Steps[Position]:
    """Where a thread stands."""
    rows = yield Query(
        "SELECT gone.checkpoint_id, head.fold_checkpoint_id, head.checkpoint_id, head.revision"
        " FROM (SELECT 1) AS one"
        " LEFT JOIN handoff_deleted AS gone ON gone.thread_hash = ?"
        " LEFT JOIN handoff_threads AS head ON head.thread_id = ? AND head.checkpoint_ns = ?",
        (_hashed(thread_id), thread_id, ns),
    )
    tombstone, fold, checkpoint, revision = rows[0]
    return Position(tombstone or "", fold or "", checkpoint or "", revision or 0)


def undelete(thread_id: str) -> Steps[None]:
    """Forget that a thread was deleted."""
    yield Query("DELETE FROM handoff_deleted WHERE thread_hash = ?", (_hashed(thread_id),))


def _hashed(thread_id: str) -> str:
    """What is kept of the id of a deleted thread: enough to know it again."""
    return sha256(thread_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
