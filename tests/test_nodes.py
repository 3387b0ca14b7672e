"""The nodes in a graph: folding, opening, exporting, and being wired in."""

from __future__ import annotations

import asyncio
import operator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
from agents import (
    REQUEST,
    RULE,
    DeltaMessages,
    build,
    config,
    lookup,
    output,
    raw_rows,
    request,
    tool_outputs,
)
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command
from pydantic import BaseModel

from handoff_graph import (
    CannotWire,
    HandoffSaver,
    HandoffState,
    HandoffWarning,
    LedgerExportNode,
    MissingChannel,
    SummarizerNode,
    add_handoff,
    merge,
    task_update,
)
from handoff_graph.ledger import read_front_matter
from handoff_graph.transcript import invalid_reason, is_briefing


def run(tmp_path: Path, calls: int = 25, *, state: type = MessagesState, **options: Any) -> Any:
    """Run a wired agent on a HandoffSaver; returns what is left to look at."""
    path = tmp_path / "handoff.db"
    seen: list[Any] = []
    with HandoffSaver.from_conn_string(path) as saver:
        builder = build(calls, state=state, seen=seen)
        graph = add_handoff(builder, ledger=tmp_path / "ledger", **options).compile(
            checkpointer=saver
        )
        graph.invoke(request(), config())
        values = graph.get_state(config()).values
        head = saver.task_state(config())
    return values, head, seen, path


@pytest.mark.parametrize("state", [MessagesState, DeltaMessages, HandoffState])
def test_p1_p2_the_transcript_is_folded_and_no_folded_text_is_left(
    tmp_path: Path, state: type
) -> None:
    values, head, seen, path = run(tmp_path, state=state)
    rows = raw_rows(path)
    stored = values["messages"]
    assert is_briefing(stored[0])
    assert len(stored) < 22
    for messages in seen:
        assert invalid_reason(messages) is None
        assert len(messages) < 30
        assert RULE in "\n".join(str(m.content) for m in messages)
    kept = tool_outputs(stored)
    for number in range(1, 20):
        text = output(f"k{number}")
        if text not in kept:
            assert not [t for t, data in rows if text[100:140].encode() in data], number
    assert values["task"] == head
    assert path.stat().st_size < 1_000_000


def test_a_fold_keeps_the_newest_human_words_and_the_constraint(tmp_path: Path) -> None:
    values, *_ = run(tmp_path)
    humans = [m.content for m in values["messages"] if isinstance(m, HumanMessage)]
    assert humans == [REQUEST]
    assert [c["text"] for c in values["task"]["constraints"]] == [RULE]


def test_the_first_visit_opens_the_task(tmp_path: Path) -> None:
    values, *_ = run(tmp_path, calls=1, owner="agent-session-14")
    task = values["task"]
    assert task["objective"] == REQUEST
    assert task["owner"] == "agent-session-14"
    assert [c["text"] for c in task["constraints"]] == [RULE]
    assert "folds" in task
    assert not task["folds"]


def test_the_ledger_shows_the_head_and_names_its_checkpoint(tmp_path: Path) -> None:
    _, head, _, path = run(tmp_path)
    front = read_front_matter((tmp_path / "ledger" / "t.md").read_text())
    assert front is not None
    assert front.revision == head["revision"]
    assert front.intact
    checkpoints = [data.decode() for table, data in raw_rows(path) if table == "handoff_threads"]
    assert front.checkpoint in checkpoints


def test_idle_steps_cost_no_superstep(tmp_path: Path) -> None:
    with HandoffSaver.from_conn_string(tmp_path / "h.db") as saver:
        graph = add_handoff(build(9), ledger=None).compile(checkpointer=saver)
        nodes = [
            name
            for step in graph.stream(request(), config(), stream_mode="updates")
            for name in step
        ]
    assert nodes.count("summarize") == 1  # the visit that opens the task
    assert nodes.count("agent") == 10


def test_by_hand_in_a_chain(tmp_path: Path) -> None:
    """The other way in the README: both nodes added by hand, in series."""
    builder = build(25, state=HandoffState)
    builder.edges.discard(("tools", "agent"))
    builder.add_node("summarize", SummarizerNode(every=5))
    builder.add_node("export", LedgerExportNode(tmp_path / "ledger"))
    builder.add_edge("tools", "summarize")
    builder.add_edge("summarize", "export")
    builder.add_edge("export", "agent")
    with HandoffSaver.from_conn_string(tmp_path / "h.db") as saver:
        graph = builder.compile(checkpointer=saver)
        graph.invoke(request(), config())
        values = graph.get_state(config()).values
    assert is_briefing(values["messages"][0])
    assert values["task"]["folds"]["messages"]["n"] == 5
    front = read_front_matter((tmp_path / "ledger" / "t.md").read_text())
    assert front is not None
    assert front.revision == values["task"]["revision"]


@pytest.mark.parametrize("checkpointer", ["memory", "sqlite", "none"])
def test_the_nodes_work_without_our_saver(tmp_path: Path, checkpointer: str) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "s.db")) as sqlite:
        saver: Any = {"memory": InMemorySaver(), "sqlite": sqlite, "none": None}[checkpointer]
        builder = add_handoff(build(25, state=HandoffState), ledger=tmp_path / "ledger")
        values = builder.compile(checkpointer=saver).invoke(request(), config())
    assert is_briefing(values["messages"][0])
    (ledger,) = (tmp_path / "ledger").glob("*.md")
    front = read_front_matter(ledger.read_text())
    assert front is not None
    assert front.revision == values["task"]["revision"]


def test_a_message_of_another_branch_in_the_same_superstep_survives(tmp_path: Path) -> None:
    for state in (HandoffState, DeltaHandoff):
        said: list[str] = []

        def watcher(state: Any, said: list[str] = said) -> Any:
            said.append(f"noticed {len(said)}")
            return {"messages": [HumanMessage(said[-1])]}

        builder = build(12, state=state)
        builder.edges.discard(("tools", "agent"))
        builder.add_node("summarize", SummarizerNode(every=3))
        builder.add_node("watcher", watcher)
        builder.add_edge("tools", "summarize")
        builder.add_edge("tools", "watcher")
        builder.add_edge("summarize", "agent")
        builder.add_edge("watcher", "agent")
        with HandoffSaver.from_conn_string(tmp_path / f"{state.__name__}.db") as saver:
            graph = builder.compile(checkpointer=saver)
            last = None
            for values in graph.stream(request(), config(), stream_mode="values"):
                if said and last != said[-1]:
                    last = said[-1]
                    assert last in [m.content for m in values["messages"]]
            stored = graph.get_state(config()).values
        texts = str(stored["task"]["notes"]) + str([m.content for m in stored["messages"]])
        rolled = stored["task"]["rolled_up"].get("notes", {"count": 0})["count"]
        kept = sum(f"noticed {n}'" in texts for n in range(len(said)))
        assert kept + rolled == len(said) == 12


class DeltaHandoff(DeltaMessages):
    """A DeltaChannel transcript with a task beside it."""

    task: Annotated[dict[str, Any], merge]


def test_parallel_branches_that_update_the_task_in_one_superstep(tmp_path: Path) -> None:
    def west(state: Any) -> Any:
        return {"task": task_update(by="west", done=["west done"], constraints=["West rule."])}

    def east(state: Any) -> Any:
        return {"task": task_update(by="east", done=["east done"], constraints=["East rule."])}

    builder = StateGraph(HandoffState)
    builder.add_node("west", west)
    builder.add_node("east", east)
    builder.add_edge(START, "west")
    builder.add_edge(START, "east")
    with HandoffSaver.from_conn_string(tmp_path / "h.db") as saver:
        graph = builder.compile(checkpointer=saver)
        graph.invoke({"messages": []}, config())
        task = graph.get_state(config()).values["task"]
        assert saver.task_state(config()) == task
    assert {d["text"] for d in task["done"]} == {"west done", "east done"}
    assert {c["text"] for c in task["constraints"]} == {"West rule.", "East rule."}
    assert task["revision"] == 1


# -- other shapes of state -------------------------------------------------------------------


@dataclass
class DataState:
    messages: Annotated[list[Any], add_messages] = field(default_factory=list)


class ModelState(BaseModel):
    messages: Annotated[list[Any], add_messages] = []


class Elsewhere(HandoffState):
    talk: Annotated[list[Any], add_messages]


@pytest.mark.parametrize("state", [DataState, ModelState])
def test_dataclass_and_pydantic_states(tmp_path: Path, state: type) -> None:
    def agent(state: Any) -> Any:
        inner = {"messages": list(state.messages)}
        return scripted(inner)

    scripted = build(25).nodes["agent"].runnable.func  # type: ignore[union-attr]
    builder = build(25)
    fresh = StateGraph(state)
    fresh.add_node("agent", agent)
    fresh.add_node("tools", builder.nodes["tools"].runnable)
    fresh.add_edge(START, "agent")
    fresh.add_conditional_edges(
        "agent", lambda s: "tools" if s.messages[-1].tool_calls else END, ["tools", END]
    )
    fresh.add_edge("tools", "agent")
    with HandoffSaver.from_conn_string(tmp_path / "h.db") as saver:
        graph = add_handoff(fresh, ledger=None).compile(checkpointer=saver)
        graph.invoke(request(), config())
        stored = saver.get_tuple(config())
    assert stored is not None
    values = stored.checkpoint["channel_values"]
    assert is_briefing(values["messages"][0])
    assert values["task"]["folds"]["messages"]["n"] == 2


def test_a_transcript_under_another_name(tmp_path: Path) -> None:
    def agent(state: Any) -> Any:
        number = len([m for m in state["talk"] if isinstance(m, AIMessage)])
        asked = {"name": "t", "args": {"n": len(calls)}, "id": f"c{len(calls)}"}
        calls.append(number)
        return {"talk": [AIMessage("", tool_calls=[asked])]}

    def tools(state: Any) -> Any:
        return {"talk": [ToolMessage("ok", tool_call_id=state["talk"][-1].tool_calls[0]["id"])]}

    calls: list[int] = []
    builder = StateGraph(Elsewhere)
    builder.add_node("agent", agent)
    builder.add_node("tools", tools)
    builder.add_node("summarize", SummarizerNode(every=4))
    builder.add_edge(START, "agent")
    builder.add_edge("agent", "tools")
    builder.add_edge("tools", "summarize")
    builder.add_conditional_edges(
        "summarize", lambda s: END if len(calls) >= 12 else "agent", ["agent", END]
    )
    values = builder.compile().invoke(
        {"talk": [HumanMessage(REQUEST)], "messages": []}, {"recursion_limit": 100}
    )
    assert is_briefing(values["talk"][0])
    assert values["messages"] == []
    assert values["task"]["folds"]["talk"]["n"] == 3


def test_a_reducer_that_ignores_removals_is_reported_and_nothing_removed(tmp_path: Path) -> None:
    class Plain(HandoffState):
        messages: Annotated[list[Any], operator.add]  # type: ignore[misc]

    def feed(state: Any) -> Any:
        messages: list[Any] = [HumanMessage(REQUEST, id="h")]
        for n in range(4):
            call = {"name": "t", "args": {"n": n}, "id": f"c{n}"}
            messages += [
                AIMessage("", id=f"a{n}", tool_calls=[call]),
                ToolMessage("x", id=f"r{n}", tool_call_id=f"c{n}"),
            ]
        return {"messages": messages}

    builder = StateGraph(Plain)
    builder.add_node("feed", feed)
    builder.add_node("summarize", SummarizerNode(every=2))
    builder.add_edge(START, "feed")
    builder.add_edge("feed", "summarize")
    with HandoffSaver.from_conn_string(tmp_path / "h.db") as saver:
        graph = builder.compile(checkpointer=saver)
        with pytest.warns(HandoffWarning, match="did not take"):
            graph.invoke({"messages": []}, config())
        assert len(list(graph.get_state_history(config()))) > 2


def test_a_channel_without_a_message_reducer_is_left_alone_and_reported() -> None:
    """Writes by id would replace the whole list there."""

    class Bare(HandoffState):
        talk: list[Any]

    history: list[Any] = [HumanMessage(REQUEST)]
    for n in range(4):
        call = {"name": "t", "args": {"n": n}, "id": f"c{n}"}
        history += [AIMessage("", tool_calls=[call]), ToolMessage("x", tool_call_id=f"c{n}")]
    builder = StateGraph(Bare)
    builder.add_node("summarize", SummarizerNode(every=2))
    builder.add_edge(START, "summarize")
    with pytest.warns(HandoffWarning, match="channel 'talk' holds messages without ids"):
        values = builder.compile().invoke({"talk": history, "messages": []})
    assert [m.content for m in values["talk"]] == [m.content for m in history]


# -- summarizers -----------------------------------------------------------------------------


def test_another_summarizer_sync_and_async(tmp_path: Path) -> None:
    def sync(state: Any, folding: Any) -> Any:
        return task_update(at=folding.at, decisions=[f"folded {len(folding.folded)}"])

    async def asynchronous(state: Any, folding: Any) -> Any:
        await asyncio.sleep(0)
        return sync(state, folding)

    for summarizer in (sync, asynchronous):
        graph = add_handoff(build(12, state=HandoffState), ledger=None, model=summarizer).compile()
        values = graph.invoke(request(), config())
        assert values["task"]["decisions"][0]["text"] == "folded 18"
        values = asyncio.run(graph.ainvoke(request(), config()))
        assert values["task"]["decisions"][0]["text"] == "folded 18"


async def test_an_async_summarizer_under_invoke_inside_a_running_loop() -> None:
    """As in a notebook or a web handler that calls the sync method."""
    who = ContextVar("who", default="nobody")
    who.set("the caller")

    async def summarizer(state: Any, folding: Any) -> Any:
        await asyncio.sleep(0)
        return task_update(at=folding.at, decisions=[f"folded for {who.get()}"])

    class Callable:
        async def __call__(self, state: Any, folding: Any) -> Any:
            return await summarizer(state, folding)

    class Later:
        def __call__(self, state: Any, folding: Any) -> Any:
            return Pending(summarizer(state, folding))

    class Pending:
        def __init__(self, coroutine: Any) -> None:
            self.coroutine = coroutine

        def __await__(self) -> Any:
            return self.coroutine.__await__()

    for model in (summarizer, Callable(), Later()):
        graph = add_handoff(build(12, state=HandoffState), ledger=None, model=model).compile()
        for values in (
            graph.invoke(request(), config()),
            await graph.ainvoke(request(), config()),
            await asyncio.to_thread(graph.invoke, request(), config()),
        ):
            assert values["task"]["decisions"][0]["text"] == "folded for the caller"


async def test_an_async_summarizer_that_fails_inside_a_running_loop_changes_nothing() -> None:
    async def bad(state: Any, folding: Any) -> Any:
        raise RuntimeError("down")

    builder = build(12, state=HandoffState)
    graph = add_handoff(builder, ledger=None, model=bad, on_error="skip").compile()
    with pytest.warns(HandoffWarning, match="RuntimeError: down"):
        values = graph.invoke(request(), config())
    assert len(tool_outputs(values["messages"])) == 12


@pytest.mark.parametrize(
    "rubbish", [None, "text", {"status": "finished"}, RuntimeError("down"), {"done": "x"}]
)
def test_p4_a_summarizer_that_fails_changes_nothing_and_the_turn_goes_on(rubbish: Any) -> None:
    def bad(state: Any, folding: Any) -> Any:
        if isinstance(rubbish, Exception):
            raise rubbish
        return rubbish

    builder = build(12, state=HandoffState)
    graph = add_handoff(builder, ledger=None, model=bad, on_error="skip").compile()
    with pytest.warns(HandoffWarning, match="the turn goes on"):
        values = graph.invoke(request(), config())
    assert len(tool_outputs(values["messages"])) == 12
    assert values["messages"][-1].content == "All looked up."
    assert values["task"]["objective"] == REQUEST
    assert not values["task"]["folds"]


def test_folding_on_demand_and_at_a_phase(tmp_path: Path) -> None:
    graph = add_handoff(build(4, state=HandoffState), ledger=None).compile()
    values = graph.invoke(request(), config(handoff_force=True))
    assert values["task"]["folds"]["messages"]["n"] >= 3

    def finish(state: Any) -> Any:
        return Command(update={"task": task_update(phase="audit")})

    builder = build(4, state=HandoffState)
    builder.add_node("finish", finish)
    builder.edges.discard(("tools", "agent"))
    builder.add_edge("tools", "finish")
    builder.add_edge("finish", "agent")
    graph = add_handoff(builder, tools="finish", agent="agent", ledger=None).compile()
    values = graph.invoke(request(), config())
    assert values["task"]["phase"] == "audit"
    assert values["task"]["folds"]["messages"]["n"] == 1


def test_moving_from_the_saver_alone_to_the_nodes(tmp_path: Path) -> None:
    with HandoffSaver.from_conn_string(tmp_path / "h.db") as saver:
        build(25).compile(checkpointer=saver).invoke(request(), config())
        alone = saver.task_state(config())
        assert alone is not None
        seen: list[Any] = []
        graph = add_handoff(build(45, seen=seen), ledger=None).compile(checkpointer=saver)
        graph.invoke({"messages": [HumanMessage("Go on.")]}, config())
        values = graph.get_state(config()).values
    for messages in seen:
        assert sum(is_briefing(m) for m in messages) == 1
        assert invalid_reason(messages) is None
    assert [c["text"] for c in values["task"]["constraints"]] == [RULE]
    assert values["task"]["objective"] == REQUEST
    assert values["task"]["revision"] > alone["revision"]
    counted = len(values["task"]["done"]) + values["task"]["rolled_up"]["done"]["count"]
    assert counted + len(tool_outputs(values["messages"])) == 45
    assert RULE in values["messages"][0].content


# -- wiring ----------------------------------------------------------------------------------


def test_the_nodes_are_named_in_errors_when_the_channel_is_missing() -> None:
    for node in (SummarizerNode(), LedgerExportNode("x")):
        builder = build(2)
        builder.edges.discard(("tools", "agent"))
        builder.add_node("node", node)
        builder.add_edge("tools", "node")
        builder.add_edge("node", "agent")
        with pytest.raises(MissingChannel, match=f"{type(node).__name__} needs the channel 'task'"):
            builder.compile().invoke(request(), config())


def test_a_graph_without_a_plain_edge_back_is_refused_with_its_edges() -> None:
    with pytest.raises(CannotWire, match="tools -> agent"):
        add_handoff(build(2), tools="toolbox")
    builder = build(2)
    builder.add_node("other", lambda state: {})
    builder.add_edge("tools", "other")
    with pytest.raises(CannotWire, match="tools= and agent="):
        add_handoff(builder)
    wired = add_handoff(builder, agent="agent", ledger=None)
    with pytest.raises(CannotWire, match="already"):
        add_handoff(wired)
    with pytest.raises(CannotWire, match="HandoffSaver alone"):
        add_handoff(wired.compile())  # type: ignore[arg-type]


def test_several_tool_nodes(tmp_path: Path) -> None:
    builder = build(12)
    builder.add_node("more", builder.nodes["tools"].runnable)
    builder.add_edge("more", "agent")
    wired = add_handoff(builder, tools=["tools", "more"], ledger=None)
    values = wired.compile().invoke(request(), config())
    assert is_briefing(values["messages"][0])


def test_a_model_that_is_no_summarizer_is_refused() -> None:
    with pytest.raises(TypeError, match=r"or a callable .* not int"):
        SummarizerNode(model=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_error: one of"):
        SummarizerNode(on_error="ignore")  # type: ignore[arg-type]


def test_a_long_thread_is_folded_by_the_nodes_alone_from_the_first_step(tmp_path: Path) -> None:
    path = str(tmp_path / "h.db")
    with SqliteSaver.from_conn_string(path) as stock:
        build(30).compile(checkpointer=stock).invoke(request(), config())
    asked: list[int] = []

    def mine(state: Any, folding: Any) -> Any:
        asked.append(folding.calls)
        return task_update()

    failing = True

    def agent(state: Any) -> Any:
        if failing:
            raise ConnectionError("529: the provider is overloaded")
        return {"messages": [AIMessage(f"saw {len(state['messages'])} messages")]}

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_node("tools", ToolNode([lookup]))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition, ["tools", END])
    builder.add_edge("tools", "agent")
    add_handoff(builder, every=1000, keep=20, model=mine, ledger=None)
    with HandoffSaver.from_conn_string(path) as saver:
        graph = builder.compile(checkpointer=saver)
        with pytest.raises(ConnectionError):
            graph.invoke({"messages": [HumanMessage("Go on.")]}, config())
        failing = False
        result = graph.invoke(None, config())
    assert result["messages"][-1].content == "saw 63 messages"
    assert asked == []


def test_max_tokens_may_be_a_share_of_the_context() -> None:
    assert SummarizerNode(max_tokens=0.5, context=64_000).policy.max_tokens == 32_000
    for wrong in ({"max_tokens": 0.5}, {"max_tokens": 1.5, "context": 1_000}):
        with pytest.raises(ValueError, match="share of a model's context"):
            SummarizerNode(**wrong)
