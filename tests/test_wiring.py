"""`add_handoff`: which graphs it takes, and what it says of the others."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from agents import DeltaMessages, build, config, request
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from pydantic import BaseModel
from typing_extensions import NotRequired, TypedDict

from handoff_graph import CannotWire, HandoffState, SummarizerNode, add_handoff, merge
from handoff_graph.transcript import is_briefing


def graph(state: Any) -> StateGraph[Any, Any, Any, Any]:
    """The smallest graph of the right form."""
    builder = StateGraph(state)
    builder.add_node("agent", lambda state: {})
    builder.add_node("tools", lambda state: {})
    builder.add_edge(START, "agent")
    builder.add_edge("tools", "agent")
    return builder


class Profile(TypedDict):
    """A nested type that is no list."""

    name: str


class Rich(MessagesState):
    """A state with fields of all kinds beside its transcript."""

    profile: Profile
    names: Annotated[list[str], operator.add]
    files: Annotated[dict[str, str], operator.or_]
    last: AIMessage
    scratch: list[Any]
    count: NotRequired[Annotated[int, operator.add]]
    anything: Any


def trimmed(left: list[Any], right: list[Any]) -> list[Any]:
    """A reducer of somebody's own around `add_messages`."""
    return list(add_messages(left, right))[-100:]  # type: ignore[arg-type]


class Trimmed(TypedDict):
    messages: Annotated[Sequence[BaseMessage], trimmed]


class Talk(TypedDict):
    talk: Annotated[list[AnyMessage], add_messages]


@dataclass
class Data:
    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list)


class Model(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages] = []
    title: str = ""


@pytest.mark.parametrize(
    "state", [MessagesState, HandoffState, DeltaMessages, Rich, Trimmed, Talk, Data, Model]
)
def test_a_state_whose_transcript_honours_removals_is_taken(state: type) -> None:
    add_handoff(graph(state), ledger=None).compile()


class Added(TypedDict):
    messages: Annotated[list[Any], operator.add]


class Typed(MessagesState):
    talk: Annotated[list[AnyMessage], operator.add]


class Bare(TypedDict):
    messages: list[Any]


class BareTyped(MessagesState):
    talk: NotRequired[Sequence[BaseMessage]]


class OptionalTalk(MessagesState):
    talk: list[AnyMessage] | None


def concatenated(left: list[Any], writes: Sequence[Any]) -> list[Any]:
    """A batch reducer that knows no removal."""
    return [*left, *(message for write in writes for message in write)]


class DeltaAdded(TypedDict):
    messages: Annotated[list[Any], DeltaChannel(concatenated)]


def raising(left: list[Any], right: list[Any]) -> list[Any]:
    """A reducer that does not take what it does not know."""
    raise LookupError(left)


class Raising(TypedDict):
    messages: Annotated[list[Any], raising]


@pytest.mark.parametrize(
    ("state", "channel"),
    [
        (Added, "messages"),
        (Typed, "talk"),
        (Bare, "messages"),
        (BareTyped, "talk"),
        (OptionalTalk, "talk"),
        (DeltaAdded, "messages"),
        (Raising, "messages"),
    ],
)
def test_a_transcript_that_keeps_what_is_removed_is_refused(state: type, channel: str) -> None:
    builder = graph(state)
    before = set(builder.nodes), set(builder.edges), set(builder.channels)
    with pytest.raises(CannotWire, match=f"channel '{channel}' cannot be folded.*add_messages"):
        add_handoff(builder, ledger=None)
    assert (set(builder.nodes), set(builder.edges), set(builder.channels)) == before


def test_a_channel_that_cannot_be_folded_and_does_not_say_what_it_holds_is_left_alone() -> None:
    """Writes by id would replace the whole list in it."""

    class Copies(HandoffState):
        scratch: list[Any]

    builder = build(12, state=Copies)
    builder.add_node("copy", lambda state: {"scratch": list(state["messages"])})
    builder.edges.discard(("tools", "agent"))
    builder.add_edge("tools", "copy")
    builder.add_edge("copy", "agent")
    wired = add_handoff(builder, tools="copy", ledger=None, every=3)
    values = wired.compile().invoke(request(), config())
    assert is_briefing(values["messages"][0])
    assert list(values["task"]["folds"]) == ["messages"]


def extend(left: list[Any], right: list[Any]) -> list[Any]:
    """A reducer that changes its argument."""
    left.extend(right)
    return left


class Extended(TypedDict):
    messages: Annotated[list[Any], extend]


def test_a_reducer_is_tried_on_a_value_of_its_own() -> None:
    """One that changes its argument in place must not change the graph it belongs to."""
    builder = graph(Extended)
    with pytest.raises(CannotWire):
        add_handoff(builder)
    assert builder.channels["messages"].get() == []


def test_a_state_without_a_transcript_is_refused() -> None:
    class Numbers(TypedDict):
        count: int
        names: Annotated[list[str], operator.add]

    with pytest.raises(CannotWire, match=r"nothing to fold \(channels: count, names\)"):
        add_handoff(graph(Numbers))


@pytest.mark.parametrize("state", [Annotated[list[Any], add_messages], dict])
def test_a_state_without_fields_is_refused(state: Any) -> None:
    with pytest.raises(CannotWire, match=r"no room for a task.*HandoffState"):
        add_handoff(graph(state))


class TextTask(MessagesState):
    task: str


class DictTask(MessagesState):
    task: dict[str, Any]


class OtherTask(MessagesState):
    task: Annotated[dict[str, Any], operator.or_]


@pytest.mark.parametrize("state", [TextTask, DictTask, OtherTask])
def test_a_channel_of_the_users_under_the_tasks_name_is_refused(state: type) -> None:
    with pytest.raises(CannotWire, match=r"channel 'task' of its own.*task_key="):
        add_handoff(graph(state))
    wired = add_handoff(build(12, state=state), task_key="job", ledger=None)
    agent = wired.compile(checkpointer=InMemorySaver())
    agent.invoke(request(), config())
    assert agent.get_state(config()).values["job"]["revision"] > 0


class Audited(MessagesState):
    task: Annotated[dict[str, Any], lambda ours, theirs: merge(ours, theirs)]


def test_a_reducer_around_merge_is_as_good() -> None:
    values = add_handoff(build(12, state=Audited), ledger=None).compile()
    assert values.invoke(request(), config())["task"]["revision"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"evry": 3}, "add_handoff has no option 'evry'; did you mean 'every'"),
        ({"tool": "x"}, "add_handoff has no option 'tool'; did you mean 'tools'"),
        ({"legder": "x"}, "did you mean 'ledger'"),
        ({"xyz": 3}, "has no option 'xyz'; see SummarizerNode"),
        ({"summarizer": SummarizerNode(), "every": 3}, "would ignore every= beside summarizer="),
        ({"summarizer": SummarizerNode(), "evry": 3}, "did you mean 'every'"),
    ],
)
def test_options_that_would_have_no_effect_are_refused(
    options: dict[str, Any], message: str
) -> None:
    builder = graph(MessagesState)
    with pytest.raises(TypeError, match=message):
        add_handoff(builder, **options)
    assert "summarize" not in builder.nodes


@pytest.mark.parametrize("tools", [[], ()])
def test_no_tools_node_is_refused(tools: Any) -> None:
    with pytest.raises(CannotWire, match="tools= names no node"):
        add_handoff(graph(MessagesState), tools=tools)
