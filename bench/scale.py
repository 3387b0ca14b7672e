"""Measure what a thread costs beside 1,000 others and beside 100,000 others.

One thread is written by HandoffSaver: a ReAct loop that is folded ten times, so it has ten
revisions. Its rows are then copied in bulk (`executemany`, COPY) under so many other ids, each
thread with checkpoint ids, times, status and owner of its own. On that database, in SQLite and
in PostgreSQL, each of these is timed, in the median:

    list ...       of the catalog, the first page, one from the middle, one status, one owner
    show           a thread's task, as the catalog finds it
    resume         `get_tuple` and `task_state` of a thread, on an open connection
    copy_thread    a thread under a new id
    delete_thread  a thread
    prune          a batch of 100 threads, down to "latest"

The ratio is the time among the most threads over that among the fewest: near 1 says that
whatever is asked for is found by an index. Times depend on the machine. 100,000 threads take
some gigabytes, twice; TMPDIR says where.

Example:
    python bench/scale.py --threads 100,10000 --database sqlite
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from langchain_core.messages import HumanMessage
from langgraph.graph import MessagesState
from react_loop import CONFIG, REQUEST, numbers, progress, react
from servers import new_database, server
from tables import middle, ratio, table

from handoff_graph import HandoffSaver, catalog
from handoff_graph.codec import dumps
from handoff_graph.dialect import POSTGRES, SQLITE, Dialect
from handoff_graph.journal import TABLES
from handoff_graph.reader import open_readonly
from handoff_graph.schema import STATUSES, stamp

REVISIONS = 10
CALLS_A_FOLD = 2
OUTPUT = 64  # bytes
OWNERS = 1000
PAGE = 50
BATCH = 100  # threads of one prune
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
PREFIX = 8  # digits of a checkpoint id: they count 27 seconds


class Rows(NamedTuple):
    """The rows of the model thread in one table."""

    name: str
    columns: list[str]
    rows: list[tuple[Any, ...]]


class Database(NamedTuple):
    """A database, and how it is reached."""

    url: str
    dialect: Dialect


def thread_id(number: int) -> str:
    """The id of a thread."""
    return f"task-{number:07}"


# -- loading -----------------------------------------------------------------------------------


def model(database: Database) -> list[Rows]:
    """Write the model thread, and take its rows out of the database again."""
    calls = REVISIONS * CALLS_A_FOLD
    with HandoffSaver.from_conn_string(database.url, every=CALLS_A_FOLD) as saver:
        graph = react(MessagesState, calls, OUTPUT, Path()).compile(checkpointer=saver)
        graph.invoke({"messages": [HumanMessage(REQUEST)]}, CONFIG, durability="sync")
        saver.task_state(CONFIG)
    found = []
    name = CONFIG["configurable"]["thread_id"]
    with connected(database) as conn:
        for table_name in (*database.dialect.tables, *TABLES):
            mark = "?" if database.dialect is SQLITE else "%s"
            cursor = conn.execute(f"SELECT * FROM {table_name} WHERE thread_id = {mark}", (name,))
            columns = [column[0] for column in cursor.description]
            rows = [tuple(map(_text, row)) for row in cursor.fetchall()]
            found.append(Rows(table_name, columns, rows))
            conn.execute(f"DELETE FROM {table_name}")
        conn.commit()
    return found


def _text(value: Any) -> Any:
    """A column's value in the form that is written: JSON of PostgreSQL's is read as an object."""
    if isinstance(value, (dict, list)):
        return json.dumps(value)
    return bytes(value) if isinstance(value, memoryview) else value


def prefix_of(rows: Sequence[Rows]) -> str:
    """The first digits of the model's checkpoint ids, which all its ids share."""
    checkpoints = next(part for part in rows if part.name == "checkpoints")
    at = checkpoints.columns.index("checkpoint_id")
    (prefix,) = {row[at][:PREFIX] for row in checkpoints.rows}
    return str(prefix)


def copies(part: Rows, threads: int, prefix: str) -> Iterator[tuple[Any, ...]]:
    """The rows of all threads in one table."""
    cut = [tuple(_pieces(value, prefix) for value in row) for row in part.rows]
    key = part.columns.index("thread_id")
    first = int(prefix, 16) - threads
    for number in range(threads):
        digits = f"{first + number:08x}"
        for row in cut:
            values = [p if not isinstance(p, _Cut) else p.joined(digits) for p in row]
            values[key] = thread_id(number)
            if part.name == "handoff_threads":
                _vary(part.columns, values, number)
            yield tuple(values)


class _Cut(NamedTuple):
    """A value that names checkpoints, without the first digits of their ids."""

    pieces: list[Any]

    def joined(self, digits: str) -> Any:
        glue = digits if isinstance(self.pieces[0], str) else digits.encode()
        return glue.join(self.pieces)  # type: ignore[arg-type]


def _pieces(value: Any, prefix: str) -> Any:
    sought: Any = prefix if isinstance(value, str) else prefix.encode()
    cuttable = isinstance(value, (str, bytes)) and sought in value
    return _Cut(value.split(sought)) if cuttable else value


def _vary(columns: Sequence[str], values: list[Any], number: int) -> None:
    """Give the head of a thread a time, a status and an owner of its own."""
    own = {
        "at": stamp(START + timedelta(seconds=27 * number)),
        "status": STATUSES[number % len(STATUSES)],
        "owner": f"agent-session-{number % OWNERS}",
    }
    state = json.loads(values[columns.index("state")])
    state |= {"status": own["status"], "owner": own["owner"]}
    for name, value in {**own, "state": dumps(state)}.items():
        values[columns.index(name)] = value


def load(database: Database, threads: int) -> None:
    """Fill a database with so many threads."""
    rows = model(database)
    prefix = prefix_of(rows)
    with connected(database) as conn:
        for part in rows:
            insert(conn, part, copies(part, threads, prefix))
        conn.commit()
        if database.dialect is POSTGRES:
            conn.autocommit = True
            conn.execute("VACUUM ANALYZE")  # as the server does by itself, later


def insert(conn: Any, part: Rows, rows: Iterable[tuple[Any, ...]]) -> None:
    """Write rows in bulk."""
    if isinstance(conn, sqlite3.Connection):
        marks = ", ".join("?" for _ in part.columns)
        conn.executemany(f"INSERT INTO {part.name} VALUES ({marks})", rows)
        return
    with conn.cursor().copy(f"COPY {part.name} ({', '.join(part.columns)}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)


@contextmanager
def connected(database: Database) -> Iterator[Any]:
    """A connection of our own."""
    if database.dialect is SQLITE:
        with closing(sqlite3.connect(database.url)) as conn:
            conn.execute("PRAGMA synchronous = OFF")
            yield conn
        return
    import psycopg

    with psycopg.connect(database.url) as conn:
        yield conn


# -- what the catalog finds --------------------------------------------------------------------


def listed(database: Database, **narrowed: Any) -> int:
    """One page of threads."""
    with open_readonly(database.url) as reader:
        return len(catalog.threads(reader, limit=PAGE, **narrowed))


def show(database: Database, name: str) -> int:
    """A thread's task."""
    with open_readonly(database.url) as reader:
        return int(catalog.thread(reader, name).state is not None)


# -- timing ------------------------------------------------------------------------------------


def timed(actions: Iterable[Callable[[], object]]) -> float:
    """Milliseconds of an action, in the median; of the first, nothing is counted."""
    first, *others = actions
    first()
    took = []
    for action in others:
        start = time.perf_counter()
        action()
        took.append(1000 * (time.perf_counter() - start))
    return middle(took)


def resume(saver: HandoffSaver, name: str) -> None:
    """What a run that goes on with a thread reads first."""
    config: Any = {"configurable": {"thread_id": name}}
    if saver.get_tuple(config) is None or saver.task_state(config) is None:
        raise RuntimeError(f"nothing is stored under {name}")


def measure(database: Database, threads: int, repeats: int) -> dict[str, float]:
    """Load the database, and time everything on it."""
    load(database, threads)
    step = max(1, threads // (3 * repeats + 3))
    ids = [thread_id(at) for at in range(0, threads, step)]
    shown, copied = ids[0 : repeats + 1], ids[repeats + 1 : 2 * repeats + 2]
    deleted = ids[2 * repeats + 2 : 3 * repeats + 3]
    found: dict[str, float] = {}
    few = range(repeats)
    pages: dict[str, dict[str, Any]] = {
        "first page": {},
        "middle page": {"offset": threads // 2},
        "one status": {"status": STATUSES[1]},
        "one owner": {"owner": f"agent-session-{min(OWNERS, threads) // 2}"},
        "by owner": {"sort": "owner"},
    }
    for page, narrowed in pages.items():
        found[f"list, {page}"] = timed(partial(listed, database, **narrowed) for _ in few)
    found["show"] = timed(partial(show, database, name) for name in shown)
    with HandoffSaver.from_conn_string(database.url) as saver:
        found["resume"] = timed(partial(resume, saver, name) for name in shown)
        found["copy_thread"] = timed(
            partial(saver.copy_thread, name, f"copy-of-{name}") for name in copied
        )
        found["delete_thread"] = timed(partial(saver.delete_thread, name) for name in deleted)
        others = sorted({*map(thread_id, range(threads))} - {*deleted})
        batches = [others[at::5][:BATCH] for at in range(5)]
        found["prune"] = timed(partial(saver.prune, batch, strategy="latest") for batch in batches)
    return found


def render(
    found: dict[tuple[str, int], dict[str, float]], sizes: Sequence[int], *, markdown: bool
) -> str:
    """The table."""
    kinds = dict.fromkeys(kind for kind, _ in found)
    lines = []
    for kind in kinds:
        fewest, most = found[kind, sizes[0]], found[kind, sizes[-1]]
        for name in fewest:
            shown = [f"{found[kind, size][name]:,.2f} ms" for size in sizes]
            lines.append((f"{kind}: {name}", *shown, ratio(most[name], fewest[name])))
    head = ("", *(f"{size:,} threads" for size in sizes), "ratio")
    return table(head, lines, markdown=markdown)


def main() -> int:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--threads", type=numbers, default="1000,100000", help="default: %(default)s")
    option("--database", choices=("sqlite", "postgres"), action="append", help="default: both")
    option("--repeats", type=int, default=20, help="default: %(default)s")
    option("--markdown", action="store_true", help="print a markdown table")
    given = parser.parse_args()
    kinds = given.database or ["sqlite", "postgres"]
    found: dict[tuple[str, int], dict[str, float]] = {}
    with progress(len(kinds) * len(given.threads)) as report:
        for kind in kinds:
            for threads in given.threads:
                report(f"{kind}, {threads:,} threads", False)
                title = {"sqlite": "SQLite", "postgres": "PostgreSQL"}[kind]
                with empty(kind) as database:
                    found[title, threads] = measure(database, threads, given.repeats)
                report(f"{kind}, {threads:,} threads", True)
    print(render(found, given.threads, markdown=given.markdown))
    return 0


@contextmanager
def empty(kind: str) -> Iterator[Database]:
    """A new database, removed in the end."""
    if kind == "postgres":
        with server() as url, new_database(url) as database:
            yield Database(database, POSTGRES)
        return
    with tempfile.TemporaryDirectory(prefix="handoff-bench-") as folder:
        yield Database(str(Path(folder) / "bench.db"), SQLITE)


if __name__ == "__main__":
    sys.exit(main())
