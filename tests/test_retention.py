"""What a fold leaves of the checkpoints before it, on every database and in every mode."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any

import pytest
from agents import (
    RULE,
    DeltaMessages,
    build,
    config,
    highest,
    lookup,
    output,
    request,
    tool_outputs,
    turns,
)
from databases import Database
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt

from handoff_graph import CheckpointRemoved, HandoffSaver, add_handoff
from handoff_graph.transcript import invalid_reason, is_briefing

EVERY = 4


def merged(files: dict[str, str], updates: list[dict[str, str]]) -> dict[str, str]:
    """A reducer of a channel of the user's own."""
    return {key: value for update in (files or {}, *updates) for key, value in update.items()}


class DeltaFiles(DeltaMessages):
    """As deepagents has it: the transcript on a `DeltaChannel`, and files on another."""

    files: Annotated[dict[str, str], DeltaChannel(merged)]


def with_files(calls: int) -> Any:
    """An agent that also writes a file at every turn."""

    def agent(state: dict[str, Any]) -> dict[str, Any]:
        done = highest(state["messages"])
        if done >= calls:
            return {"messages": [AIMessage("All looked up.")]}
        return {
            "messages": [AIMessage("", tool_calls=turns(state["messages"]))],
            "files": {f"f{done}": f"file {done}"},
        }

    builder = StateGraph(DeltaFiles)
    builder.add_node("agent", agent)
    builder.add_node("tools", ToolNode([lookup]))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition, ["tools", END])
    builder.add_edge("tools", "agent")
    return builder


BUILDERS: dict[str, Callable[[int], Any]] = {
    "alone": lambda calls: build(calls),
    "nodes": lambda calls: add_handoff(build(calls), every=EVERY, ledger=None),
    "delta-alone": lambda calls: build(calls, state=DeltaMessages),
    "delta-nodes": lambda calls: add_handoff(
        build(calls, state=DeltaMessages), every=EVERY, ledger=None
    ),
    "files-alone": with_files,
    "files-nodes": lambda calls: add_handoff(with_files(calls), every=EVERY, ledger=None),
}


@pytest.fixture(params=BUILDERS)
def mode(request: pytest.FixtureRequest) -> str:
    """How the agent is built and who folds."""
    found: str = request.param
    return found


def run(saver: HandoffSaver, mode: str, calls: int, given: Any = None) -> Any:
    """Run the agent to the end; returns its graph."""
    graph = BUILDERS[mode](calls).compile(checkpointer=saver)
    graph.invoke(given or request(), config())
    return graph


def windows(text: str) -> list[bytes]:
    """Pieces of a tool's output that no quote of it holds."""
    return [text[at : at + 40].encode() for at in range(500, len(text) - 60, 300)]


def test_p1_no_folded_text_is_left_in_any_table(database: Database, mode: str) -> None:
    with database.open(every=EVERY) as saver:
        graph = run(saver, mode, 15)
        kept = "\n".join(tool_outputs(graph.get_state(config()).values["messages"]))
        rows = database.rows()
    folded = [output(f"k{n}") for n in range(1, 12)]
    for text in folded:
        for window in windows(text):
            assert window.decode() not in kept
            assert not [table for table, data in rows if window in data]
    assert [table for table, data in rows if windows(output("k15"))[0] in data]


def test_history_walks_from_milestone_to_milestone(database: Database, mode: str) -> None:
    with database.open(every=EVERY) as saver:
        graph = run(saver, mode, 30)
        history = list(graph.get_state_history(config()))
        folds = [s for s in history if "handoff_fold" in s.metadata]
        milestones = [s for s in history if s.metadata.get("handoff_milestone")]
        assert len(folds) >= 6
        assert milestones[-(len(folds) - 1) :] != []
        walked = []
        at = history[0]
        while at is not None:
            walked.append(at.config)
            at = graph.get_state(at.parent_config) if at.parent_config else None
        assert walked == [s.config for s in history]
        states = [saver.task_state(s.config) for s in folds]
    assert [s["revision"] for s in states] == sorted({s["revision"] for s in states}, reverse=True)
    for snapshot, state in zip(folds[1:], states[1:], strict=True):
        (briefing,) = snapshot.values["messages"]
        assert is_briefing(briefing)
        assert RULE in briefing.content
        assert [c["text"] for c in state["constraints"]] == [RULE]
        if "nodes" in mode:
            assert snapshot.values["task"] == state


def test_a_fork_from_a_milestone_knows_the_task(database: Database, mode: str) -> None:
    with database.open(every=EVERY) as saver:
        graph = run(saver, mode, 14)
        history = list(graph.get_state_history(config()))
        old = next(
            s for s in history[::-1] if s.metadata.get("handoff_milestone", {}).get("revision", 0)
        )
        known = saver.task_state(old.config)
        reached = max(n for n in range(30) if f"lookup(key=k{n})" in str(known))
        assert 1 <= reached < 14
    with database.open(every=EVERY) as saver:  # another process
        seen: list[Any] = []
        builder = BUILDERS[mode](14)
        fork = builder.compile(checkpointer=saver)
        assert fork.get_state(old.config).values == old.values
        given = {"messages": [HumanMessage("Go on from here.", id="fork")]}
        for update in fork.stream(given, old.config, stream_mode="updates"):
            seen.append(update)
        calls = [
            c["args"]["key"]
            for update in seen
            for m in (update.get("agent") or {}).get("messages", ())
            for c in m.tool_calls
        ]
        assert calls == [f"k{n}" for n in range(reached + 1, 15)]
        state = saver.task_state(config())
        assert [c["text"] for c in state["constraints"]] == [RULE]
        assert state["revision"] > known["revision"]
        assert invalid_reason(fork.get_state(config()).values["messages"]) is None


def test_latest_keeps_nothing_before_the_fold(database: Database, mode: str) -> None:
    with database.open(every=EVERY, history="latest") as saver:
        graph = run(saver, mode, 30)
        history = list(graph.get_state_history(config()))
        if "files" not in mode:  # what they are rebuilt from has to stay
            assert len([s for s in history if "handoff_fold" in s.metadata]) == 1
            assert len(history) < 4 * EVERY
        assert "k26" in str(saver.task_state(config()))


def test_all_keeps_everything(database: Database, mode: str) -> None:
    with database.open(every=EVERY, history="all") as saver:
        graph = run(saver, mode, 15)
        history = list(graph.get_state_history(config()))
        assert len(history) >= 2 * 15
        assert {type(s.values["messages"]) for s in history if s.values} == {list}
        assert len(saver.task_state(config())["done"]) >= 4


def test_an_unknown_policy_is_refused(database: Database) -> None:
    with pytest.raises(ValueError, match="milestones, latest, all"):
        database.open(history="some")


def test_files_beside_the_transcript_survive(database: Database) -> None:
    with database.open(every=EVERY) as saver:
        for mode in ("files-alone",):
            graph = run(saver, mode, 25)
            assert graph.get_state(config()).values["files"] == {
                f"f{n}": f"file {n}" for n in range(25)
            }
            for snapshot in graph.get_state_history(config()):
                files = snapshot.values.get("files", {})
                assert files == {f"f{n}": f"file {n}" for n in range(len(files))}
    with database.open(every=EVERY) as saver:
        again = run(saver, "files-alone", 30, {"messages": [HumanMessage("more")]})
        assert len(again.get_state(config()).values["files"]) == 30


def test_sessions_end_with_milestones(database: Database, mode: str) -> None:
    ends = []
    for session in range(3):
        with database.open(every=100) as saver:  # no fold of the saver's within these sessions
            graph = run(saver, mode.replace("nodes", "alone"), 3 * (session + 1))
            ends.append(graph.get_state(config()).config)
    with database.open(every=EVERY) as saver:
        graph = run(saver, mode.replace("nodes", "alone"), 16, {"messages": [HumanMessage("on")]})
        kept = [s.config for s in graph.get_state_history(config())]
        for end, calls in zip(ends, (3, 6, 9), strict=True):
            assert end in kept
            state = saver.task_state(end)
            assert f"lookup(key=k{calls})" in str(state["done"])
            assert f"lookup(key=k{calls + 1})" not in str(state)
            assert [c["text"] for c in state["constraints"]] == [RULE]


def asks(calls: int, at: int) -> Any:
    """An agent whose tool asks a person once."""

    def careful(key: str) -> str:
        """Look a key up."""
        if key == f"k{at}":
            return f"{key} {interrupt('may I?')}"
        return output(key)

    careful.__name__ = "lookup"
    return build(calls, tool=careful)


def test_a_live_fork_and_its_interrupt_survive_the_folds_beside_it(database: Database) -> None:
    with database.open(every=EVERY) as saver:
        graph = asks(20, at=3).compile(checkpointer=saver)
        graph.invoke(request(), config())
        base = graph.get_state(config())
        assert base.interrupts
        # One branch goes on and folds, the other is still waiting for its answer.
        branch = graph.update_state(base.config, {"messages": [HumanMessage("aside")]}, "tools")
        graph.invoke(None, branch)
        assert "k20" in str(graph.get_state(config()).values["messages"])
        waiting = graph.get_state(base.config)
        assert waiting.values == base.values
        assert waiting.interrupts == base.interrupts
        result = graph.invoke(Command(resume="yes"), base.config)
        assert "k3 yes" in str(result["messages"])


@pytest.mark.parametrize("durable", [True, False], ids=["session-end", "mid-run"])
def test_an_older_run_neither_overwrites_nor_prunes_a_newer_one(
    database: Database, durable: bool
) -> None:
    with database.open(every=EVERY) as old, database.open(every=EVERY) as new:
        graph = run(old, "alone", 3)
        left_behind = graph.get_state(config()).config
        if not durable:
            left_behind = list(graph.get_state_history(config()))[2].config
        saved = old.get_tuple(left_behind)
        assert saved is not None
        late = {**saved.checkpoint, "id": str(uuid6())}
        run(new, "alone", 12, {"messages": [HumanMessage("on")]})
        newest, state = new.get_tuple(config()), new.task_state(config())
        assert state is not None
        rows = database.count("checkpoints")
        if durable:
            old.put(left_behind, late, {"source": "loop"}, {})
            assert database.count("checkpoints") == rows + 1
        else:
            with pytest.raises(CheckpointRemoved):
                old.put(left_behind, late, {"source": "loop"}, {})
            assert database.count("checkpoints") == rows
        assert new.get_tuple(config()) == newest
        assert new.task_state(config()) == state
        assert database.count("handoff_threads", f"revision = {state['revision']}") == 1


def test_an_older_put_is_not_the_head(database: Database) -> None:
    early = str(uuid6())
    with database.open(every=EVERY) as saver:
        run(saver, "nodes", 10)
        state = saver.task_state(config())
        assert state is not None
        stray = {"handoff_task": 1, "objective": "something older"}
        checkpoint = {**_blank(early), "channel_values": {"task": stray}}
        where = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        saver.put(where, checkpoint, {"source": "loop"}, {})
        assert database.count("handoff_threads", f"revision = {state['revision']}") == 1


def _blank(key: str) -> Any:
    from langgraph.checkpoint.base import empty_checkpoint

    return {**empty_checkpoint(), "id": key}


def test_every_stored_value_is_in_use(postgres: Database, mode: str) -> None:
    with postgres.open(every=EVERY) as saver:
        graph = run(saver, mode, 25)
        list(graph.get_state_history(config()))
    unused = postgres.count(
        "checkpoint_blobs b",
        "NOT EXISTS (SELECT 1 FROM checkpoints c WHERE c.thread_id = b.thread_id"
        " AND c.checkpoint_ns = b.checkpoint_ns"
        " AND c.checkpoint -> 'channel_versions' ->> b.channel = b.version)",
    )
    assert unused == 0


def test_p10_a_fold_costs_the_same_however_long_the_history(tmp_path: Any) -> None:
    """Counted in SQL statements."""
    with HandoffSaver.from_conn_string(tmp_path / "h.db", every=EVERY) as saver:
        costs: list[int] = []
        inner: Any = saver.inner
        statements = 0

        def count(_: str) -> None:
            nonlocal statements
            statements += 1

        def note(_: Any) -> None:
            costs.append(statements)

        saver.add_listener(note)
        inner.conn.set_trace_callback(count)
        graph = BUILDERS["alone"](180).compile(checkpointer=saver)
        graph.invoke(request(), config(), durability="sync")
        inner.conn.set_trace_callback(None)
    per_fold = [after - before for before, after in pairwise(costs)]
    cycle = 17  # a revision is rebuilt from at most 16 changes
    assert len(per_fold) > 2 * cycle
    assert max(per_fold[-cycle:]) <= max(per_fold[:cycle])


@pytest.mark.parametrize("stock", [True, False])
def test_prune_applies_a_policy_to_what_is_stored(database: Database, stock: bool) -> None:
    if stock:
        with database.bare() as bare:
            build(12).compile(checkpointer=bare).invoke(request(), config())
    else:
        with database.open(every=EVERY, history="all") as saver:
            run(saver, "alone", 12)
    with database.open(every=EVERY) as saver:
        graph = build(12).compile(checkpointer=saver)
        whole = graph.get_state(config())
        rows = database.count("checkpoints")
        saver.prune(["t"], strategy="milestones")
        if stock:
            assert database.count("checkpoints") == rows  # nothing has been folded
        else:
            assert len(list(graph.get_state_history(config()))) < rows
        saver.prune(["t"], strategy="latest")
        after = graph.get_state(config())
        assert after.values == whole.values
        assert after.next == whole.next
        assert database.count("checkpoints") == 1


def test_prune_leaves_delta_channels_whole(database: Database) -> None:
    with database.bare() as bare:
        with_files(8).compile(checkpointer=bare).invoke(request(), config())
    for strategy in ("latest", "keep_latest"):
        with database.open() as saver:
            graph = with_files(8).compile(checkpointer=saver)
            before = graph.get_state(config()).values
            saver.prune(["t"], strategy=strategy)
            assert graph.get_state(config()).values == before
            assert len(before["files"]) == 8
            assert len(tool_outputs(before["messages"])) == 8


def test_what_a_milestone_says_is_readable_in_its_metadata(database: Database) -> None:
    with database.open(every=EVERY) as saver:
        graph = run(saver, "alone", 14)
        marks = [
            s.metadata["handoff_milestone"]
            for s in graph.get_state_history(config())
            if "handoff_milestone" in s.metadata
        ]
    assert marks
    for mark in marks:
        assert mark["revision"] >= 1
        assert isinstance(json.loads(mark["news"]), dict)


def test_the_state_of_a_subgraph_with_memory_of_its_own_stays(database: Database) -> None:
    def inner(state: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [AIMessage(f"turn {len(state['messages'])}")]}

    remembers = StateGraph(MessagesState)
    remembers.add_node("inner", inner)
    remembers.add_edge(START, "inner")
    remembers.add_edge("inner", END)

    def consulting(calls: int) -> Any:
        builder = build(calls)
        builder.add_node("consult", remembers.compile(checkpointer=True))
        builder.add_edge("consult", END)
        builder.add_edge(START, "consult")
        return builder

    with database.open(every=EVERY) as saver:
        graph = consulting(9).compile(checkpointer=saver)
        for calls in (9, 18):
            graph = consulting(calls).compile(checkpointer=saver)
            graph.invoke({"messages": [HumanMessage("on")]}, config())
        namespaces = {c.config["configurable"]["checkpoint_ns"] for c in saver.list(config())}
        assert "consult" in namespaces
        assert not [ns for ns in namespaces if ":" in ns]
