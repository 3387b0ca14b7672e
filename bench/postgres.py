"""Measure the ReAct loop of `react_loop.py` on PostgreSQL.

Rows:

    postgres       PostgresSaver, messages on the usual `add_messages` channel
    delta          PostgresSaver, messages on a `DeltaChannel`
    handoff        HandoffSaver alone: the graph of row `postgres`, unchanged
    handoff-nodes  HandoffSaver and `add_handoff`: the same graph with the nodes and a ledger

Each row gets a process and a database of its own, on a server started for the bench (or on the
one that HANDOFF_TEST_POSTGRES_URL names). Columns as in `react_loop.py`, but for

    tables  bytes of all tables and indexes, with the dead rows that a VACUUM frees later
    live    the same without them

Example:
    python bench/postgres.py --calls 100,300 --rows delta,handoff
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import MessagesState
from react_loop import (
    ANSWER,
    CONFIG,
    REQUEST,
    RESUMES,
    DeltaState,
    Graph,
    numbers,
    progress,
    react,
    react_with_nodes,
    timed,
)
from servers import new_database, server, stored
from tables import ratio, table

from handoff_graph import HandoffSaver

SIZE = 2048
ROWS: dict[str, tuple[str, type[Any], Any]] = {
    "postgres": ("PostgresSaver", PostgresSaver, partial(react, MessagesState)),
    "delta": ("PostgresSaver, DeltaChannel", PostgresSaver, partial(react, DeltaState)),
    "handoff": ("HandoffSaver", HandoffSaver, partial(react, MessagesState)),
    "handoff-nodes": ("HandoffSaver + nodes", HandoffSaver, react_with_nodes),
}
HEAD = ("row", "calls", "tables", "live", "wall", "saver", "resume")
RATIOS = ("live/postgres", "live/delta", "wall/delta", "resume/delta")


class Cost(NamedTuple):
    """What one run cost: bytes, seconds, and milliseconds of a resume."""

    tables: int
    live: int
    wall: float
    saver: float
    resume: float


@contextmanager
def opened(saver: type[Any], url: str) -> Iterator[Any]:
    """A saver on this database, with its tables."""
    with saver.from_conn_string(url) as opening:
        opening.setup()
        yield opening


def resume(saver_class: type[Any], builder: Graph, url: str) -> float:
    """Milliseconds from no connection at all to the thread's messages."""
    start = time.perf_counter()
    with saver_class.from_conn_string(url) as saver:
        messages = builder.compile(checkpointer=saver).get_state(CONFIG).values["messages"]
        took = 1000 * (time.perf_counter() - start)
    if messages[-1].content != ANSWER:
        raise RuntimeError("the newest message was lost")
    return took


def measure(name: str, calls: int, url: str) -> Cost:
    """One run. Called in a process of its own."""
    (_, saver_class, graph), spent = ROWS[name], list[float]()
    with tempfile.TemporaryDirectory(prefix="handoff-bench-") as folder:
        builder = graph(calls, SIZE, Path(folder))
        with opened(timed(saver_class, spent), url) as saver:
            compiled = builder.compile(checkpointer=saver)
            start = time.perf_counter()
            end = compiled.invoke({"messages": [HumanMessage(REQUEST)]}, CONFIG)
            wall = time.perf_counter() - start
        if end["messages"][-1].content != ANSWER:
            raise RuntimeError("the loop ended early")
        resumes = [resume(saver_class, builder, url) for _ in range(RESUMES)]
    return Cost(*stored(url), wall, sum(spent), median(resumes))


def render(found: dict[tuple[int, str], Cost], *, markdown: bool) -> str:
    """The table."""
    lines = []
    for (calls, name), cost in found.items():
        ratios = []
        for column, base in (title.split("/") for title in RATIOS):
            other = found.get((calls, base))
            ratios.append(ratio(getattr(cost, column), getattr(other, column, None)))
        seconds = (f"{cost.wall:.2f} s", f"{cost.saver:.2f} s", f"{cost.resume:.1f} ms")
        sizes = (f"{cost.tables:,} B", f"{cost.live:,} B")
        lines.append((ROWS[name][0], f"{calls:,}", *sizes, *seconds, *ratios))
    return table((*HEAD, *RATIOS), lines, markdown=markdown)


def main() -> int:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--calls", type=numbers, default="100,300,1000", help="default: %(default)s")
    option("--rows", default=",".join(ROWS), help="default: all")
    option("--markdown", action="store_true", help="print a markdown table")
    given = parser.parse_args()
    jobs = list(product(given.calls, given.rows.split(",")))
    found: dict[tuple[int, str], Cost] = {}
    fresh = multiprocessing.get_context("spawn")
    with progress(len(jobs)) as report, server() as url:
        for calls, name in jobs:
            report(f"{calls:,} calls, {name}", False)
            with new_database(url) as database, ProcessPoolExecutor(1, mp_context=fresh) as pool:
                found[calls, name] = pool.submit(measure, name, calls, database).result()
            report(f"{calls:,} calls, {name}: {found[calls, name].wall:.1f} s", True)
    print(render(found, markdown=given.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
