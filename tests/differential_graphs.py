"""The graphs that run on two savers, and the record of what their nodes were called with.

Every factory takes a `Trace` and a checkpointer and gives a compiled graph. Nodes decide from
their input and from the trace alone, so a graph runs alike whatever stores its checkpoints.
"""

from __future__ import annotations

import asyncio
import operator
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.channels import EphemeralValue, Topic, UntrackedValue
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.config import get_config, get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.managed import RemainingSteps
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Overwrite, RetryPolicy, Send, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

Saver = BaseCheckpointSaver[Any]
Graph = Any  # a compiled StateGraph or entrypoint; their type parameters say nothing here
Factory = Callable[["Trace", Saver], Graph]


class Trace:
    """What ran, in order, since it was last taken; nodes call it first thing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: list[tuple[int, str, dict[str, Any]]] = []
        self._counts: Counter[str] = Counter()
        self.waiting = asyncio.Event()

    def __call__(self, name: str, /, **essentials: Any) -> int:
        """Note an execution; gives how many times this name has been noted, this one included."""
        return self.at(get_config()["metadata"].get("langgraph_step", -1), name, **essentials)

    def at(self, step: int, name: str, /, **essentials: Any) -> int:
        """The same for a coroutine, in which Python 3.10 cannot find the config."""
        with self._lock:
            self._entries.append((step, name, essentials))
            self._counts[name] += 1
            return self._counts[name]

    def take(self) -> list[tuple[int, str, dict[str, Any]]]:
        """The entries since the last call."""
        with self._lock:
            entries, self._entries = self._entries, []
        return entries


class Log(TypedDict, total=False):
    """A state in which every node leaves its name."""

    log: Annotated[list[Any], operator.add]
    note: str


def _noting(trace: Trace, name: str) -> Callable[[Log], Log]:
    def node(state: Log) -> Log:
        trace(name, log=state.get("log"), note=state.get("note"))
        return {"log": [name]}

    return node


def _chain(trace: Trace, names: Sequence[str]) -> StateGraph[Any, Any, Any, Any]:
    builder = StateGraph(Log)
    for name in names:
        builder.add_node(name, _noting(trace, name))
    for before, after in zip([START, *names], [*names, END], strict=True):
        builder.add_edge(before, after)
    return builder


def chain(**options: Any) -> Factory:
    """a, b, c, d in a row; `options` go to `compile`."""

    def factory(trace: Trace, saver: Saver) -> Graph:
        return _chain(trace, "abcd").compile(checkpointer=saver, **options)

    return factory


# -- interrupts ----------------------------------------------------------------------------------


def asks_twice(trace: Trace, saver: Saver) -> Graph:
    """A node with two questions, between two that ask nothing."""

    def asker(state: Log) -> Log:
        trace("asker", log=state["log"])
        first = interrupt({"question": "first?", "log": state["log"]})
        trace("asker goes on", first=first)
        second = interrupt(["second?", first])
        return {"log": [f"asker: {first}, {second}"]}

    builder = StateGraph(Log)
    builder.add_node("a", _noting(trace, "a"))
    builder.add_node("asker", asker)
    builder.add_node("z", _noting(trace, "z"))
    builder.add_edge(START, "a")
    builder.add_edge("a", "asker")
    builder.add_edge("asker", "z")
    return builder.compile(checkpointer=saver)


def asks_in_parallel(trace: Trace, saver: Saver) -> Graph:
    """Three branches that each ask, one that does not, and a join."""

    def branch(name: str) -> Callable[[Log], Log]:
        def node(state: Log) -> Log:
            trace(name, log=state["log"])
            answer = interrupt(f"{name}?") if name != "quiet" else "nothing"
            return {"log": [f"{name}: {answer}"]}

        return node

    builder = StateGraph(Log)
    builder.add_node("a", _noting(trace, "a"))
    builder.add_node("join", _noting(trace, "join"))
    for name in ("east", "north", "quiet", "west"):
        builder.add_node(name, branch(name))
        builder.add_edge("a", name)
        # One edge each: LangGraph's barrier for a joint edge is a set that a background put
        # may store with what the next superstep has already added to it.
        builder.add_edge(name, "join")
    builder.add_edge(START, "a")
    return builder.compile(checkpointer=saver)


# -- commands ------------------------------------------------------------------------------------


def commands(trace: Trace, saver: Saver) -> Graph:
    """Nodes that say themselves where to go on, with a question in one of them."""

    def route(state: Log) -> Command[Any]:
        trace("route", log=state["log"], note=state.get("note"))
        if state.get("note") == "skip":
            return Command(goto="z", update={"log": ["route skips"]})
        return Command(goto=["ask", Send("side", {"log": ["sent"]})], update={"log": ["route"]})

    def ask(state: Log) -> Command[Any]:
        trace("ask", log=state["log"], note=state.get("note"))
        answer = interrupt("where to?")
        return Command(goto=answer, update={"log": [f"to {answer}"], "note": "asked"})

    builder = StateGraph(Log)
    builder.add_node("route", route, destinations=("ask", "side", "z"))
    builder.add_node("ask", ask, destinations=("side", "z"))
    builder.add_node("side", _noting(trace, "side"))
    builder.add_node("z", _noting(trace, "z"))
    builder.add_edge(START, "route")
    return builder.compile(checkpointer=saver)


def to_the_parent(trace: Trace, saver: Saver) -> Graph:
    """A subgraph that asks, and then sends its parent on by `Command.PARENT`."""

    def leave(state: Log) -> Command[Any]:
        trace("leave", log=state["log"])
        answer = interrupt("leave?")
        return Command(graph=Command.PARENT, goto="far", update={"log": [f"left: {answer}"]})

    child = StateGraph(Log)
    child.add_node("in", _noting(trace, "in"))
    child.add_node("leave", leave)
    child.add_edge(START, "in")
    child.add_edge("in", "leave")
    parent = StateGraph(Log)
    parent.add_node("a", _noting(trace, "a"))
    parent.add_node("child", child.compile())
    parent.add_node("near", _noting(trace, "near"))
    parent.add_node("far", _noting(trace, "far"))
    parent.add_edge(START, "a")
    parent.add_edge("a", "child")
    parent.add_edge("far", "near")
    return parent.compile(checkpointer=saver)


# -- fan-out, joins ------------------------------------------------------------------------------


class Fan(TypedDict, total=False):
    """Jobs and what came of them."""

    jobs: list[int]
    done: Annotated[list[Any], operator.add]


class Job(TypedDict):
    """What a `Send` carries."""

    job: int


def fan_out(trace: Trace, saver: Saver) -> Graph:
    """A `Send` per job; the last job fails once, and one asks when it is told to."""

    def plan(state: Fan) -> Fan:
        trace("plan", jobs=state["jobs"])
        return {"done": ["planned"]}

    def spread(state: Fan) -> list[Send]:
        return [Send("work", {"job": job}) for job in state["jobs"]]

    def work(state: Job) -> Fan:
        attempt = trace(f"work {state['job']}", job=state["job"])
        if state["job"] == 9 and attempt == 1:
            raise ValueError("job 9 fails once")
        if state["job"] >= 100:
            return {"done": [f"{state['job']}: {interrupt(state['job'])}"]}
        return {"done": [state["job"] * 10]}

    def join(state: Fan) -> Fan:
        trace("join", done=state["done"])
        return {"done": ["joined"]}

    builder = StateGraph(Fan)
    builder.add_node("plan", plan)
    builder.add_node("work", work)
    builder.add_node("join", join)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", spread, ["work"])
    builder.add_edge("work", "join")
    return builder.compile(checkpointer=saver)


def deferred(trace: Trace, saver: Saver) -> Graph:
    """A short and a long branch, a deferred join that waits for both and asks."""

    def join(state: Log) -> Log:
        trace("join", log=state["log"])
        return {"log": [f"joined: {interrupt('join?')}"]}

    builder = StateGraph(Log)
    for name in ("a", "short", "long1", "long2"):
        builder.add_node(name, _noting(trace, name))
    builder.add_node("join", join, defer=True)
    builder.add_edge(START, "a")
    builder.add_edge("a", "short")
    builder.add_edge("a", "long1")
    builder.add_edge("long1", "long2")
    builder.add_edge("short", "join")
    builder.add_edge("long2", "join")
    return builder.compile(checkpointer=saver)


# -- subgraphs -----------------------------------------------------------------------------------


def nested(checkpointer: bool | None) -> Factory:
    """Three deep; the lowest asks before and the middle one after."""

    def factory(trace: Trace, saver: Saver) -> Graph:
        def asking(name: str) -> Callable[[Log], Log]:
            def node(state: Log) -> Log:
                trace(name, log=state["log"])
                return {"log": [f"{name}: {interrupt(f'{name}?')}"]}

            return node

        low = StateGraph(Log)
        low.add_node("low_in", _noting(trace, "low_in"))
        low.add_node("low_ask", asking("low_ask"))
        low.add_edge(START, "low_in")
        low.add_edge("low_in", "low_ask")
        middle = StateGraph(Log)
        middle.add_node("low", low.compile(checkpointer=checkpointer))
        middle.add_node("middle_ask", asking("middle_ask"))
        middle.add_edge(START, "low")
        middle.add_edge("low", "middle_ask")
        top = StateGraph(Log)
        top.add_node("a", _noting(trace, "a"))
        top.add_node("middle", middle.compile(checkpointer=checkpointer))
        top.add_node("z", _noting(trace, "z"))
        top.add_edge(START, "a")
        top.add_edge("a", "middle")
        top.add_edge("middle", "z")
        return top.compile(checkpointer=saver)

    return factory


def called_in_a_node(trace: Trace, saver: Saver) -> Graph:
    """A node that calls a subgraph by itself, and asks after it."""
    child = StateGraph(Log)

    def ask(state: Log) -> Log:
        trace("child asks", log=state["log"])
        return {"log": [f"child: {interrupt('child?')}"]}

    child.add_node("before", _noting(trace, "before"))
    child.add_node("ask", ask)
    child.add_edge(START, "before")
    child.add_edge("before", "ask")
    compiled = child.compile()

    def caller(state: Log) -> Log:
        trace("caller", log=state["log"])
        got = compiled.invoke({"log": ["from the caller"]})
        return {"log": [got["log"], interrupt("caller?")]}

    builder = StateGraph(Log)
    builder.add_node("caller", caller)
    builder.add_edge(START, "caller")
    return builder.compile(checkpointer=saver)


# -- errors --------------------------------------------------------------------------------------


def failing(trace: Trace, saver: Saver) -> Graph:
    """A node that is retried, one that fails for good once, an edge that fails once."""

    def retried(state: Log) -> Log:
        attempt = trace("retried", log=state["log"])
        if attempt < 3:
            raise ConnectionError(f"attempt {attempt}")
        return {"log": [f"retried, attempt {attempt}"]}

    def broken(state: Log) -> Log:
        if trace("broken", log=state["log"]) == 1:
            raise ValueError("broken once")
        return {"log": ["broken no more"]}

    def edge(state: Log) -> str:
        if trace("edge", log=state["log"]) == 1:
            raise LookupError("no way on, once")
        return "z"

    quick = RetryPolicy(initial_interval=0, jitter=False, max_attempts=3, retry_on=ConnectionError)
    builder = StateGraph(Log)
    builder.add_node("retried", retried, retry_policy=quick)
    builder.add_node("broken", broken)
    builder.add_node("z", _noting(trace, "z"))
    builder.add_edge(START, "retried")
    builder.add_edge("retried", "broken")
    builder.add_conditional_edges("broken", edge, ["z"])
    return builder.compile(checkpointer=saver)


class Conflict(TypedDict, total=False):
    """One value without a reducer, and the steps that are left."""

    value: int
    left: RemainingSteps


def conflicting(trace: Trace, saver: Saver) -> Graph:
    """Two nodes that write one value in the same superstep."""

    def node(name: str) -> Callable[[Conflict], Conflict]:
        def run(state: Conflict) -> Conflict:
            return {"value": trace(name, left=state["left"])}

        return run

    builder = StateGraph(Conflict)
    builder.add_node("one", node("one"))
    builder.add_node("two", node("two"))
    builder.add_edge(START, "one")
    builder.add_edge(START, "two")
    return builder.compile(checkpointer=saver)


def endless(trace: Trace, saver: Saver) -> Graph:
    """A loop that only the recursion limit ends."""

    def again(state: Log) -> Log:
        trace("again", log=state["log"])
        return {"log": [len(state["log"])]}

    builder = StateGraph(Log)
    builder.add_node("again", again)
    builder.add_edge(START, "again")
    builder.add_conditional_edges("again", lambda s: END if len(s["log"]) > 6 else "again")
    return builder.compile(checkpointer=saver)


def patient(trace: Trace, saver: Saver) -> Graph:
    """A coroutine that waits for ever when it runs first, beside a branch that is done."""

    async def slow(state: Log) -> Log:
        if trace.at(1, "slow", log=state["log"]) == 1:
            trace.waiting.set()
            await asyncio.Event().wait()
        return {"log": ["slow"]}

    builder = StateGraph(Log)
    builder.add_node("a", _noting(trace, "a"))
    builder.add_node("slow", slow)
    builder.add_node("z", _noting(trace, "z"))
    builder.add_edge(START, "a")
    builder.add_edge("a", "slow")
    builder.add_edge("slow", "z")
    return builder.compile(checkpointer=saver)


# -- states and channels -------------------------------------------------------------------------


class Point(BaseModel):
    """A pydantic value."""

    x: int
    label: str = "point"


@dataclass
class Span:
    """A dataclass value."""

    start: Point
    length: int = 1


class Valued(TypedDict, total=False):
    """A state that holds objects."""

    point: Point
    spans: Annotated[list[Span], operator.add]


def objects(trace: Trace, saver: Saver) -> Graph:
    """Pydantic and dataclass values, through a checkpoint and a pending write."""

    def move(state: Valued) -> Valued:
        trace("move", point=state["point"])
        return {"point": Point(x=state["point"].x + 1), "spans": [Span(state["point"])]}

    def measure(state: Valued) -> Valued:
        trace("measure", spans=state["spans"])
        return {"spans": [Span(state["point"], length=7)]}

    def ask(state: Valued) -> Valued:
        trace("ask", point=state["point"])
        return {"point": Point(x=interrupt(state["point"].x), label="asked")}

    builder = StateGraph(Valued)
    for name, node in (("move", move), ("measure", measure), ("ask", ask)):
        builder.add_node(name, node)
    builder.add_edge(START, "move")
    builder.add_edge("move", "measure")
    builder.add_edge("move", "ask")
    return builder.compile(checkpointer=saver)


class ModelState(BaseModel):
    """A whole state as a pydantic model."""

    count: int = 0
    point: Point = Point(x=0)


@dataclass
class DataState:
    """A whole state as a dataclass."""

    count: int = 0
    names: Annotated[list[str], operator.add] = field(default_factory=list)


def model_state(trace: Trace, saver: Saver) -> Graph:
    """A loop of two over a pydantic state."""

    def grow(state: ModelState) -> dict[str, Any]:
        trace("grow", count=state.count, point=state.point)
        return {"count": state.count + 1, "point": Point(x=state.count)}

    builder = StateGraph(ModelState)
    builder.add_node("grow", grow)
    builder.add_edge(START, "grow")
    builder.add_conditional_edges("grow", lambda s: END if s.count % 2 == 0 else "grow")
    return builder.compile(checkpointer=saver)


def data_state(trace: Trace, saver: Saver) -> Graph:
    """The same over a dataclass."""

    def grow(state: DataState) -> dict[str, Any]:
        trace("grow", count=state.count, names=state.names)
        return {"count": state.count + 1, "names": [f"n{state.count}"]}

    builder = StateGraph(DataState)
    builder.add_node("grow", grow)
    builder.add_edge(START, "grow")
    builder.add_conditional_edges("grow", lambda s: END if s.count % 2 == 0 else "grow")
    return builder.compile(checkpointer=saver)


def _joined(value: list[Any], writes: Sequence[Any]) -> list[Any]:
    return [*value, *(item for write in writes for item in write)]


class Channels(TypedDict, total=False):
    """Channels of every kind."""

    delta: Annotated[list[Any], DeltaChannel(_joined, snapshot_frequency=3)]
    messages: Annotated[list[Any], DeltaChannel(_messages_delta_reducer)]
    # Not accumulating: LangGraph hands out such a topic's own list, to which the next superstep
    # may already have added when a background put stores it.
    topic: Annotated[list[Any], Topic(str)]
    once: Annotated[str, EphemeralValue(str)]
    unsaved: Annotated[str, UntrackedValue(str)]
    total: Annotated[int, operator.add]


def channels(trace: Trace, saver: Saver) -> Graph:
    """Five rounds over every kind of channel, with a question and an overwrite among them."""

    def turn(state: Channels) -> dict[str, Any]:
        number = state.get("total", 0)
        trace("turn", **{key: value for key, value in state.items() if key != "messages"})
        if number == 2:
            interrupt("third round?")
        update: dict[str, Any] = {
            "delta": [number],
            "messages": [HumanMessage(f"round {number}", id=f"m{number}")],
            "topic": f"topic {number}",
            "once": f"once {number}",
            "unsaved": f"unsaved {number}",
            "total": 1,
        }
        if number == 4:
            update["delta"] = Overwrite(["fresh"])
        return update

    builder = StateGraph(Channels)
    builder.add_node("turn", turn)
    builder.add_edge(START, "turn")
    builder.add_conditional_edges("turn", lambda s: END if s["total"] % 6 == 5 else "turn")
    return builder.compile(checkpointer=saver)


# -- the functional API --------------------------------------------------------------------------


def functional(trace: Trace, saver: Saver) -> Graph:
    """Tasks, a question between them, and a saved value that is not the returned one."""

    @task
    def double(number: int) -> int:
        trace(f"double {number}")
        return number * 2

    @task
    def fails_once(number: int) -> int:
        if trace("fails_once", number=number) == 1:
            raise ValueError("a task fails once")
        return number

    @entrypoint(checkpointer=saver)
    def flow(numbers: list[int], *, previous: Any = None) -> Any:
        trace("flow", numbers=numbers, previous=previous)
        doubled = [double(n).result() for n in numbers]
        answer = interrupt({"doubled": doubled})
        fails_once(len(doubled)).result()
        again = interrupt("sure?")
        get_stream_writer()({"answers": [answer, again]})
        return entrypoint.final(
            value={"doubled": doubled, "answers": [answer, again], "previous": previous},
            save=[*(previous or []), sum(doubled)],
        )

    return flow


def functional_messages(trace: Trace, saver: Saver) -> Graph:
    """An entrypoint whose input, saved value and task results are messages."""

    @task
    def reply(text: str) -> AIMessage:
        trace("reply", text=text)
        return AIMessage(f"re: {text}", id=f"re-{text}")

    @entrypoint(checkpointer=saver)
    def flow(messages: list[Any], *, previous: Any = None) -> Any:
        trace("flow", messages=messages, previous=previous)
        answer = reply(messages[-1].content).result()
        approved = interrupt("send?")
        value = [*(previous or []), *messages, answer]
        return entrypoint.final(value={"approved": approved, "count": len(value)}, save=value)

    return flow


# -- tool-calling agents -------------------------------------------------------------------------


class Agent(MessagesState, total=False):
    """A transcript, and a count that no fold touches."""

    turns: Annotated[int, operator.add]


def agent(
    calls: int,
    *,
    per_turn: int = 1,
    ask_at: Sequence[int] = (),
    fail_at: int = -1,
    edge_fails_at: int = -1,
    remove: bool = False,
    **options: Any,
) -> Factory:
    """A ReAct loop of `calls` turns, whose tools may ask or fail once.

    It counts its turns in a channel: what a fold does to its transcript must not show in what
    it does. Each tool call runs as a task of its own, as in `create_agent`.
    """

    def factory(trace: Trace, saver: Saver) -> Graph:
        return agent_builder(trace).compile(checkpointer=saver, **options)

    def agent_builder(trace: Trace) -> StateGraph[Any, Any, Any, Any]:
        def lookup(key: str) -> str:
            """Look a key up."""
            attempt = trace(f"lookup {key}")
            turn = int(key.split(".")[0])
            if turn == fail_at and attempt == 1:
                raise ConnectionError(f"{key} is not reachable, once")
            if turn in ask_at:
                return f"{key}: {interrupt(f'{key}?')}"
            return f"{key} found"

        def model(state: Agent) -> dict[str, Any]:
            turn = state.get("turns", 0)
            last = state["messages"][-1]
            trace("model", turn=turn, last=(last.type, last.content))
            if turn % (calls + 1) == calls:
                return {"messages": [AIMessage("done", id=f"ai-{turn}")], "turns": 1}
            wanted = [
                {"name": "lookup", "args": {"key": f"{turn}.{n}"}, "id": f"call-{turn}.{n}"}
                for n in range(per_turn)
            ]
            message = AIMessage(f"turn {turn}", tool_calls=wanted, id=f"ai-{turn}")
            gone = [RemoveMessage(state["messages"][-1].id)] if remove and turn == calls - 1 else []
            return {"messages": [message, *gone], "turns": 1}

        def on(state: Agent) -> list[Send] | str:
            if trace("edge", turns=state["turns"]) == edge_fails_at + 1:
                raise LookupError("the edge fails once")
            wanted = getattr(state["messages"][-1], "tool_calls", ())
            return [Send("tools", [call]) for call in wanted] or END

        builder = StateGraph(Agent)
        builder.add_node("model", model)
        builder.add_node("tools", ToolNode([lookup], handle_tool_errors=False))
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", on, ["tools", END])
        builder.add_edge("tools", "model")
        return builder

    factory.builder = agent_builder  # type: ignore[attr-defined]
    return factory


def agent_in_a_subgraph(checkpointer: bool | None, calls: int, ask_at: Sequence[int]) -> Factory:
    """The agent as a node of a graph with a transcript of its own, asked twice."""

    def factory(trace: Trace, saver: Saver) -> Graph:
        inner = agent(calls, ask_at=ask_at).builder(trace)  # type: ignore[attr-defined]

        def report(state: Agent) -> dict[str, Any]:
            last = state["messages"][-1]
            trace("report", turns=state["turns"], last=last.content)
            text = f"report: {interrupt('report?')}"
            return {"messages": [AIMessage(text, id=f"report-{state['turns']}")]}

        builder = StateGraph(Agent)
        builder.add_node("agent", inner.compile(checkpointer=checkpointer))
        builder.add_node("report", report)
        builder.add_edge(START, "agent")
        builder.add_edge("agent", "report")
        return builder.compile(checkpointer=saver)

    return factory


def patient_agent(calls: int) -> Factory:
    """An agent in whose third turn a coroutine waits for ever, once."""

    def factory(trace: Trace, saver: Saver) -> Graph:
        async def tools(state: Agent) -> dict[str, Any]:
            turn = state["turns"]
            if trace.at(turn, "tools", turn=turn) == calls:
                trace.waiting.set()
                await asyncio.Event().wait()
            call = state["messages"][-1].tool_calls[0]["id"]
            return {"messages": [ToolMessage(f"{turn} found", tool_call_id=call, id=f"t-{turn}")]}

        def model(state: Agent) -> dict[str, Any]:
            turn = state.get("turns", 0)
            trace("model", turn=turn, last=state["messages"][-1].content)
            calling = [{"name": "lookup", "args": {"key": str(turn)}, "id": f"call-{turn}"}]
            message = AIMessage("", id=f"ai-{turn}", tool_calls=calling if turn < calls else [])
            return {"messages": [message], "turns": 1}

        def on(state: Agent) -> str:
            return "tools" if state["messages"][-1].tool_calls else END

        builder = StateGraph(Agent)
        builder.add_node("model", model)
        builder.add_node("tools", tools)
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", on, ["tools", END])
        builder.add_edge("tools", "model")
        return builder.compile(checkpointer=saver)

    return factory
