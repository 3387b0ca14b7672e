"""Kills a running agent with SIGKILL at chosen events, resumes it, and compares.

An event is an SQL statement about to run, or a step of the ledger export. Each run is a forked
child, so that a kill is real and cheap. Prints a JSON line per kill point; `test_crash` reads
them.   python crash_driver.py FOLDER MODE DURABILITY POINTS SEED
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents import build, config, request

from handoff_graph import HandoffSaver, add_handoff, catalog, journal
from handoff_graph.ledger import read_front_matter
from handoff_graph.reader import reader_on
from handoff_graph.task import is_task_state
from handoff_graph.transcript import briefing_revision, is_transcript

CALLS = 23
EVERY = 5


class Bomb:
    """Counts events and kills the process at one of them."""

    def __init__(self, at: int | None) -> None:
        self.at, self.seen = at, 0

    def tick(self, *_: object) -> None:
        self.seen += 1
        if self.seen == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def arm(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function with an event before it and one behind it."""

        def armed(*args: Any, **kwargs: Any) -> Any:
            self.tick()
            result = function(*args, **kwargs)
            self.tick()
            return result

        return armed


class Noting(HandoffSaver):
    """Notes, in a file outside the database, every checkpoint that `put` returned for."""

    notes: Path

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        result = super().put(config, checkpoint, metadata, new_versions)
        with self.notes.open("a") as file:
            file.write(checkpoint["id"] + "\n")
        return result


def run(folder: Path, mode: str, durability: Any, bomb: Bomb) -> None:
    """Start the agent, or go on where it was."""
    saver = Noting.from_conn_string(folder / "handoff.db", every=EVERY, ledger=folder / "ledger")
    saver.notes = folder / "notes.txt"
    builder = build(CALLS, per_turn=1 if mode == "alone" else 2)
    if mode == "nodes":
        add_handoff(builder, every=EVERY, ledger=folder / "ledger")
    graph = builder.compile(checkpointer=saver)
    saver.inner.conn.set_trace_callback(bomb.tick)
    for name in ("replace", "fsync", "open"):
        setattr(os, name, bomb.arm(getattr(os, name)))
    begun = graph.get_state(config()).created_at is not None
    graph.invoke(None if begun else request(), config(), durability=durability)
    saver.close()


def forked(work: Callable[[], None], meanwhile: Callable[[], None] = lambda: None) -> int:
    """Run something in a child, and something here; its exit status, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    meanwhile()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def disagreements(folder: Path) -> list[str]:
    """What does not fit together in a folder after its database was opened once more."""
    if not (folder / "handoff.db").exists():
        return []
    with HandoffSaver.from_conn_string(folder / "handoff.db", ledger=folder / "ledger") as saver:
        newest = saver.get_tuple(config())
    found = []
    conn = sqlite3.connect(folder / "handoff.db")
    if conn.execute("PRAGMA integrity_check").fetchone() != ("ok",):
        found.append("the database is damaged")
    head = reader_on(conn).ask(journal.head("t"))
    numbers = [entry.revision for entry in catalog.revisions(reader_on(conn), "t")]
    stored = newest.checkpoint["channel_values"] if newest else {}
    shown = max((_revision(value) for value in stored.values()), default=0)
    if numbers != list(range(1, len(numbers) + 1)):
        found.append(f"the journal has gaps: {numbers}")
    if (head.state["revision"] if head else 0) != len(numbers):
        found.append("head and journal differ")
    if head and reader_on(conn).ask(journal.state_at("t", "", len(numbers))) != head.state:
        found.append("the journal does not rebuild the head")
    if shown != len(numbers):
        found.append(f"the checkpoint shows revision {shown}, the journal {len(numbers)}")
    ledger = folder / "ledger" / "t.md"
    if head:
        front = read_front_matter(ledger.read_text()) if ledger.exists() else None
        if front is None or not front.intact or front.revision != len(numbers):
            found.append(f"the ledger shows {front}, the journal {len(numbers)}")
    notes = folder / "notes.txt"
    acknowledged = notes.read_text().split() if notes.exists() else []
    if acknowledged and (newest is None or newest.checkpoint["id"] < acknowledged[-1]):
        found.append("a checkpoint that put returned for is missing")
    conn.close()
    return found


def _revision(value: Any) -> int:
    if is_task_state(value):
        return int(value["revision"])
    return (briefing_revision(value) or 0) if is_transcript(value) else 0


TIMES = {"at", "from", "to", "updated", "stamps", "through", "anchor"}


def timeless(value: Any) -> Any:
    """A task state without what differs between two runs of the same work."""
    if isinstance(value, dict):
        return {key: timeless(inner) for key, inner in value.items() if key not in TIMES}
    if isinstance(value, list):
        return [timeless(inner) for inner in value]
    return value


def final_state(folder: Path) -> Any:
    conn = sqlite3.connect(folder / "handoff.db")
    head = reader_on(conn).ask(journal.head("t"))
    conn.close()
    assert head is not None
    return timeless(head.state)


def main() -> None:
    folder, mode, durability = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    points, seed = int(sys.argv[4]), int(sys.argv[5])
    whole = folder / "whole"
    whole.mkdir()
    count = folder / "count"

    def uninterrupted() -> None:
        bomb = Bomb(None)
        run(whole, mode, durability, bomb)
        count.write_text(str(bomb.seen))

    assert forked(uninterrupted) == 0
    expected, events = final_state(whole), int(count.read_text())
    random.seed(seed)
    for at in sorted(random.sample(range(1, events), points)):
        place = folder / f"at-{at}"
        place.mkdir()
        killed = forked(lambda at=at, place=place: run(place, mode, durability, Bomb(at)))
        after_kill = disagreements(place)
        resumed = forked(lambda place=place: run(place, mode, durability, Bomb(None)))
        row = {
            "at": at,
            "of": events,
            "killed": killed == -signal.SIGKILL,
            "after_kill": after_kill,
            "resumed": resumed,
            "after_resume": disagreements(place) if resumed == 0 else [],
            "same": resumed == 0 and final_state(place) == expected,
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
