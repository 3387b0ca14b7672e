"""Compacting what a running graph holds: the short way gives what the long way would."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agents import REQUEST
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.types import Overwrite, Send

from handoff_graph import HeuristicSummarizer
from handoff_graph.compaction import Head, compact, compact_nested, fold_channels, recover
from handoff_graph.fold import Policy
from handoff_graph.schema import utc_now
from handoff_graph.transcript import invalid_reason, is_briefing


def exchange(number: int) -> list[BaseMessage]:
    call = {"name": "t", "args": {"n": number}, "id": f"c{number}"}
    return [
        AIMessage("", id=f"a{number}", tool_calls=[call]),
        ToolMessage(f"out {number}", id=f"r{number}", tool_call_id=f"c{number}"),
    ]


def advance(head: Head, messages: list[Any]) -> Head:
    policy = Policy(every=3)
    return fold_channels(head, {"m": messages}, policy, HeuristicSummarizer(), utc_now)


@given(st.lists(st.sampled_from(["exchange", "human", "drop", "replace"]), max_size=30))
def test_what_is_stored_does_not_depend_on_the_way_it_is_found(steps: list[str]) -> None:
    """A graph that grows its list, and sometimes removes or replaces a message in it."""
    messages: list[BaseMessage] = [HumanMessage(REQUEST, id="h")]
    head = Head()
    for number, step in enumerate(steps):
        if step == "exchange":
            messages += exchange(number)
        elif step == "human":
            messages.append(HumanMessage(f"said {number}", id=f"h{number}"))
        elif step == "drop" and len(messages) > 3:
            whole = [m for m in messages if m.id not in ("a0", "r0", "a1", "r1")]
            messages = whole or messages
        elif step == "replace":
            last = max(i for i, m in enumerate(messages) if isinstance(m, HumanMessage))
            messages[last] = HumanMessage(f"edited {number}", id=messages[last].id)
        head = advance(head, messages)
        channel = head.channels.get("m")
        stored = compact(messages, channel)
        assert invalid_reason(stored) is None
        if channel is not None:
            assert stored == compact(messages, replace(channel, scanned=0))
            assert is_briefing(stored[0])
            rebuilt = recover({"m": stored}, {"m": messages}, head.state, head.state).channels["m"]
            assert compact(messages, rebuilt) == stored


def test_transcripts_are_found_wherever_they_are_carried() -> None:
    messages: list[BaseMessage] = [HumanMessage(REQUEST, id="h")]
    for number in range(6):
        messages += exchange(number)
    channels = advance(Head(), messages).channels
    short = compact(messages, channels["m"])
    assert len(short) < len(messages)
    assert compact_nested(Send("x", {"deep": (1, [messages])}), channels) == Send(
        "x", {"deep": (1, [short])}
    )
    assert compact_nested(Overwrite(messages), channels) == Overwrite(short)
    for other in ({"a": [1, "x"]}, [HumanMessage("new", id="new")], "text", None, (1,)):
        assert compact_nested(other, channels) is other
