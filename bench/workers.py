"""Measure 16 workers that write 1,000 threads through one PostgreSQL.

Each worker is a process with a saver of its own. What it writes for each of its threads is what
a ReAct loop of 2 KB tool outputs made LangGraph call, recorded once: `put` and `put_writes`, in
their order. So the graph itself is not in the figures. Rows are PostgresSaver and HandoffSaver
alone, which folds on its way; they run in turns on one server, each in a database of its own.

    puts/s    checkpoints stored in a second, by all workers; median of the repeats
    ratio     as a multiple of PostgresSaver's: it depends on the machine less than the rates
    live      bytes of all tables and indexes, without dead rows

Example:
    python bench/workers.py --workers 4 --threads 100
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import MessagesState
from react_loop import CONFIG, REQUEST, numbers, progress, react
from servers import new_database, server, stored
from tables import middle, ratio, table

from handoff_graph import HandoffSaver

SAVERS: dict[str, type[Any]] = {"PostgresSaver": PostgresSaver, "HandoffSaver": HandoffSaver}
SIZE = 2048

Call = tuple[str, tuple[Any, ...]]


def record(calls: int) -> list[Call]:
    """What LangGraph asks of a checkpointer in a loop of so many tool calls."""
    asked: list[Call] = []

    class Recorder(InMemorySaver):
        def get_next_version(self, current: Any, channel: None) -> str:
            return PostgresSaver.get_next_version(self, current, channel)  # type: ignore[arg-type]

        def put(self, *args: Any) -> Any:
            asked.append(("put", args))
            return super().put(*args)

        def put_writes(self, *args: Any) -> None:
            asked.append(("put_writes", args))
            super().put_writes(*args)

    graph = react(MessagesState, calls, SIZE, Path()).compile(checkpointer=Recorder())
    graph.invoke({"messages": [HumanMessage(REQUEST)]}, CONFIG, durability="sync")
    return asked


def replay(saver: Any, thread_id: str, script: Sequence[Call]) -> None:
    """Ask the same for another thread."""
    for method, (config, *others) in script:
        where = {**config["configurable"], "thread_id": thread_id}
        getattr(saver, method)({"configurable": where}, *others)


def work(name: str, url: str, thread_ids: Sequence[str], calls: int, ready: Barrier) -> None:
    """One worker, from when all are ready."""
    script = record(calls)
    with SAVERS[name].from_conn_string(url) as saver:
        replay(saver, f"{thread_ids[0]}-warm", script[:2])
        ready.wait()
        for thread_id in thread_ids:
            replay(saver, thread_id, script)


def measure(name: str, url: str, workers: int, threads: int, calls: int) -> float:
    """Seconds in which all workers have written all threads."""
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Barrier(workers + 1)
    ids = [f"task-{number}" for number in range(threads)]
    running = [
        spawn.Process(target=work, args=(name, url, ids[at::workers], calls, ready), daemon=True)
        for at in range(workers)
    ]
    with SAVERS[name].from_conn_string(url) as saver:
        saver.setup()  # PostgresSaver's is not made for several workers at once
    for process in running:
        process.start()
    ready.wait(timeout=60)
    start = time.perf_counter()
    for process in running:
        process.join()
    took = time.perf_counter() - start
    if any(process.exitcode for process in running):
        raise RuntimeError(f"a worker of {name} failed")
    return took


def main() -> int:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--workers", type=int, default=16, help="default: %(default)s")
    option("--threads", type=int, default=1000, help="default: %(default)s")
    option("--calls", type=numbers, default="12", help="of each thread; default: %(default)s")
    option("--repeats", type=int, default=3, help="default: %(default)s")
    option("--markdown", action="store_true", help="print a markdown table")
    given = parser.parse_args()
    lines = []
    with progress(len(given.calls) * given.repeats * len(SAVERS)) as report, server() as url:
        for calls in given.calls:
            puts = given.threads * sum(method == "put" for method, _ in record(calls))
            rates: dict[str, list[float]] = {name: [] for name in SAVERS}
            live: dict[str, int] = {}
            for _ in range(given.repeats):
                for name in SAVERS:
                    with new_database(url) as database:
                        took = measure(name, database, given.workers, given.threads, calls)
                        live[name] = stored(database)[1]
                    rates[name].append(puts / took)
                    report(f"{calls} calls, {name}: {puts / took:,.0f} puts/s", True)
            base, size = middle(rates["PostgresSaver"]), live["PostgresSaver"]
            for name, found in rates.items():
                sizes = (f"{live[name]:,} B", ratio(live[name], size))
                rate = (f"{middle(found):,.0f}", ratio(middle(found), base))
                lines.append((name, calls, f"{puts:,}", *rate, *sizes))
    head = (
        f"{given.workers} workers",
        "calls",
        "puts",
        "puts/s",
        "ratio",
        "live",
        "live ratio",
    )
    print(table(head, lines, markdown=given.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
