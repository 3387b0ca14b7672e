"""P4: kill -9 anywhere; checkpoint, journal and ledger agree, and the work comes out the same."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from databases import Database


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


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder in memory, where there is one: a killed process needs no disk to be real."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("kind", "mode", "ledger", "step"),
    [
        ("sqlite", "alone", "edited", 1),
        ("sqlite", "nodes", "plain", 1),
        ("postgres", "alone", "plain", 1),
        ("postgres", "nodes", "plain", 3),
    ],
)
def test_p4_kill_at_every_statement_and_every_step_of_the_export_around_a_fold(
    kind: str, mode: str, ledger: str, step: int, in_memory: Path, request: pytest.FixtureRequest
) -> None:
    """Nothing acknowledged is lost, nothing finished runs twice, and all of it agrees."""
    driver = str(Path(__file__).parent / "crash_points.py")
    command = [sys.executable, driver, str(in_memory), mode, ledger, str(step)]
    if kind == "postgres":
        server: Database = request.getfixturevalue("postgres")
        command.append(server.url)
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    print(f"{kind} {mode} {ledger}: {len(rows)} kill points")
    assert len(rows) > 60 // step
    for row in rows:
        assert row == {
            "at": row["at"],
            "killed": True,
            "resumed": 0,
            "lost": [],
            "reopened": [],
            "ended": [],
            "same": True,
            "reruns": [],
            "words": True,
        }, done.stderr
