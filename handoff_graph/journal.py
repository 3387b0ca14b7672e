"""The journal: one row per revision of a task state, in the checkpoints' own database.

`handoff_journal` is append-only: each row holds the change since its parent revision, and
every few rows the whole state beside it, so any revision is a short walk away.
`handoff_threads` holds one row per thread and namespace: the head, for `handoff list`. Both
are written inside the transaction of the checkpoint they belong to. Reading needs sqlite3 and
json only; LangGraph is not imported here.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from handoff_graph.diff import apply_change, diff
from handoff_graph.errors import UnsupportedSchema
from handoff_graph.task import upcast

__all__ = [
    "HeadRow",
    "append",
    "check_version",
    "create_tables",
    "head",
    "next_revision",
    "record_ledger",
    "state_at",
]

VERSION = 1
"""Schema version of the tables, kept in `handoff_meta`."""

_KEYFRAME = 16
"""At most this many changes are replayed to rebuild a revision."""

_TABLES = (
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
        at TEXT NOT NULL,
        title TEXT NOT NULL,
        status TEXT NOT NULL,
        owner TEXT NOT NULL,
        state TEXT NOT NULL,
        ledger TEXT,
        ledger_revision INTEGER,
        ledger_error TEXT,
        PRIMARY KEY (thread_id, checkpoint_ns))""",
)


# -- writing (inside the caller's transaction) -------------------------------------------------


def create_tables(conn: sqlite3.Connection) -> None:
    """Create the journal's tables where they are missing; a newer version is refused."""
    for statement in _TABLES:
        conn.execute(statement)
    conn.execute("INSERT OR IGNORE INTO handoff_meta VALUES ('version', ?)", (str(VERSION),))
    check_version(conn)


def check_version(conn: sqlite3.Connection) -> None:
    """Refuse tables that a newer handoff_graph has written."""
    row = conn.execute("SELECT value FROM handoff_meta WHERE key = 'version'").fetchone()
    if row is not None and int(row[0]) > VERSION:
        raise UnsupportedSchema("the journal", int(row[0]), VERSION)


def next_revision(conn: sqlite3.Connection, thread_id: str, ns: str) -> int:
    """The number of the next revision of this thread and namespace, from 1."""
    row = conn.execute(
        "SELECT max(revision) FROM handoff_journal WHERE thread_id = ? AND checkpoint_ns = ?",
        (thread_id, ns),
    ).fetchone()
    return int(row[0] or 0) + 1


def append(
    conn: sqlite3.Connection,
    thread_id: str,
    ns: str,
    checkpoint_id: str,
    *,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any],
    at: str,
    reason: str,
    unlisted: Mapping[str, list[Any]] | None = None,
) -> None:
    """Write a revision and make it the head.

    Args:
        conn: a connection with an open transaction; it is not committed here.
        thread_id: the thread.
        ns: the checkpoint namespace, `""` for the root graph.
        checkpoint_id: the checkpoint that this revision is written with.
        before: the state it comes from, or None for the first.
        after: the new state; its `revision` is the key.
        at: the stamp of the revision.
        reason: what made it: `fold` or `update`.
        unlisted: items that came and rolled up within this revision, by section.
    """
    revision = int(after["revision"])
    parent = int(before["revision"]) if before and before["revision"] else None
    keyframe = _keyframe_of(conn, thread_id, ns, parent)
    full = keyframe is None or revision - keyframe >= _KEYFRAME
    state = _dumps(after)
    change = diff(before, after)
    if unlisted:
        change["unlisted"] = dict(unlisted)
    conn.execute(
        "INSERT OR REPLACE INTO handoff_journal VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            thread_id,
            ns,
            revision,
            parent,
            revision if full else keyframe,
            checkpoint_id,
            at,
            after["owner"],
            reason,
            _dumps(change),
            state if full else None,
        ),
    )
    conn.execute(
        """INSERT INTO handoff_threads
             (thread_id, checkpoint_ns, revision, checkpoint_id, at, title, status, owner, state)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
           ON CONFLICT (thread_id, checkpoint_ns) DO UPDATE SET
             revision = excluded.revision, checkpoint_id = excluded.checkpoint_id,
             at = excluded.at, title = excluded.title, status = excluded.status,
             owner = excluded.owner, state = excluded.state""",
        (
            thread_id,
            ns,
            revision,
            checkpoint_id,
            at,
            after["title"],
            after["status"],
            after["owner"],
            state,
        ),
    )


def record_ledger(
    conn: sqlite3.Connection,
    thread_id: str,
    *,
    path: str,
    revision: int | None,
    error: str | None,
) -> None:
    """Note which revision the thread's ledger shows, or why it could not be written."""
    conn.execute(
        """UPDATE handoff_threads SET ledger = ?, ledger_error = ?,
             ledger_revision = coalesce(?, ledger_revision)
           WHERE thread_id = ? AND checkpoint_ns = ''""",
        (path, error, revision, thread_id),
    )


def _keyframe_of(
    conn: sqlite3.Connection, thread_id: str, ns: str, revision: int | None
) -> int | None:
    row = conn.execute(
        "SELECT keyframe FROM handoff_journal"
        " WHERE thread_id = ? AND checkpoint_ns = ? AND revision = ?",
        (thread_id, ns, revision),
    ).fetchone()
    return None if row is None else int(row[0])


# -- reading -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadRow:
    """The newest revision of a thread, and the checkpoint it was written with."""

    state: dict[str, Any]
    checkpoint_id: str
    at: str


def head(conn: sqlite3.Connection, thread_id: str) -> HeadRow | None:
    """The newest revision of a thread's root graph, or None if it has none."""
    row = conn.execute(
        "SELECT state, checkpoint_id, at FROM handoff_threads"
        " WHERE thread_id = ? AND checkpoint_ns = ''",
        (thread_id,),
    ).fetchone()
    return None if row is None else HeadRow(upcast(json.loads(row[0])), row[1], row[2])


def state_at(
    conn: sqlite3.Connection, thread_id: str, ns: str, revision: int
) -> dict[str, Any] | None:
    """Rebuild the task state of a revision; None if the journal does not hold it."""
    changes: list[dict[str, Any]] = []
    wanted: int | None = revision
    while wanted is not None:
        row = conn.execute(
            "SELECT parent_revision, change, state FROM handoff_journal"
            " WHERE thread_id = ? AND checkpoint_ns = ? AND revision = ?",
            (thread_id, ns, wanted),
        ).fetchone()
        if row is None:
            return None
        if row[2] is not None:
            state: dict[str, Any] | None = json.loads(row[2])
            break
        changes.append(json.loads(row[1]))
        wanted = row[0]
    else:
        state = None
    for change in reversed(changes):
        state = apply_change(state, change)
    return upcast(state)


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
