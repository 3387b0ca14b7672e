"""Measure what large tool outputs cost: 1 KB to 1 MB each, ten calls in the working tail.

The agent of `react_loop.py`, one row per checkpointer and channel of the messages:

    delta                SqliteSaver, messages on a `DeltaChannel`: what the others are held against
    handoff              HandoffSaver alone, on the usual `add_messages` channel
    handoff-nodes        HandoffSaver and `add_handoff`, on that channel
    handoff-delta        HandoffSaver alone, on a `DeltaChannel`
    handoff-nodes-delta  HandoffSaver and `add_handoff`, on a `DeltaChannel`

With 10 calls (the default; a fold comes after the tenth) everything lies in the tail until the
last step; with 30 there are three folds. Columns:

    database  bytes of the database's files, after closing it
    written   bytes that the process handed to the operating system, temporary files and log too
    saver     milliseconds inside the checkpointer, median of the repeats

and each as a multiple of row `delta`. Bytes hardly depend on the machine, times do; their
ratios less so.

Example:
    python bench/tool_outputs.py --sizes 1024,102400 --calls 10
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import MessagesState
from react_loop import (
    ANSWER,
    CONFIG,
    EVERY,
    REQUEST,
    DeltaState,
    Graph,
    Row,
    numbers,
    opened,
    progress,
    react,
    timed,
)
from tables import middle, ratio, table

from handoff_graph import HandoffSaver, add_handoff


def with_nodes(schema: type, calls: int, size: int, ledger: Path) -> Graph:
    """The loop with the nodes wired in."""
    return add_handoff(react(schema, calls, size, ledger), ledger=ledger, every=EVERY)


PLAIN, DELTA = MessagesState, DeltaState
ROWS = {
    "delta": Row("SqliteSaver, DeltaChannel", SqliteSaver, partial(react, DELTA)),
    "handoff": Row("HandoffSaver", HandoffSaver, partial(react, PLAIN)),
    "handoff-nodes": Row("HandoffSaver + nodes", HandoffSaver, partial(with_nodes, PLAIN)),
    "handoff-delta": Row("HandoffSaver, DeltaChannel", HandoffSaver, partial(react, DELTA)),
    "handoff-nodes-delta": Row(
        "HandoffSaver + nodes, DeltaChannel", HandoffSaver, partial(with_nodes, DELTA)
    ),
}
HEAD = ("output", "calls", "row", "database", "written", "saver", "db", "written/", "saver/")


class Cost(NamedTuple):
    """What one run cost."""

    database: int
    written: int
    saver: float


def written() -> int:
    """Bytes this process has handed to the operating system so far; 0 where it does not say."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    return int(next(line.split()[1] for line in lines if line.startswith("wchar")))


def measure(name: str, calls: int, size: int) -> Cost:
    """One run. Called in a process of its own."""
    row, spent = ROWS[name], list[float]()
    with tempfile.TemporaryDirectory(prefix="handoff-bench-") as root:
        folder = Path(root) / "database"
        folder.mkdir()
        graph = row.graph(calls, size, Path(root) / "ledger")
        before = written()
        assert row.saver is not None
        with opened(timed(row.saver, spent), folder) as saver:
            compiled = graph.compile(checkpointer=saver)
            end = compiled.invoke({"messages": [HumanMessage(REQUEST)]}, CONFIG)
            if end["messages"][-1].content != ANSWER:
                raise RuntimeError("the loop ended early")
            start = time.perf_counter()
        closing = time.perf_counter() - start
        used = sum(file.stat().st_size for file in folder.iterdir())
        return Cost(used, written() - before, 1000 * (sum(spent) + closing))


def measured(name: str, calls: int, size: int, repeats: int) -> Cost:
    """The medians of some runs, each in a fresh process."""
    runs = []
    for _ in range(repeats):
        fresh = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=fresh) as pool:
            runs.append(pool.submit(measure, name, calls, size).result())
    return Cost(
        int(middle([run.database for run in runs])),
        int(middle([run.written for run in runs])),
        middle([run.saver for run in runs]),
    )


def render(found: dict[tuple[int, int, str], Cost], *, markdown: bool) -> str:
    """The table."""
    lines = []
    for (size, calls, name), cost in found.items():
        base = found.get((size, calls, "delta"))
        absolute = (f"{cost.database:,} B", f"{cost.written:,} B", f"{cost.saver:,.0f} ms")
        ratios = [ratio(a, b) for a, b in zip(cost, base, strict=True)] if base else [""] * 3
        lines.append((f"{size:,} B", calls, ROWS[name].label, *absolute, *ratios))
    return table(HEAD, lines, markdown=markdown)


def main() -> int:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--sizes", type=numbers, default="1024,10240,102400,1048576", help="%(default)s")
    option("--calls", type=numbers, default="10,30", help="default: %(default)s")
    option("--repeats", type=int, default=3, help="default: %(default)s")
    option("--rows", default=",".join(ROWS), help="default: all")
    option("--markdown", action="store_true", help="print a markdown table")
    given = parser.parse_args()
    jobs = list(product(given.sizes, given.calls, given.rows.split(",")))
    found: dict[tuple[int, int, str], Cost] = {}
    with progress(len(jobs)) as report:
        for size, calls, name in jobs:
            text = f"{size:,} B, {calls} calls, {name}"
            report(text, False)
            found[size, calls, name] = measured(name, calls, size, given.repeats)
            report(text, True)
    print(render(found, markdown=given.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
