"""Reading a handoff database from outside a run: what the `handoff` command shows.

Needs sqlite3 and json only, opens files read-only, and imports no LangGraph.
"""

from __future__ import annotations

import difflib
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from handoff_graph.errors import NotAHandoffDatabase, UnknownThread
from handoff_graph.journal import check_version
from handoff_graph.schema import upcast
from handoff_graph.steps import Query, Step, Steps, drive

__all__ = ["Revision", "Thread", "ask", "open_readonly", "revisions", "thread", "threads"]

T = TypeVar("T")


@dataclass(frozen=True)
class Thread:
    """One thread as `handoff list` sees it; `state` is None before its first revision."""

    thread_id: str
    revision: int
    at: str
    title: str
    status: str
    owner: str
    checkpoint_id: str
    newest_checkpoint: str
    checkpoints: int
    state: dict[str, Any] | None
    ledger: str | None
    ledger_revision: int | None
    ledger_error: str | None


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


def open_readonly(path: str | Path) -> sqlite3.Connection:
    """Open a database for reading, without creating or changing anything.

    Args:
        path: the SQLite file.

    Returns:
        A read-only connection.

    Raises:
        NotAHandoffDatabase: the file is missing, is no SQLite database, or holds neither
            checkpoints nor a journal.
    """
    name = str(path)
    if not Path(path).is_file():
        raise NotAHandoffDatabase(name, "no such file. Name the database with --db or HANDOFF_DB")
    try:
        # Without a WAL beside it nobody has the file open, so it needs no files to read it.
        at_rest = not Path(f"{name}-wal").exists()
        query = "mode=ro&immutable=1" if at_rest else "mode=ro"
        conn = sqlite3.connect(f"file:{quote(str(Path(path).absolute()))}?{query}", uri=True)
        tables = {row[0] for row in conn.execute("SELECT name FROM sqlite_master")}
    except sqlite3.DatabaseError as error:
        raise NotAHandoffDatabase(name, f"not readable as a SQLite database ({error})") from error
    if not tables & {"handoff_journal", "checkpoints"}:
        conn.close()
        raise NotAHandoffDatabase(name, "a SQLite database, but without checkpoints of LangGraph")
    if "handoff_meta" in tables:
        ask(conn, check_version())
    return conn


def ask(conn: sqlite3.Connection, steps: Steps[T]) -> T:
    """Run an operation that only reads, such as those of the journal, on a connection."""

    def rows(step: Step) -> Any:
        assert isinstance(step, Query)
        return conn.execute(*step).fetchall()

    return drive(steps, rows)


def threads(conn: sqlite3.Connection) -> Iterator[Thread]:
    """Every thread of the root graph, the one with the newest checkpoint first.

    Threads that have checkpoints but no revision yet are included, with revision 0.
    """
    found = (_thread(conn, row[0]) for row in _thread_ids(conn))
    yield from sorted(found, key=lambda t: (t.newest_checkpoint, t.thread_id), reverse=True)


def thread(conn: sqlite3.Connection, thread_id: str) -> Thread:
    """One thread.

    Raises:
        UnknownThread: nothing is stored under this id; the error names near matches.
    """
    known = [row[0] for row in _thread_ids(conn)]
    if thread_id not in known:
        near = difflib.get_close_matches(thread_id, known, n=3, cutoff=0.5)
        raise UnknownThread(thread_id, near)
    return _thread(conn, thread_id)


def revisions(conn: sqlite3.Connection, thread_id: str, ns: str = "") -> Iterator[Revision]:
    """The revisions of a thread, oldest first."""
    if not _has(conn, "handoff_journal"):
        return
    for row in conn.execute(
        "SELECT revision, parent_revision, checkpoint_id, at, owner, reason, change"
        " FROM handoff_journal WHERE thread_id = ? AND checkpoint_ns = ? ORDER BY revision",
        (thread_id, ns),
    ):
        revision, parent, checkpoint_id, at, owner, reason, change = row
        yield Revision(revision, parent, checkpoint_id, at, owner, reason, json.loads(change))


def _thread_ids(conn: sqlite3.Connection) -> list[tuple[str]]:
    sources = [
        f"SELECT DISTINCT thread_id FROM {table} WHERE checkpoint_ns = ''"
        for table in ("checkpoints", "handoff_threads")
        if _has(conn, table)
    ]
    return conn.execute(" UNION ".join(sources)).fetchall()


def _thread(conn: sqlite3.Connection, thread_id: str) -> Thread:
    newest, count = "", 0
    if _has(conn, "checkpoints"):
        newest, count = conn.execute(
            "SELECT coalesce(max(checkpoint_id), ''), count(*) FROM checkpoints"
            " WHERE thread_id = ? AND checkpoint_ns = ''",
            (thread_id,),
        ).fetchone()
    row = None
    if _has(conn, "handoff_threads"):
        row = conn.execute(
            "SELECT revision, at, title, status, owner, checkpoint_id, state, ledger,"
            " ledger_revision, ledger_error FROM handoff_threads"
            " WHERE thread_id = ? AND checkpoint_ns = ''",
            (thread_id,),
        ).fetchone()
    if row is None:
        return Thread(thread_id, 0, "", "", "", "", "", newest, count, None, None, None, None)
    revision, at, title, status, owner, checkpoint_id, state, ledger, shown, error = row
    return Thread(
        thread_id,
        revision,
        at,
        title,
        status,
        owner,
        checkpoint_id,
        newest or checkpoint_id,
        count,
        upcast(json.loads(state)),
        ledger,
        shown,
        error,
    )


def _has(conn: sqlite3.Connection, table: str) -> bool:
    found = conn.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    return found is not None
