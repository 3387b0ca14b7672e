"""P4: whatever fails in the middle of a write, nothing of it is stored and all goes on after."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from agents import build, config, request
from databases import Database
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.sqlite import SqliteSaver

from handoff_graph import HandoffSaver, HandoffWarning, StorageError
from handoff_graph.transcript import is_briefing

EVERY = 2
RESUMING = "on"


def at(thread: str = "t", **more: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", **more}}


def begin(saver: HandoffSaver, calls: int = 3) -> None:
    """A thread with a fold behind it and another one call away."""
    build(calls).compile(checkpointer=saver).invoke(request(), config(), durability="sync")


def go_on(saver: HandoffSaver, calls: int = 5) -> None:
    """A new turn in which a fold is due, which supersedes the last one."""
    graph = build(calls).compile(checkpointer=saver)
    pending = graph.get_state(config()).next
    step = None if pending else {"messages": [("user", RESUMING)]}
    graph.invoke(step, config(), durability="sync")


def revision(saver: HandoffSaver) -> int:
    state = saver.task_state(config())
    assert state is not None
    return int(state["revision"])


def put_next(saver: HandoffSaver, thread: str = "t", **values: Any) -> str:
    """Store one more checkpoint of a thread; its id, once `put` has returned."""
    newest = saver.get_tuple(config(thread))
    made = newest.checkpoint if newest else empty_checkpoint()
    made = {**made, "id": str(uuid6()), "channel_values": {**made["channel_values"], **values}}
    where = newest.config if newest else at(thread)
    stored = saver.put(where, made, {"source": "loop", "step": 1}, dict.fromkeys(values, "1"))
    return str(stored["configurable"]["checkpoint_id"])


# -- refused by a trigger ----------------------------------------------------------------------


OPERATIONS = [
    ("checkpoints", "INSERT"),
    ("checkpoints", "UPDATE"),
    ("checkpoints", "DELETE"),
    ("writes", "DELETE"),
    ("handoff_journal", "INSERT"),
    ("handoff_threads", "INSERT"),
    ("handoff_threads", "UPDATE"),
    ("handoff_sessions", "INSERT"),
]
"""What a fold does to the tables, as a test below finds; on PostgreSQL to one more."""
BLOBS = [("checkpoint_blobs", "INSERT"), ("checkpoint_blobs", "DELETE")]


def refuse(database: Database, table: str, operation: str, action: str = "") -> None:
    """Have the database refuse an operation on a table, from within its own transaction."""
    if database.kind == "sqlite":
        database.execute(
            f"CREATE TRIGGER refuse BEFORE {operation} ON {table}"
            " BEGIN SELECT raise(ABORT, 'disk on fire'); END"
        )
        return
    action = action or "RAISE EXCEPTION 'disk on fire'"
    database.execute(
        "CREATE OR REPLACE FUNCTION refusing() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN {action}; RETURN NULL; END $$"
    )
    database.execute(
        f"CREATE TRIGGER refuse BEFORE {operation} ON {_named(database, table)}"
        " FOR EACH ROW EXECUTE FUNCTION refusing()"
    )


def relent(database: Database, table: str) -> None:
    place = "" if database.kind == "sqlite" else f" ON {_named(database, table)}"
    database.execute(f"DROP TRIGGER refuse{place}")


def _named(database: Database, table: str) -> str:
    return "checkpoint_writes" if (database.kind, table) == ("postgres", "writes") else table


class Stopping(HandoffSaver):
    """Keeps the arguments of the `put` that would bring a revision, and stops there."""

    last: tuple[Any, ...] = ()
    armed = False

    def put(self, *args: Any) -> Any:
        if self.armed and self._is_due(args):
            self.last = args
            raise KeyboardInterrupt
        return super().put(*args)

    def _is_due(self, args: tuple[Any, ...]) -> bool:
        messages = args[1]["channel_values"].get("messages", [])
        return bool(messages) and getattr(messages[-1], "tool_call_id", "") == "call-4"


def before_a_fold(database: Database) -> tuple[HandoffSaver, Callable[[], Any]]:
    """A fresh saver on a thread with history, and the `put` in which its next fold lands."""
    with database.open(every=EVERY) as first:
        begin(first)
    stopping = Stopping.from_conn_string(database.url, every=EVERY)
    stopping.armed = True
    with stopping, pytest.raises(KeyboardInterrupt):
        go_on(stopping)
    assert stopping.last
    saver = database.open(every=EVERY)
    return saver, lambda: saver.put(*stopping.last)


def fails_whole(database: Database, saver: HandoffSaver, fold: Callable[[], Any]) -> str:
    """A fold that fails leaves every row as it was, and what there is can be read.

    Returns:
        The words of the error.
    """
    before = sorted(database.rows())
    newest, state = saver.get_tuple(config()), saver.task_state(config())
    with pytest.raises(StorageError) as caught:
        fold()
    assert caught.value.thread == "t"
    assert "thread 't'" in str(caught.value)
    assert sorted(database.rows()) == before
    assert saver.get_tuple(config()) == newest
    assert saver.task_state(config()) == state
    return str(caught.value)


def recovers(saver: HandoffSaver, fold: Callable[[], Any]) -> None:
    """Once the fault is gone the same `put` succeeds, and so does the next run."""
    revision = (saver.task_state(config()) or {"revision": 0})["revision"]
    fold()
    after = saver.get_tuple(config())
    assert after is not None
    assert is_briefing(after.checkpoint["channel_values"]["messages"][0])
    assert (saver.task_state(config()) or {})["revision"] == revision + 1
    go_on(saver)


def test_a_fold_does_these_operations_and_no_others(tmp_path: Path) -> None:
    saver, fold = before_a_fold(Database("sqlite", str(tmp_path / "h.db")))
    kinds = {
        sqlite3.SQLITE_INSERT: "INSERT",
        sqlite3.SQLITE_UPDATE: "UPDATE",
        sqlite3.SQLITE_DELETE: "DELETE",
    }
    seen: set[tuple[str, str]] = set()

    def note(action: int, table: str | None, *_: object) -> int:
        if action in kinds and table and not table.startswith("sqlite_"):
            seen.add((table, kinds[action]))
        return sqlite3.SQLITE_OK

    with saver:
        saver.inner.conn.set_authorizer(note)
        fold()
        saver.inner.conn.set_authorizer(None)
    assert seen == {*OPERATIONS}


@pytest.mark.parametrize(("table", "operation"), [*OPERATIONS, *BLOBS])
def test_p4_any_statement_of_a_fold_may_fail(
    database: Database, table: str, operation: str
) -> None:
    if table == "checkpoint_blobs" and database.kind == "sqlite":
        return  # values stand in the checkpoints there
    saver, fold = before_a_fold(database)
    with saver:
        refuse(database, table, operation)
        assert "disk on fire" in fails_whole(database, saver, fold)
        relent(database, table)
        recovers(saver, fold)


def test_p4_a_tasks_writes_may_fail(database: Database) -> None:
    with database.open(every=EVERY) as saver:
        begin(saver)
        newest = saver.get_tuple(config())
        assert newest is not None
        refuse(database, "writes", "INSERT")
        writes = lambda: saver.put_writes(newest.config, [("a", 1), ("b", 2)], "task")  # noqa: E731
        assert "disk on fire" in fails_whole(database, saver, writes)
        relent(database, "writes")
        writes()
        again = saver.get_tuple(config())
        assert again is not None
        assert ("task", "b", 2) in (again.pending_writes or ())


# -- SQLite: no room, no permission, no lock ---------------------------------------------------


@pytest.fixture
def sqlite(tmp_path: Path) -> Database:
    return Database("sqlite", str(tmp_path / "handoff.db"))


def test_p4_a_full_database(sqlite: Database) -> None:
    saver, fold = before_a_fold(sqlite)
    with saver:
        conn = saver.inner.conn
        pages = conn.execute("PRAGMA page_count").fetchone()[0]
        conn.execute("CREATE TABLE ballast (data BLOB)")
        conn.execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(sqlite3.OperationalError, match="full"):
            conn.execute("INSERT INTO ballast VALUES (zeroblob(100000))")
        while True:
            try:
                conn.execute("INSERT INTO ballast VALUES (zeroblob(500))")
                conn.commit()
            except sqlite3.OperationalError:
                conn.rollback()
                break
        assert "Free some space" in fails_whole(sqlite, saver, fold)
        conn.execute(f"PRAGMA max_page_count = {pages + 10_000}")
        recovers(saver, fold)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no small disk: tmpfs cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write a file until the disk is full."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_p4_a_full_disk(small_disk: Path) -> None:
    disk = Database("sqlite", str(small_disk / "handoff.db"))
    saver, fold = before_a_fold(disk)
    with saver:
        ballast = small_disk / "ballast"
        fill(ballast)
        fails_whole(disk, saver, fold)
        ballast.unlink()
        recovers(saver, fold)


def test_p4_a_full_disk_under_the_ledger_only_is_a_warning(
    small_disk: Path, sqlite: Database
) -> None:
    fill(small_disk / "ballast")
    with sqlite.open(every=EVERY, ledger=small_disk) as saver:
        with pytest.warns(HandoffWarning, match="behind revision"):
            begin(saver)
        assert revision(saver) == 1
        assert [path.name for path in small_disk.iterdir()] == ["ballast"]
    (small_disk / "ballast").unlink()
    with sqlite.open(every=EVERY, ledger=small_disk) as saver:
        saver.get_tuple(config())
        assert (small_disk / "t.md").exists()


def test_p4_a_read_only_database(sqlite: Database) -> None:
    saver, fold = before_a_fold(sqlite)
    with saver:
        saver.inner.conn.execute("PRAGMA query_only = ON")
        assert "writable" in fails_whole(sqlite, saver, fold)
        saver.inner.conn.execute("PRAGMA query_only = OFF")
        recovers(saver, fold)


@pytest.mark.parametrize("options", ["mode=ro", "immutable=1"])
def test_a_file_opened_read_only_is_read_and_not_written(sqlite: Database, options: str) -> None:
    saver, _ = before_a_fold(sqlite)
    saver.close()
    conn = sqlite3.connect(f"file:{sqlite.url}?{options}", uri=True, check_same_thread=False)
    with closing(conn):
        reader = HandoffSaver(SqliteSaver(conn), every=EVERY)
        assert reader.get_tuple(config()) is not None
        assert reader.task_state(config()) is not None
        assert [*reader.list(config())]
        with pytest.raises(StorageError, match="thread 't'") as caught:
            put_next(reader)
        assert "writable" in str(caught.value)


def test_p4_a_locked_database(sqlite: Database) -> None:
    """Another process holds it for longer than this one waits."""
    saver, fold = before_a_fold(sqlite)
    script = (
        "import sqlite3, sys\n"
        "conn = sqlite3.connect(sys.argv[1])\n"
        "conn.execute('BEGIN EXCLUSIVE')\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
        "conn.rollback()\n"
    )
    with saver:
        saver.inner.conn.execute("PRAGMA busy_timeout = 50")
        with subprocess.Popen(
            [sys.executable, "-c", script, sqlite.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            assert "locked" in fails_whole(sqlite, saver, fold)
            other.stdin.close()
            assert other.wait() == 0
        recovers(saver, fold)


# -- PostgreSQL: connections, servers and time that end ----------------------------------------


def test_p4_the_server_ends_the_connection_in_the_middle_of_a_put(postgres: Database) -> None:
    saver, fold = before_a_fold(postgres)
    with saver:
        action = "PERFORM pg_terminate_backend(pg_backend_pid())"
        refuse(postgres, "handoff_journal", "INSERT", action)
        assert "Run the step again" in fails_whole(postgres, saver, fold)
        relent(postgres, "handoff_journal")
        recovers(saver, fold)


async def test_p4_the_server_ends_an_async_connection_in_the_middle_of_a_put(
    postgres: Database,
) -> None:
    with postgres.open(every=EVERY) as first:
        begin(first)
    async with postgres.open(every=EVERY) as saver:
        newest = await saver.aget_tuple(config())
        assert newest is not None
        made = {**newest.checkpoint, "id": str(uuid6())}
        refuse(postgres, "checkpoints", "INSERT", "PERFORM pg_terminate_backend(pg_backend_pid())")
        before = sorted(postgres.rows())
        with pytest.raises(StorageError, match="thread 't'"):
            await saver.aput(newest.config, cast(Any, made), {}, {})
        assert sorted(postgres.rows()) == before
        relent(postgres, "checkpoints")
        await saver.aput(newest.config, cast(Any, made), {}, {})


def test_p4_a_statement_that_takes_too_long(postgres: Database) -> None:
    saver, fold = before_a_fold(postgres)
    with saver:
        refuse(postgres, "handoff_threads", "INSERT", "PERFORM pg_sleep(60)")
        name = postgres.url.rpartition("/handoff_test_")[2].partition("?")[0]
        postgres.execute(f"ALTER DATABASE handoff_test_{name} SET statement_timeout = '1s'")
        postgres.execute(  # it holds for new connections only
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert "statement timeout" in fails_whole(postgres, saver, fold)
        relent(postgres, "handoff_threads")
        recovers(saver, fold)
