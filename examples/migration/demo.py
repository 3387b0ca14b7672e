"""Three days, three processes, one task: `make demo`.

Day 1 is killed with SIGKILL in the middle of a fix. Days 2 and 3 are started with nothing but
the thread id. At the end the demo checks the cluster, not the agent's word: no cutover while
the lag was too high, no work done twice that was recorded as done, no step missing from the
ledger. It exits with 1 if any of that fails.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from agent import REQUESTS, THREAD
from cluster import FLAGGED, TABLES, Cluster

HERE = Path(__file__).resolve().parent


def day(number: int, folder: Path) -> None:
    """Run one day's process to its end; day 1 is killed when it is in the middle of a fix."""
    print(f"\n== day {number} " + "=" * 60)
    if number in REQUESTS:
        print(f"person: {REQUESTS[number]}")
    command = [sys.executable, str(HERE / "agent.py"), str(number)]
    with subprocess.Popen(
        command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        print(f"agent:  {line}")
        if number == 1:
            os.kill(process.pid, signal.SIGKILL)
        code = process.wait()
    print(f"        (process {'killed with SIGKILL' if code == -signal.SIGKILL else 'ended'})")
    expected = -signal.SIGKILL if number == 1 else 0
    if code != expected:
        sys.exit(f"day {number} ended with code {code}, not {expected}")


def handoff(verb: str, folder: Path) -> None:
    """Run the `handoff` command, as a person would."""
    arguments = [] if verb == "list" else [THREAD]
    print(f"\n$ handoff {' '.join([verb, *arguments])}", flush=True)
    subprocess.run(
        [sys.executable, "-m", "handoff_graph", verb, *arguments, "--db", "handoff.db"],
        cwd=folder,
        check=True,
    )


def problems(folder: Path, ledger: str) -> list[str]:
    """What went wrong, by the cluster's own log and the ledger."""
    operations, violations = Cluster(folder / "cluster.db").report()
    found = [f"the cutover was tried at a lag of {lag}s" for lag in violations]
    wanted = [("audit_schema", table) for table in TABLES]
    wanted += [("fix_table", table) for table in FLAGGED]
    wanted.append(("run_cutover", ""))
    for name, target in wanted:
        count = operations.get((name, target), 0)
        if count != 1:
            found.append(f"{name}({target}) was carried out {count} times")
    steps = (
        "Schema audit complete",
        *(f"fix_table(table={table}) -> fixed" for table in FLAGGED),
        "run_cutover() -> production now runs in us-west-2b",
        "Do NOT run the cutover script until replication lag is under 2s.",
        "status: done",
    )
    found += [f"the ledger lacks: {step}" for step in steps if step not in ledger]
    return found


def main() -> None:
    """Run all three days in a temporary folder and check what came of them."""
    with tempfile.TemporaryDirectory(prefix="handoff-demo-") as name:
        folder = Path(name)
        day(1, folder)
        handoff("resume", folder)
        day(2, folder)
        handoff("resume", folder)
        day(3, folder)
        handoff("list", folder)
        ledger = (folder / "ledger" / f"{THREAD}.md").read_text()
        print(f"\n$ cat ledger/{THREAD}.md\n{ledger}")
        size = (folder / "handoff.db").stat().st_size
        print(f"database: {size / 1024:.0f} KiB")
        failed = problems(folder, ledger)
    for problem in failed:
        print(f"FAILED: {problem}", file=sys.stderr)
    if failed:
        sys.exit(1)
    print("all three days checked: cutover in time, nothing done twice, every step in the ledger")


if __name__ == "__main__":
    main()
