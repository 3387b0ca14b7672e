"""Measure how long the event loop stands still while agents write through one checkpointer.

Eight ReAct loops of 2 KB tool outputs run at once on one event loop, with one saver, each on a
thread of its own. Beside them a ticker asks to be woken every millisecond; what it is late by is
the time in which nothing else on the loop could run. That is the graphs' own work too, all of
Python on the loop: compare with `no checkpointer`, and with the bare savers. Each row runs in a
process of its own.

    longest   milliseconds that the ticker was late at most; median of the repeats
    99 %      and in all but one of a hundred ticks; likewise
    wall      seconds of all loops; likewise

Example:
    python bench/stall.py --calls 20 --repeats 1
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import MessagesState
from react_loop import REQUEST, progress, react
from servers import new_database, server
from tables import middle, table

from handoff_graph import HandoffSaver

SIZE = 2048
TICK = 0.001  # seconds
IDLE = 2.0  # seconds that the idle loop is watched


class Row(NamedTuple):
    """A line of the table."""

    label: str
    saver: type[Any] | None
    kind: str  # of the database; none for an idle loop


ROWS = {
    "idle": Row("idle loop", None, ""),
    "none": Row("no checkpointer", None, "memory"),
    "sqlite": Row("AsyncSqliteSaver", AsyncSqliteSaver, "sqlite"),
    "handoff-sqlite": Row("HandoffSaver, SQLite", HandoffSaver, "sqlite"),
    "postgres": Row("AsyncPostgresSaver", AsyncPostgresSaver, "postgres"),
    "handoff-postgres": Row("HandoffSaver, PostgreSQL", HandoffSaver, "postgres"),
}


class Measured(NamedTuple):
    """What one run of a row showed, in milliseconds and seconds."""

    longest: float
    most: float
    wall: float


async def late(found: list[float], over: asyncio.Event) -> None:
    """Note by how many seconds each tick came late."""
    while not over.is_set():
        asked = time.perf_counter()
        await asyncio.sleep(TICK)
        found.append(max(0.0, time.perf_counter() - asked - TICK))


@asynccontextmanager
async def opened(saver: type[Any] | None, url: str) -> AsyncIterator[Any]:
    """A saver with its tables, so that setting up is not measured."""
    async with nullcontext() if saver is None else saver.from_conn_string(url) as found:
        if saver in (AsyncSqliteSaver, AsyncPostgresSaver):
            await found.setup()
        yield found


async def loops(name: str, url: str, threads: int, calls: int) -> Measured:
    """Run all loops of a row beside the ticker."""
    row, found, over = ROWS[name], list[float](), asyncio.Event()
    graphs = [react(MessagesState, calls, SIZE, Path()) for _ in range(threads)]
    async with opened(row.saver, url) as saver:
        compiled = [graph.compile(checkpointer=saver) for graph in graphs]
        gc.collect()
        start = time.perf_counter()
        ticker = asyncio.create_task(late(found, over))
        if row.kind:
            asked = {"messages": [HumanMessage(REQUEST)]}
            runs = (
                graph.ainvoke(
                    asked,
                    {
                        "configurable": {"thread_id": f"task-{number}"},
                        "recursion_limit": 1_000_000,
                    },
                )
                for number, graph in enumerate(compiled)
            )
            await asyncio.gather(*runs)
        else:
            await asyncio.sleep(IDLE)
        wall = time.perf_counter() - start
        over.set()
        await ticker
    found.sort()
    return Measured(1000 * found[-1], 1000 * found[int(0.99 * (len(found) - 1))], wall)


def measure(name: str, url: str, threads: int, calls: int) -> Measured:
    """Run one row from start to end. Called in a process of its own."""
    return asyncio.run(loops(name, url, threads, calls))


def measure_apart(name: str, server_url: str, threads: int, calls: int) -> Measured:
    """`measure` in a fresh process, on a database of its own."""
    fresh = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="handoff-bench-") as folder,
        new_database(server_url)
        if ROWS[name].kind == "postgres"
        else nullcontext(str(Path(folder) / "bench.db")) as url,
        ProcessPoolExecutor(1, mp_context=fresh) as pool,
    ):
        return pool.submit(measure, name, url, threads, calls).result()


def main() -> int:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--threads", type=int, default=8, help="default: %(default)s")
    option("--calls", type=int, default=50, help="of each thread; default: %(default)s")
    option("--repeats", type=int, default=3, help="default: %(default)s")
    option("--markdown", action="store_true", help="print a markdown table")
    given = parser.parse_args()
    took: dict[str, list[Measured]] = {name: [] for name in ROWS}
    with progress(given.repeats * len(ROWS)) as report, server() as url:
        for _ in range(given.repeats):
            for name, found in took.items():
                found.append(measure_apart(name, url, given.threads, given.calls))
                report(f"{ROWS[name].label}: {found[-1].longest:.1f} ms", True)
    lines = [
        (
            ROWS[name].label,
            f"{middle([one.longest for one in found]):.1f} ms",
            f"{middle([one.most for one in found]):.1f} ms",
            f"{middle([one.wall for one in found]):.2f} s",
        )
        for name, found in took.items()
    ]
    head = (f"{given.threads} threads, {given.calls} calls each", "longest", "99 %", "wall")
    print(table(head, lines, markdown=given.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
