"""Kills a running agent at every event around one fold, resumes it, and checks each time.

An event is a statement about to run (SQLite), a round trip to the server about to begin
(PostgreSQL), or a step of the ledger export, before and after. The agent is brought once to
the tool call behind which the fold comes; each kill point starts from a copy of that, and the
last one is where the next tool call begins. Every
run is a forked child, which spares the imports; the parent never starts a thread. A child
tells what it has run and what the saver has acknowledged through a pipe, which outlives it.
Prints a JSON line per kill point.

python crash_points.py FOLDER MODE plain|edited STEP [URL]   (kills at every STEP-th event)
"""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import signal
import sqlite3
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
from agents import build, config, highest, lookup, request
from crash_driver import Bomb, forked, timeless
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg import sql

from handoff_graph import HandoffSaver, add_handoff
from handoff_graph.ledger import read_front_matter
from handoff_graph.task import is_task_state
from handoff_graph.transcript import briefing_revision, is_transcript

CALLS, EVERY = 5, 2
STOP = "k4"
"""The tool call behind which the fold comes: the second one, so that it has one to supersede."""
HAND = "\n- words of a person\n"
MOST = 2_000
EDITED = sys.argv[3:4] == ["edited"]


@dataclass(frozen=True)
class Place:
    """Where one kill point happens."""

    folder: Path
    url: str
    thread: str

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    @property
    def is_postgres(self) -> bool:
        return self.url.startswith("postgresql")


class Noting(HandoffSaver):
    """Tells of everything that it has acknowledged, before anybody else hears of it."""

    tell: Callable[[str], None]

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        result = super().put(config, checkpoint, metadata, new_versions)
        self.tell(f"put {checkpoint['id']}")
        return result

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        super().put_writes(config, writes, task_id, task_path)
        for message in (m for _, value in writes if isinstance(value, list) for m in value):
            if isinstance(message, ToolMessage):
                self.tell(f"wrote tools:{message.tool_call_id.replace('call-', 'k')}")
            elif isinstance(message, AIMessage):
                keys = [call["args"]["key"] for call in message.tool_calls]
                self.tell(f"wrote agent:{keys[0] if keys else f'k{CALLS + 1}'}")


class Turns(list[Any]):
    """What the scripted model is given; tells of each of its runs."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell

    def append(self, messages: list[BaseMessage]) -> None:
        self._tell(f"ran agent:k{highest(messages) + 1}")


class TornFile:
    """A text file that reaches the disk in two halves, with an event in between."""

    def __init__(self, file: Any, bomb: Bomb) -> None:
        self._file, self._bomb = file, bomb

    def write(self, text: str) -> None:
        self._file.write(text[: len(text) // 2])
        self._file.flush()
        self._bomb.tick()
        self._file.write(text[len(text) // 2 :])

    def __enter__(self) -> TornFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def arm(saver: HandoffSaver, bomb: Bomb) -> None:
    """Have every statement and every step of an export be an event."""
    conn = saver.inner.conn
    if isinstance(conn, sqlite3.Connection):
        conn.set_trace_callback(bomb.tick)
    else:
        # Everything that a connection sends passes through here, BEGIN and COMMIT too.
        wait = psycopg.Connection.wait

        def armed(*args: Any, **kwargs: Any) -> Any:
            bomb.tick()
            return wait(*args, **kwargs)

        setattr(psycopg.Connection, "wait", armed)  # noqa: B010
    fdopen = os.fdopen
    for name in ("replace", "fsync", "open", "rename", "mkdir"):
        setattr(os, name, bomb.arm(getattr(os, name)))
    setattr(os, "fdopen", lambda *a, **k: TornFile(fdopen(*a, **k), bomb))  # noqa: B010


def opened(place: Place, **options: Any) -> Noting:
    """A saver; on PostgreSQL over one connection, as the checks of a pool are events too."""
    if place.is_postgres:
        conn = psycopg.connect(place.url, autocommit=True, prepare_threshold=0)
        return Noting(PostgresSaver(conn), **options)  # type: ignore[arg-type]
    return Noting.from_conn_string(place.url, **options)


def run(place: Place, mode: str, tell: Callable[[str], None], bomb: Bomb, stop: str = "") -> None:
    """Start the agent, or go on where it was; `stop` is the tool call that kills the process."""

    def tool(key: str) -> str:
        """Look a key up."""
        if key == stop:
            os.kill(os.getpid(), signal.SIGKILL)
        tell(f"ran tools:{key}")
        return lookup(key)

    tool.__name__ = "lookup"
    saver = opened(place, every=EVERY, ledger=place.ledger)
    saver.tell = tell
    builder = build(CALLS, tool=tool, seen=Turns(tell))
    if mode == "nodes":
        add_handoff(builder, every=EVERY, ledger=place.ledger)
    graph = builder.compile(checkpointer=saver)
    where = config(place.thread)
    if EDITED:
        arm(saver, bomb)  # opening puts the person's words aside
    tell(f"open {json.dumps([] if stop else disagreements(place, saver))}")
    if not EDITED:
        arm(saver, bomb)
    begun = graph.get_state(where).created_at is not None
    graph.invoke(None if begun else request(), where, durability="sync")
    bomb.at = None
    tell(f"end {json.dumps([disagreements(place, saver), timeless(saver.task_state(where))])}")
    saver.close()


def watched(work: Callable[[Callable[[str], None]], None]) -> tuple[int, list[tuple[str, str]]]:
    """Run something in a child; its exit status and what it told."""
    reader, writer = os.pipe()

    def child() -> None:
        os.close(reader)
        warnings.simplefilter("ignore")
        signal.alarm(60)
        work(lambda line: void(os.write(writer, line.encode() + b"\n")))

    code = forked(child, meanwhile=lambda: os.close(writer))
    with os.fdopen(reader) as lines:
        told = [line.rstrip("\n").partition(" ") for line in lines]
    return code, [(kind, rest) for kind, _, rest in told]


def void(_: object) -> None:
    """For the value of what is done for its effect."""


# -- what must agree ---------------------------------------------------------------------------


@cache
def server(url: str) -> psycopg.Connection[Any]:
    """The parent's connection: no child ever uses or closes it."""
    return psycopg.connect(url, autocommit=True)


def rows_of(place: Place, query: str, saver: HandoffSaver | None = None) -> list[tuple[Any, ...]]:
    """Read what is stored; on PostgreSQL in a child, over the saver's own connection."""
    if place.is_postgres and saver is not None:
        return list(saver.inner.conn.execute(query).fetchall())
    if place.is_postgres:
        return server(place.url).execute(query.encode()).fetchall()
    with closing(sqlite3.connect(place.url)) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return conn.execute(query).fetchall()


def disagreements(place: Place, saver: HandoffSaver) -> list[str]:
    """What does not fit together, once the thread has been read."""
    newest = saver.get_tuple(config(place.thread))
    head = saver.task_state(config(place.thread))
    where = f"WHERE thread_id = '{place.thread}'"
    query = f"SELECT revision, checkpoint_id FROM handoff_journal {where} ORDER BY revision"
    journal = rows_of(place, query, saver)
    query = f"SELECT revision, ledger_revision FROM handoff_threads {where}"
    threads = rows_of(place, query, saver)
    numbers = [row[0] for row in journal]
    stored = newest.checkpoint["channel_values"] if newest else {}
    shown = max((_revision(value) for value in stored.values()), default=0)
    found = []
    if numbers != list(range(1, len(numbers) + 1)):
        found.append(f"the journal has gaps: {numbers}")
    if (head or {"revision": 0})["revision"] != len(numbers) or shown != len(numbers):
        found.append(f"task at {head and head['revision']}, checkpoint at {shown}: {numbers}")
    if threads != ([(len(numbers), len(numbers))] if numbers else []):
        found.append(f"handoff_threads says {threads}, the journal {numbers}")
    if newest and journal and newest.checkpoint["id"] < journal[-1][1]:
        found.append("the newest revision's checkpoint is missing")
    path = place.ledger / f"{re.sub('[^a-z0-9]', '', place.thread)}.md"
    if numbers:
        front = read_front_matter(path.read_text()) if path.exists() else None
        if front is None or not front.intact or front.revision != len(numbers):
            found.append(f"the ledger shows {front}, the journal {numbers}")
    return found


def _revision(value: Any) -> int:
    if is_task_state(value):
        return int(value["revision"])
    return (briefing_revision(value) or 0) if is_transcript(value) else 0


def reruns(before: Sequence[tuple[str, str]], after: Sequence[tuple[str, str]]) -> list[str]:
    """Tasks that ran again though the saver had acknowledged their writes or checkpoint."""
    ran: set[str] = set()
    finished: set[str] = set()
    for kind, what in before:
        if kind == "ran":
            ran.add(what)
        elif kind == "wrote":
            finished.add(what)
        elif kind == "put":
            finished |= ran
    return [what for kind, what in after if kind == "ran" and what in finished]


def lost(place: Place, told: Sequence[tuple[str, str]]) -> list[str]:
    """Whether the newest checkpoint that `put` returned for, or one after it, is there."""
    acknowledged = [what for kind, what in told if kind == "put"]
    newest = rows_of(
        place, f"SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = '{place.thread}'"
    )[0][0]
    missing = acknowledged and (newest or "") < acknowledged[-1]
    return [f"put returned for {acknowledged[-1]}, there is {newest}"] if missing else []


# -- the kill points ---------------------------------------------------------------------------


def copied(base: Place, number: int) -> Place:
    """The prepared agent once more: a copied file, or copied rows under another thread id."""
    folder = base.folder.parent / f"at-{number}"
    if not base.is_postgres:
        shutil.copytree(base.folder, folder)
        return Place(folder, str(folder / Path(base.url).name), base.thread)
    thread = f"t{number}"
    folder.mkdir()
    (folder / "ledger").mkdir()
    text = (base.ledger / "t.md").read_text().replace("thread: t\n", f"thread: {thread}\n")
    (folder / "ledger" / f"{thread}.md").write_text(text)
    conn = server(base.url)
    with conn.transaction():
        tables = conn.execute(
            "SELECT table_name, array_agg(column_name::text) FROM information_schema.columns"
            " WHERE table_schema = 'public' GROUP BY 1 HAVING 'thread_id' = any("
            "array_agg(column_name::text))"
        ).fetchall()
        for table, columns in tables:
            names = sql.SQL(", ").join(map(sql.Identifier, sorted(set(columns) - {"thread_id"})))
            copy = sql.SQL("INSERT INTO {t} (thread_id, {n}) SELECT %s, {n} FROM {t}").format(
                t=sql.Identifier(table), n=names
            )
            conn.execute(copy + sql.SQL(" WHERE thread_id = %s"), (thread, base.thread))
    return Place(folder, base.url, thread)


def main() -> None:
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    (folder / "base").mkdir()
    gc.freeze()  # else a child copies every page that its first collection looks at
    url = sys.argv[5] if len(sys.argv) > 5 else str(folder / "base" / "handoff.db")
    base = Place(folder / "base", url, "t")
    killed, _ = watched(lambda tell: run(base, mode, tell, Bomb(None), stop=STOP))
    assert killed == -signal.SIGKILL
    with (base.ledger / "t.md").open("a") as file:
        file.write(HAND if EDITED else "")
    whole = copied(base, 0)
    code, told = watched(lambda tell: run(whole, mode, tell, Bomb(None)))
    assert code == 0
    _, expected = json.loads(told[-1][1])
    for number in range(1, MOST, int(sys.argv[4])):
        place, bomb = copied(base, number), Bomb(number)
        code, before = watched(lambda tell, p=place, b=bomb: run(p, mode, tell, b))
        if ("ran", f"tools:k{CALLS}") in before:
            assert number > 1
            return  # all that belongs to the fold is over
        kill_lost = lost(place, before)
        resumed, after = watched(lambda tell, p=place: run(p, mode, tell, Bomb(None)))
        end = json.loads(after[-1][1]) if resumed == 0 else [["did not end"], None]
        files = [path.read_text() for path in place.ledger.rglob("*.md")]
        row = {
            "at": number,
            "killed": code == -signal.SIGKILL,
            "resumed": resumed,
            "lost": kill_lost + lost(place, before),
            "reopened": next((json.loads(what) for kind, what in after if kind == "open"), None),
            "ended": end[0],
            "same": end[1] == expected,
            "reruns": reruns(before, after),
            "words": not EDITED or any(HAND in text for text in files),
        }
        print(json.dumps(row), flush=True)
        shutil.rmtree(place.folder)


if __name__ == "__main__":
    main()
