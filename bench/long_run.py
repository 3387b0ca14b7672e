"""Measure whether a superstep and a resume cost the same after 10,000 tool calls as after 100.

HandoffSaver alone and with the nodes, on SQLite, on the agent of `react_loop.py` with 2 KB tool
outputs. Two tables. One run of the largest number of calls, with:

    database, wall  as in `react_loop.py`
    early, late     milliseconds inside the checkpointer for a superstep: of the supersteps 100
                    to 500, and of the 400 up to step 10,000 (or to the end). Median of blocks of
                    20 supersteps, each long enough to hold a fold

and one run for each number of calls, with the milliseconds of a resume: to connect, compile
and `get_state` with its messages, in the median. Ratios near 1 say that the costs are flat;
times depend on the machine. With HandoffSaver alone the running graph holds its whole transcript
and LangGraph's reducer copies it at each step, so that row can take more than ten minutes.

Example:
    python bench/long_run.py --calls 100,1000
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from langchain_core.messages import HumanMessage
from react_loop import (
    ANSWER,
    CONFIG,
    REQUEST,
    RESUMES,
    ROWS,
    TIMED,
    numbers,
    opened,
    progress,
    resume,
)
from tables import ratio, table

OURS = ("handoff", "handoff-nodes")
BLOCK = 20  # supersteps: ten calls of the loop, so each block holds a fold
WINDOW = 400
EARLY, LATE = 100, 10_000
SIZE = 2048


class Run(NamedTuple):
    """What one run cost; `early` and `late` are 0 where it was too short for them."""

    database: int
    wall: float
    early: float
    late: float
    resume: float


def stepped(saver: type[Any], steps: list[float]) -> type[Any]:
    """A subclass of a saver that adds up the seconds spent in it, one sum per `put`."""
    inside = threading.local()

    def on_clock(name: str) -> Callable[..., Any]:
        original = getattr(saver, name)

        def method(*args: Any, **options: Any) -> Any:
            if getattr(inside, "busy", False):
                return original(*args, **options)
            inside.busy, start = True, time.perf_counter()
            try:
                return original(*args, **options)
            finally:
                inside.busy = False
                steps[-1] += time.perf_counter() - start
                if name == "put":
                    steps.append(0.0)

        return method

    methods = {name: on_clock(name) for name in TIMED if name != "list"}
    return type(f"Stepped{saver.__name__}", (saver,), methods)


def window(steps: list[float], start: int) -> float:
    """Milliseconds of a superstep in this stretch of the run."""
    stretch = steps[start : start + WINDOW]
    sums = [sum(stretch[at : at + BLOCK]) for at in range(0, len(stretch) - BLOCK + 1, BLOCK)]
    return 1000 * median(sums) / BLOCK if sums else 0.0


def measure(name: str, calls: int) -> Run:
    """One run. Called in a process of its own.

    Durability is "sync": no superstep then waits inside the saver for another's turn.
    """
    row, steps = ROWS[name], [0.0]
    assert row.saver is not None
    with tempfile.TemporaryDirectory(prefix="handoff-bench-") as root:
        folder = Path(root) / "database"
        folder.mkdir()
        builder = row.graph(calls, SIZE, Path(root) / "ledger")
        with opened(stepped(row.saver, steps), folder) as saver:
            graph = builder.compile(checkpointer=saver)
            start = time.perf_counter()
            end = graph.invoke({"messages": [HumanMessage(REQUEST)]}, CONFIG, durability="sync")
            wall = time.perf_counter() - start
        if end["messages"][-1].content != ANSWER:
            raise RuntimeError("the loop ended early")
        resumes = [resume(row.saver, builder, folder) for _ in range(RESUMES)]
        used = sum(file.stat().st_size for file in folder.iterdir())
    late = min(LATE, len(steps) - 1) - WINDOW
    return Run(used, wall, window(steps, EARLY), window(steps, max(late, 0)), median(resumes))


def render(found: dict[tuple[int, str], Run], *, markdown: bool) -> str:
    """Both tables."""
    most, least = max(calls for calls, _ in found), min(calls for calls, _ in found)
    names = [name for calls, name in found if calls == most]
    long = []
    for name in names:
        run = found[most, name]
        times = (f"{run.early:.2f} ms", f"{run.late:.2f} ms", ratio(run.late, run.early))
        long.append((ROWS[name].label, f"{run.database:,} B", f"{run.wall:,.1f} s", *times))
    resumes = []
    for (calls, name), run in found.items():
        base = found[least, name]
        sizes = (f"{run.database:,} B", ratio(run.database, base.database))
        times = (f"{run.resume:.1f} ms", ratio(run.resume, base.resume))
        resumes.append((ROWS[name].label, f"{calls:,}", *sizes, *times))
    head = (f"{most:,} calls", "database", "wall", "early", "late", "late/early")
    by_calls = ("row", "calls", "database", f"/{least:,}", "resume", f"/{least:,}")
    shown = (table(head, long, markdown=markdown), table(by_calls, resumes, markdown=markdown))
    return "\n\n".join(shown)


def main() -> int:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--calls", type=numbers, default="100,1000,10000", help="default: %(default)s")
    option("--rows", default=",".join(OURS), help="default: %(default)s")
    option("--markdown", action="store_true", help="print markdown tables")
    given = parser.parse_args()
    jobs = list(product(given.calls, given.rows.split(",")))
    found: dict[tuple[int, str], Run] = {}
    with progress(len(jobs)) as report:
        for calls, name in jobs:
            report(f"{calls:,} calls, {name}", False)
            fresh = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(1, mp_context=fresh) as pool:
                found[calls, name] = pool.submit(measure, name, calls).result()
            report(f"{calls:,} calls, {name}: {found[calls, name].wall:.1f} s", True)
    print(render(found, markdown=given.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
