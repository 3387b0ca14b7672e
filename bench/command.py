"""Measure `handoff list` on 1,000 threads against an empty Python program.

The threads are written by HandoffSaver, one folded checkpoint each. Both programs run in turns,
in processes of their own, and the medians are printed with their ratio, which hardly depends on
the machine.

Example:
    python bench/command.py --threads 100
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from react_loop import REQUEST, progress
from tables import middle, ratio, table

from handoff_graph import HandoffSaver, merge, task_update

HANDOFF = [sys.executable, "-m", "handoff_graph"]
NOTHING = [sys.executable, "-c", "pass"]


def fill(database: Path, threads: int) -> None:
    """Write so many threads, each with a task."""
    with HandoffSaver.from_conn_string(str(database)) as saver:
        for number in range(threads):
            update = task_update(
                by="agent",
                objective=f"{REQUEST} ({number})",
                title=f"Audit of archive {number}",
                status="in_progress",
                owner=f"agent-session-{number % 16}",
                done=[{"text": f"report {at} is audited"} for at in range(5)],
            )
            values = {"task": merge({}, update), "messages": [HumanMessage(REQUEST, id="first")]}
            checkpoint = {**empty_checkpoint(), "channel_values": values}
            checkpoint["channel_versions"] = dict.fromkeys(values, "1")  # type: ignore[typeddict-item]
            config: Any = {"configurable": {"thread_id": f"task-{number}", "checkpoint_ns": ""}}
            told: Any = {"source": "loop", "step": 1}
            saver.put(config, checkpoint, told, {"task": "1", "messages": "1"})  # type: ignore[arg-type]


def seconds(command: list[str]) -> tuple[float, int]:
    """How long a program takes, and how many lines it prints."""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - start, done.stdout.count(b"\n")


def main() -> int:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--threads", type=int, default=1000, help="default: %(default)s")
    option("--repeats", type=int, default=15, help="default: %(default)s")
    option("--markdown", action="store_true", help="print a markdown table")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="handoff-bench-") as folder:
        database = Path(folder) / "bench.db"
        fill(database, given.threads)
        db = ["--db", str(database)]
        commands = {
            "python -c pass": NOTHING,
            "handoff --version": [*HANDOFF, "--version"],
            f"handoff list, {given.threads:,} threads": [*HANDOFF, "list", *db],
            f"handoff list --json, {given.threads:,} threads": [*HANDOFF, "list", "--json", *db],
            "handoff show": [*HANDOFF, "show", "task-0", *db],
        }
        took: dict[str, list[float]] = {name: [] for name in commands}
        with progress(given.repeats) as report:
            for turn in range(given.repeats):
                for name, command in commands.items():
                    took[name].append(seconds(command)[0])
                report(f"turn {turn + 1}", True)
    base = middle(took["python -c pass"])
    rows = [
        (
            f"`{name}`" if given.markdown else name,
            f"{1000 * middle(t):.0f} ms",
            ratio(middle(t), base),
        )
        for name, t in took.items()
    ]
    print(table(("command", "median", "/python"), rows, markdown=given.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
