"""P4: kill -9 anywhere; checkpoint, journal and ledger agree, and the work comes out the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("mode", "durability", "points"),
    [("alone", "sync", 14), ("alone", "async", 10), ("nodes", "sync", 14), ("nodes", "async", 10)],
)
def test_p4_kill_at_random_points_and_resume(
    tmp_path: Path, mode: str, durability: str, points: int
) -> None:
    command = [sys.executable, str(Path(__file__).parent / "crash_driver.py")]
    done = subprocess.run(
        [*command, str(tmp_path), mode, durability, str(points), "20261201"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == points
    assert sum(row["killed"] for row in rows) >= points - 1
    for row in rows:
        assert row["after_kill"] == [], row
        assert row["resumed"] == 0, (row, done.stderr)
        assert row["after_resume"] == [], row
        assert row["same"], row
