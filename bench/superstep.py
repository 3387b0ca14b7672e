"""Measure what a superstep asks of its database: statements and bytes.

What a ReAct loop of 2 KB tool outputs made LangGraph call, `put` and `put_writes`, is asked of
each saver again, for some threads one after the other. A superstep is one `put` and what its
tasks wrote.

    statements  that the database was given for a superstep, BEGIN and COMMIT among them
    written     bytes of the write-ahead log for a superstep; on SQLite all that the process wrote
    thread      bytes that a thread takes afterwards, in tables and indexes

None of them depends on the machine.

Example:
    python bench/superstep.py --calls 12,100
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from react_loop import numbers, progress
from servers import new_database, server, stored
from tables import table
from tool_outputs import written
from workers import Call, record, replay

from handoff_graph import HandoffSaver

THREADS = 20
ROWS: dict[str, tuple[type[Any], bool]] = {  # the saver, and whether it is on PostgreSQL
    "SqliteSaver": (SqliteSaver, False),
    "HandoffSaver, SQLite": (HandoffSaver, False),
    "PostgresSaver": (PostgresSaver, True),
    "HandoffSaver, PostgreSQL": (HandoffSaver, True),
}


class Cost(NamedTuple):
    """What a superstep took, and a thread."""

    statements: float
    written: float
    thread: float


@contextmanager
def counted(seen: list[int]) -> Iterator[None]:
    """Count the statements of psycopg's sync connections; it has no hook for that."""
    execute, many = psycopg.Cursor.execute, psycopg.Cursor.executemany
    command = psycopg.Connection._exec_command

    def on_execute(self: Any, query: Any, *args: Any, **options: Any) -> Any:
        seen.append(1 + str(query).startswith("BEGIN; "))
        return execute(self, query, *args, **options)

    def on_many(self: Any, query: Any, rows: Iterable[Any], **options: Any) -> Any:
        rows = list(rows)
        seen.append(len(rows))
        return many(self, query, rows, **options)

    def on_command(self: Any, *args: Any, **options: Any) -> Any:
        seen.append(1)  # BEGIN, COMMIT
        return command(self, *args, **options)

    with (
        patch.object(psycopg.Cursor, "execute", on_execute),
        patch.object(psycopg.Cursor, "executemany", on_many),
        patch.object(psycopg.Connection, "_exec_command", on_command),
    ):
        yield


def postgres(saver_class: type[Any], script: Sequence[Call], url: str) -> Cost:
    """The cost on PostgreSQL."""
    seen: list[int] = []

    def log() -> int:
        with psycopg.connect(url) as conn:
            row = conn.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')").fetchone()
        return int(row[0]) if row else 0

    with saver_class.from_conn_string(url) as saver:
        saver.setup()
        replay(saver, "warm", script)
        before = log()
        with counted(seen):
            for number in range(THREADS):
                replay(saver, f"task-{number}", script)
        logged = log() - before
    steps = THREADS * supersteps(script)
    return Cost(sum(seen) / steps, logged / steps, stored(url)[1] / (THREADS + 1))


def sqlite(saver_class: type[Any], script: Sequence[Call], folder: Path) -> Cost:
    """The cost on SQLite."""
    seen: list[str] = []
    path = folder / "bench.db"
    with saver_class.from_conn_string(str(path)) as saver:
        saver.setup()
        replay(saver, "warm", script)
        conn = (saver.inner if isinstance(saver, HandoffSaver) else saver).conn
        before = written()
        conn.set_trace_callback(seen.append)
        for number in range(THREADS):
            replay(saver, f"task-{number}", script)
        conn.set_trace_callback(None)
        logged = written() - before
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("VACUUM")
    steps = THREADS * supersteps(script)
    return Cost(len(seen) / steps, logged / steps, path.stat().st_size / (THREADS + 1))


def supersteps(script: Sequence[Call]) -> int:
    """How many there are in what LangGraph has asked for."""
    return sum(method == "put" for method, _ in script)


def main() -> int:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--calls", type=numbers, default="30,100", help="of each thread; default: %(default)s")
    option("--markdown", action="store_true", help="print a markdown table")
    given = parser.parse_args()
    lines = []
    with progress(len(given.calls) * len(ROWS)) as report, server() as url:
        for calls in given.calls:
            script = record(calls)
            for name, (saver_class, on_postgres) in ROWS.items():
                if on_postgres:
                    with new_database(url) as database:
                        cost = postgres(saver_class, script, database)
                else:
                    with tempfile.TemporaryDirectory(prefix="handoff-bench-") as folder:
                        cost = sqlite(saver_class, script, Path(folder))
                report(f"{calls} calls, {name}", True)
                bytes_ = (f"{cost.written:,.0f} B", f"{cost.thread:,.0f} B")
                lines.append((name, calls, f"{cost.statements:.1f}", *bytes_))
    head = ("saver", "calls", "statements", "written", "thread")
    print(table(head, lines, markdown=given.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
