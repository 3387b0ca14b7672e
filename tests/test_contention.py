"""Many writers at once, of one process and of several: nobody fails, nothing is lost."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from databases import Database
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from handoff_graph import HandoffSaver

WORKER = """
import sys
sys.path.insert(0, sys.argv[1])
from handoff_graph import HandoffSaver
from test_contention import puts
url, thread, count = sys.argv[2], sys.argv[3], int(sys.argv[4])
print("ready", flush=True)
sys.stdin.readline()
with HandoffSaver.from_conn_string(url) as saver:
    puts(saver, thread, count)
"""


def puts(saver: HandoffSaver, thread: str, count: int) -> None:
    """Store checkpoints of a thread, each with a new revision of its task."""
    where: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    for number in range(count):
        task = {"handoff_task": 1, "revision": 0, "title": f"{number} of {thread}"}
        made: Any = {**empty_checkpoint(), "id": str(uuid6())}
        made["channel_values"] = {"task": task}
        made["channel_versions"] = {"task": str(number)}
        where = saver.put(where, made, {"source": "loop", "step": number}, {"task": str(number)})


def at_once(database: Database, threads: list[str], count: int) -> None:
    """Run a process per thread id; all begin together, and none may complain."""
    here = str(Path(__file__).parent)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, here, database.url, thread, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for thread in threads
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    ended = [(worker.communicate()[1], worker.returncode) for worker in workers]
    assert ended == [("", 0)] * len(threads)


def test_four_processes_on_threads_of_their_own(database: Database) -> None:
    names = [f"t{n}" for n in range(4)]
    at_once(database, names, 200)
    for name in names:
        assert database.count("checkpoints", f"thread_id = '{name}'") == 200
        assert database.count("handoff_journal", f"thread_id = '{name}'") == 200


def test_two_processes_on_the_same_thread_number_without_gaps(database: Database) -> None:
    at_once(database, ["t", "t"], 60)
    assert database.count("checkpoints") == 120
    assert database.count("handoff_journal") == 120
    assert database.count("handoff_journal", "revision BETWEEN 1 AND 120") == 120


def test_eight_processes_set_a_fresh_database_up(database: Database) -> None:
    at_once(database, [f"t{n}" for n in range(8)], 1)
    assert database.count("handoff_journal") == 8


def test_eight_threads_on_one_saver(database: Database) -> None:
    errors: list[BaseException] = []
    begin = threading.Barrier(8)

    def work(name: str) -> None:
        try:
            begin.wait()
            puts(saver, name, 25)
        except BaseException as error:
            errors.append(error)

    with database.open() as saver:
        workers = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert errors == []
    assert database.count("handoff_journal") == 200


@pytest.mark.parametrize("how", ["sync", "async"])
def test_forgetting_to_close_is_safe(database: Database, how: str) -> None:
    sync = "puts(HandoffSaver.from_conn_string(sys.argv[2]), 't', 2)"
    other = (
        "import asyncio\n"
        "async def main():\n"
        "    saver = HandoffSaver.from_conn_string(sys.argv[2])\n"
        "    await saver.aget_tuple({'configurable': {'thread_id': 't'}})\n"
        "asyncio.run(main())"
    )
    script = (
        "import sys\nsys.path.insert(0, sys.argv[1])\n"
        "from handoff_graph import HandoffSaver\nfrom test_contention import puts\n"
        f"{sync if how == 'sync' else other}\n"
    )
    command = [sys.executable, "-W", "error", "-c", script, str(Path(__file__).parent)]
    done = subprocess.run(
        [*command, database.url], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
