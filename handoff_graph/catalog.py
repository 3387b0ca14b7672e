"""Threads and revisions, read from outside a run: what the `handoff` command shows.

Imports no LangGraph. Lists are read a page at a time, along an index, so a fleet of a hundred
thousand threads is as quick to look at as one.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from handoff_graph.codec import ENCRYPTED, PLAIN, Codec
from handoff_graph.errors import UnknownThread, UnreadableRow
from handoff_graph.reader import Reader
from handoff_graph.schema import upcast
from handoff_graph.values import check_state

__all__ = [
    "Revision",
    "Sort",
    "Thread",
    "revisions",
    "thread",
    "thread_ids",
    "threads",
]

Sort = Literal["age", "status", "owner"]

_NEAR = 2_000  # thread ids that are looked through for one that looks like an unknown one


@dataclass(frozen=True)
class Thread:
    """One thread as `handoff list` sees it; `state` is None before its first revision."""

    thread_id: str
    newest_checkpoint: str = ""
    checkpoints: int = 0
    revision: int = 0
    at: str = ""
    title: str = ""
    status: str = ""
    owner: str = ""
    checkpoint_id: str = ""
    state: dict[str, Any] | None = None
    ledger: str | None = None
    ledger_error: str | None = None


@dataclass(frozen=True)
class Revision:
    """One row of the journal."""

    revision: int
    parent_revision: int | None
    checkpoint_id: str
    at: str
    owner: str
    reason: str
    change: dict[str, Any]


_ORDERS: dict[str, str] = {
    "age": "at DESC, thread_id DESC",
    "status": "status DESC, at DESC, thread_id DESC",
    "owner": "owner DESC, at DESC, thread_id DESC",
}
_COLUMNS = (
    "thread_id, revision, at, title, status, owner, checkpoint_id, state, ledger, ledger_error"
)
# One look into the index per thread, instead of one per checkpoint.
_EVERY_THREAD = (
    "WITH RECURSIVE known(id) AS (SELECT min(thread_id) FROM checkpoints UNION ALL"
    " SELECT (SELECT min(thread_id) FROM checkpoints WHERE thread_id > known.id) FROM known"
    " WHERE known.id IS NOT NULL) SELECT id FROM known WHERE id IS NOT NULL"
)
_WITHOUT_TASK = (
    " AND NOT EXISTS (SELECT 1 FROM handoff_threads h"
    " WHERE h.thread_id = known.id AND h.checkpoint_ns = '')"
)


def threads(
    reader: Reader,
    *,
    status: str = "",
    owner: str = "",
    sort: Sort = "age",
    limit: int = 100,
    offset: int = 0,
) -> list[Thread]:
    """A page of the threads of root graphs.

    Those with a task first, then those that have checkpoints but no revision yet, with
    revision 0. One whose state is damaged has the status `unreadable`, and no state.

    Args:
        reader: the database.
        status: only tasks of this status.
        owner: only tasks of this owner.
        sort: `age`, the newest first; `status` or `owner`, and then by age.
        limit: how many.
        offset: how many to pass over.
    """
    found: list[Thread] = []
    folded = 0
    if "handoff_threads" in reader.tables:
        where, params = _filter(status, owner)
        found = [
            _listed(reader, row)
            for row in reader.rows(
                f"SELECT {_COLUMNS} FROM handoff_threads WHERE {where}"
                f" ORDER BY {_ORDERS[sort]} LIMIT ? OFFSET ?",
                (*params, limit, offset),
            )
        ]
        if len(found) < limit:
            rows = reader.rows(f"SELECT count(*) FROM handoff_threads WHERE {where}", params)
            folded = rows[0][0]
    if len(found) < limit and not status and not owner:
        found += _without_task(reader, limit - len(found), max(0, offset - folded))
    if sort == "age":
        found.sort(key=lambda t: (t.newest_checkpoint, t.thread_id), reverse=True)
    return found


def thread_ids(reader: Reader) -> Iterator[str]:
    """Every thread that has checkpoints."""
    if "checkpoints" in reader.tables:
        for row in reader.rows(_EVERY_THREAD, ()):
            yield row[0]


def thread(reader: Reader, thread_id: str) -> Thread:
    """One thread.

    Raises:
        UnknownThread: nothing is stored under this id; the error names near matches.
        UnreadableRow: its state is damaged.
    """
    row: list[tuple[Any, ...]] = []
    if "handoff_threads" in reader.tables:
        row = reader.rows(
            f"SELECT {_COLUMNS} FROM handoff_threads WHERE thread_id = ? AND checkpoint_ns = ''",
            (thread_id,),
        )
    if row:
        return _thread(reader, row[0])
    found = Thread(thread_id, *_checkpoints(reader, thread_id))
    if not found.checkpoints:
        raise UnknownThread(thread_id, _near(reader, thread_id))
    return found


def revisions(reader: Reader, thread_id: str, ns: str = "") -> Iterator[Revision]:
    """The revisions of a thread, oldest first."""
    if "handoff_journal" not in reader.tables:
        return
    for row in reader.rows(
        "SELECT revision, parent_revision, checkpoint_id, at, owner, reason, change"
        " FROM handoff_journal WHERE thread_id = ? AND checkpoint_ns = ? ORDER BY revision",
        (thread_id, ns),
    ):
        change = json.loads(_codec_for(row[6]).loads(row[6]))
        yield Revision(row[0], row[1], row[2], row[3], row[4], row[5], change)


def _filter(status: str, owner: str) -> tuple[str, list[str]]:
    conditions = {"checkpoint_ns": "", **({"status": status} if status else {})}
    conditions.update({"owner": owner} if owner else {})
    return " AND ".join(f"{name} = ?" for name in conditions), list(conditions.values())


def _without_task(reader: Reader, limit: int, offset: int) -> list[Thread]:
    if "checkpoints" not in reader.tables:
        return []
    known = _WITHOUT_TASK if "handoff_threads" in reader.tables else ""
    rows = reader.rows(f"{_EVERY_THREAD}{known} LIMIT ? OFFSET ?", (limit, offset))
    return [Thread(row[0], *_checkpoints(reader, row[0])) for row in rows]


def _checkpoints(reader: Reader, thread_id: str) -> tuple[str, int]:
    """The newest checkpoint of a thread, and how many there are."""
    if "checkpoints" not in reader.tables:
        return "", 0
    rows = reader.rows(
        "SELECT coalesce(max(checkpoint_id), ''), count(*) FROM checkpoints"
        " WHERE thread_id = ? AND checkpoint_ns = ''",
        (thread_id,),
    )
    return rows[0][0], rows[0][1]


def _listed(reader: Reader, row: tuple[Any, ...]) -> Thread:
    try:
        return _thread(reader, row)
    except UnreadableRow:
        return Thread(row[0], *_checkpoints(reader, row[0]), status="unreadable")


def _thread(reader: Reader, row: tuple[Any, ...]) -> Thread:
    thread_id, revision, at, title, status, owner, checkpoint_id, stored, ledger, error = row
    newest, count = _checkpoints(reader, thread_id)
    try:
        state = check_state(upcast(json.loads(_codec_for(stored).loads(stored))))
    except (ValueError, TypeError) as problem:  # also InvalidTask, and what json raises
        raise UnreadableRow(thread_id, "handoff_threads", str(problem)) from problem
    shown = str(state["title"]) if title == ENCRYPTED else title
    newest = newest or checkpoint_id
    return Thread(
        thread_id,
        newest,
        count,
        revision,
        at,
        shown,
        status,
        owner,
        checkpoint_id,
        dict(state),
        ledger,
        error,
    )


def _codec_for(stored: str) -> Codec:
    """How this text is stored; to decrypt it takes LangGraph, and the key."""
    if stored.startswith("{"):
        return PLAIN
    from handoff_graph.encryption import codec_from_environment

    return codec_from_environment()


def _near(reader: Reader, thread_id: str) -> list[str]:
    table = "handoff_threads" if "handoff_threads" in reader.tables else "checkpoints"
    rows = reader.rows(f"SELECT DISTINCT thread_id FROM {table} LIMIT ?", (_NEAR,))
    return difflib.get_close_matches(thread_id, [row[0] for row in rows], n=3, cutoff=0.5)
