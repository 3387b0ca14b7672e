"""Looking after databases from a shell: paged lists, pruning, moving threads."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from agents import RULE, build, config, output, request
from databases import Database
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from handoff_graph import HandoffSaver, ThreadExists, UnknownThread, catalog, upkeep
from handoff_graph.reader import open_readonly


def handoff(*args: str, code: int = 0, **env: str) -> str:
    """Run the command in a process of its own; returns its output."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "handoff_graph", *args],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **env},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def fill(database: Database, **threads: int) -> None:
    """Threads by their number of tool calls."""
    with database.open(every=4, history="all") as saver:
        for name, calls in threads.items():
            build(calls).compile(checkpointer=saver).invoke(request(), config(name))


# -- lists ---------------------------------------------------------------------------------------


def test_lists_are_paged_filtered_and_sorted(database: Database) -> None:
    for owner in ("ada", "bob"):
        with database.open(every=2, owner=owner) as saver:
            for number in range(3):
                graph = build(4).compile(checkpointer=saver)
                graph.invoke(request(), config(f"{owner}-{number}"))
    with database.bare() as bare:
        build(1).compile(checkpointer=bare).invoke(request(), config("young"))
    with open_readonly(database.url) as reader:
        everything = [t.thread_id for t in catalog.threads(reader)]
        assert everything[0] == "young"
        assert everything[1:] == ["bob-2", "bob-1", "bob-0", "ada-2", "ada-1", "ada-0"]
        pages = [catalog.threads(reader, limit=3, offset=3 * page) for page in range(4)]
        ids = [t.thread_id for page in pages for t in page]
        assert sorted(ids) == sorted(everything)
        assert [len(page) for page in pages] == [3, 3, 1, 0]
        assert [t.owner for t in catalog.threads(reader, owner="ada")] == ["ada"] * 3
        assert catalog.threads(reader, status="blocked") == []
        assert len(catalog.threads(reader, status="in_progress")) == 6
        owners = [t.owner for t in catalog.threads(reader, sort="owner")]
        assert owners == ["bob"] * 3 + ["ada"] * 3 + [""]
    text = handoff("list", "--db", database.url, "--owner", "ada", "--limit", "2")
    assert "ada-2" in text
    assert "ada-0" not in text
    assert "--page 2" in text
    assert "ada-0" in handoff(
        "list", "--db", database.url, "--owner", "ada", "--limit", "2", "--page", "2"
    )


def test_a_damaged_thread_does_not_hide_the_others(database: Database) -> None:
    fill(database, good=6, bad=6)
    database.execute("UPDATE handoff_threads SET state = '{oops' WHERE thread_id = 'bad'")
    text = handoff("list", "--db", database.url)
    assert "unreadable" in text
    assert "good" in text
    assert "handoff_threads" in handoff("show", "bad", "--db", database.url, code=1)


@pytest.mark.parametrize("verb", ["show", "resume", "log"])
def test_the_reading_verbs_read_postgresql(postgres: Database, verb: str) -> None:
    with postgres.open(every=3) as saver:
        build(7).compile(checkpointer=saver).invoke(request(), config("west"))
    text = handoff(verb, "west", "--db", postgres.url)
    assert RULE in text
    error = handoff(verb, "wes", "--db", postgres.url, code=1)
    assert "west" in error


def test_an_unreachable_server_is_one_clear_line() -> None:
    url = "postgresql://someone:hunter2@127.0.0.1:1/none"
    error = handoff("list", "--db", url, code=1)
    assert len(error.strip().splitlines()) <= 3
    assert "127.0.0.1" in error
    assert "hunter2" not in error
    assert "Traceback" not in error


# -- pruning -------------------------------------------------------------------------------------


def test_prune_says_what_would_go_then_does_it_and_gives_space_back(database: Database) -> None:
    fill(database, a=20, b=20, c=1)
    rows = sorted(database.rows())
    text = handoff("prune", "--db", database.url, "--dry-run")
    assert "of 2 of 3 threads would go" in text
    assert sorted(database.rows()) == rows
    text = handoff("prune", "--db", database.url, "--vacuum")
    removed = int(text.split()[0])
    assert removed > 20
    assert "given back" in text
    with database.open(every=4) as saver:
        graph = build(20).compile(checkpointer=saver)
        assert len(list(graph.get_state_history(config("a")))) < 20
        assert "k20" in str(graph.get_state(config("a")).values["messages"])
    for window in (output("k3")[500:540], output("k9")[500:540]):
        assert not [table for table, data in database.rows() if window.encode() in data]


def test_prune_of_a_plain_database_needs_latest(database: Database) -> None:
    with database.bare() as bare:
        build(12).compile(checkpointer=bare).invoke(request(), config())
        whole = bare.get_tuple(config())
    before = database.count("checkpoints")
    assert "--history latest" in handoff("prune", "--db", database.url)
    text = handoff("prune", "t", "--db", database.url, "--history", "latest", "--vacuum")
    assert int(text.split()[0]) == before - 1
    assert database.count("checkpoints") == 1
    with database.bare() as bare:
        after = bare.get_tuple(config())
    assert after.checkpoint["channel_values"] == whole.checkpoint["channel_values"]
    assert "no thread" in handoff("prune", "x", "--db", database.url, code=1)


def test_no_such_database_is_created_by_looking_after_it(tmp_path: Path) -> None:
    path = tmp_path / "none.db"
    assert "no such file" in handoff("prune", "--db", str(path), code=1)
    assert "no such file" in handoff("copy", "--from", str(path), "--to", "x.db", code=1)
    assert list(tmp_path.iterdir()) == []


# -- moving --------------------------------------------------------------------------------------


@dataclass
class Pin:
    """A class of the user's own, which the command need not be able to import."""

    value: int


class Pinned(TypedDict):
    messages: Annotated[list[Any], DeltaChannel(_messages_delta_reducer)]
    pin: Pin
    note: str


def asking(calls: int) -> Any:
    """An agent with a value of the user's own, which asks before it goes on."""

    def agent(state: dict[str, Any]) -> dict[str, Any]:
        number = len([m for m in state["messages"] if isinstance(m, AIMessage)])
        if number >= calls:
            answer = interrupt("go on?")
            return {"messages": [AIMessage(f"heard {answer}")]}
        return {
            "messages": [AIMessage(f"thought {number}")],
            "pin": Pin(number),
            "note": "n" * number,
        }

    builder = StateGraph(Pinned)
    builder.add_node("agent", agent)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges(
        "agent", lambda s: END if "heard" in s["messages"][-1].content else "agent"
    )
    return builder


def test_threads_move_between_databases_and_go_on_there(
    database: Database, postgres: Database, tmp_path: Path
) -> None:
    there = Database("sqlite", str(tmp_path / "there.db"))
    places = [database, postgres if database.kind == "sqlite" else there]
    with places[0].open(every=3) as saver:
        asking(5).compile(checkpointer=saver).invoke(request(), config("asks"))
        build(11).compile(checkpointer=saver).invoke(request(), config("works"))
    text = handoff("copy", "--from", places[0].url, "--to", places[1].url)
    assert text.startswith("2 threads with ")
    history = {}
    for place in places:
        with place.open(every=3) as saver:
            for name, builder in (("asks", asking(5)), ("works", build(11))):
                graph = builder.compile(checkpointer=saver)
                states = [
                    (s.values, s.next, s.metadata, s.config, s.parent_config, s.interrupts)
                    for s in graph.get_state_history(config(name))
                ]
                assert history.setdefault(name, states) == states
                assert states[0][0].get("pin", Pin(4)) == Pin(4)
    assert history["asks"][0][5][0].value == "go on?"
    with places[1].open(every=3) as saver:
        result = asking(5).compile(checkpointer=saver).invoke(Command(resume="yes"), config("asks"))
        assert result["messages"][-1].content == "heard yes"
        before = saver.task_state(config("works"))
        longer = build(16).compile(checkpointer=saver)
        longer.invoke({"messages": [HumanMessage("on")]}, config("works"))
        after = saver.task_state(config("works"))
        assert before is not None
        assert after is not None
        assert after["revision"] > before["revision"]
        assert [c["text"] for c in after["constraints"]] == [RULE]
    with open_readonly(places[0].url) as one, open_readonly(places[1].url) as other:
        old = list(catalog.revisions(one, "works"))
        assert old == list(catalog.revisions(other, "works"))[: len(old)]


def test_a_move_overwrites_nothing(database: Database, tmp_path: Path) -> None:
    fill(database, a=5, b=5)
    target = str(tmp_path / "target.db")
    handoff("copy", "b", "--from", database.url, "--to", target)
    rows = sorted(Database("sqlite", target).rows())
    error = handoff("copy", "a", "b", "--from", database.url, "--to", target, code=1)
    assert "'b' exists already" in error
    kept = Database("sqlite", target)
    assert [row for row in rows if row not in sorted(kept.rows())] == []
    with upkeep.opened(database.url) as source, upkeep.opened(target) as store:
        with pytest.raises(ThreadExists):
            list(upkeep.copied(source, store, ["b"]))
        with pytest.raises(UnknownThread):
            list(upkeep.copied(source, store, ["nobody"]))


def test_what_is_encrypted_stays_so_and_is_shown_to_who_has_the_key(tmp_path: Path) -> None:
    import sqlite3

    key = b"0123456789abcdef"
    path = str(tmp_path / "h.db")
    conn = sqlite3.connect(path, check_same_thread=False)
    inner = SqliteSaver(conn, serde=EncryptedSerializer.from_pycryptodome_aes(key=key))
    saver = HandoffSaver(inner, every=3, owner="ada")
    secret = "Patient 4711 must not be moved before Monday."
    graph = build(9).compile(checkpointer=saver)
    graph.invoke({"messages": [HumanMessage(secret)]}, config("ward"))
    assert secret in graph.get_state(config("ward")).values["messages"][0].content
    history = list(graph.get_state_history(config("ward")))
    assert [s for s in history if "handoff_milestone" in s.metadata]
    conn.close()
    rows = Database("sqlite", path).rows()
    assert not [table for table, data in rows if b"4711" in data or b"lookup(key" in data]
    listed = handoff("list", "--db", path)
    assert "unreadable" in listed
    assert "4711" not in listed
    assert "LANGGRAPH_AES_KEY" in handoff("show", "ward", "--db", path, code=1)
    text = handoff("show", "ward", "--db", path, LANGGRAPH_AES_KEY=key.decode())
    assert secret in text
    target = str(tmp_path / "copy.db")
    handoff("copy", "--from", path, "--to", target, LANGGRAPH_AES_KEY=key.decode())
    assert not [t for t, data in Database("sqlite", target).rows() if b"4711" in data]
    assert secret in handoff("show", "ward", "--db", target, LANGGRAPH_AES_KEY=key.decode())


# -- the plans -----------------------------------------------------------------------------------

LISTS = {
    "list": {},
    "by status": {"status": "blocked"},
    "by owner": {"owner": "ada"},
    "sorted by status": {"sort": "status"},
    "sorted by owner": {"sort": "owner"},
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_are_read_along_an_index(tmp_path: Path, name: str) -> None:
    database = Database("sqlite", str(tmp_path / "h.db"))
    fill(database, a=5)
    with open_readonly(database.url) as reader:
        asked: list[tuple[str, Any]] = []

        def rows(sql: str, params: Any) -> Any:
            asked.append((sql, params))
            return reader.rows(sql, params)

        spy = catalog.Reader(reader.name, rows, reader.close, reader.tables)
        catalog.threads(spy, limit=1, **LISTS[name])
        catalog.thread(spy, "a")
        list(catalog.revisions(spy, "a"))
        for sql, params in asked:
            for *_, plan in reader.rows(f"EXPLAIN QUERY PLAN {sql}", params):
                assert not plan.startswith("SCAN handoff"), (sql, plan)
                assert not plan.startswith("SCAN checkpoints") or "INDEX" in plan, (sql, plan)
                assert "TEMP B-TREE" not in plan, (sql, plan)
