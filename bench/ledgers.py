"""Measure what an export costs beside many other ledgers, in one folder and spread over 256.

The folder is filled with empty files of as many threads' names, then one ledger is exported
again and again, each time as a new revision. Columns are medians in milliseconds; the ratio is
that among the most files over that among the fewest.

Example:
    python bench/ledgers.py --threads 100,10000
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from react_loop import numbers, progress
from tables import middle, ratio, table

from handoff_graph import LedgerExporter, merge, task_update

RUNS = 30


def measure(threads: int, spread: bool) -> float:
    """Milliseconds of one export."""
    spent = []
    with tempfile.TemporaryDirectory(prefix="handoff-bench-") as root:
        exporter = LedgerExporter(root, spread=spread)
        for number in range(threads):
            path = exporter.path(f"thread-{number}")
            path.parent.mkdir(exist_ok=True)
            path.touch()
        state = merge({}, task_update(objective="Measure.", done=[f"step {n}" for n in range(10)]))
        for revision in range(1, RUNS + 1):
            now = {**state, "revision": revision}
            start = time.perf_counter()
            done = exporter.export(now, thread="measured", checkpoint="c", at=state["updated"])
            spent.append(1000 * (time.perf_counter() - start))
            if done.error is not None or not Path(done.path).exists():
                raise RuntimeError(f"nothing was exported: {done.error}")
    return middle(spent)


def main() -> int:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=numbers, default="1000,100000", help="%(default)s")
    parser.add_argument("--markdown", action="store_true", help="print a markdown table")
    given = parser.parse_args()
    rows = []
    with progress(2 * len(given.threads)) as report:
        for spread in (False, True):
            found = []
            for threads in given.threads:
                label = f"{threads:,} ledgers, {'spread' if spread else 'one folder'}"
                report(label, False)
                found.append(measure(threads, spread))
                report(label, True)
            times = [f"{ms:.2f} ms" for ms in found]
            rows.append(
                ("256 subfolders" if spread else "one folder", *times, ratio(found[-1], found[0]))
            )
    head = ("ledgers", *(f"{n:,}" for n in given.threads), "ratio")
    print(table(head, rows, markdown=given.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
