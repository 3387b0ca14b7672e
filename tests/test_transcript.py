"""P2: whatever a history looks like, what stays could be sent to a chat provider."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.graph.message import _messages_delta_reducer, add_messages

from handoff_graph.rewriting import rewrite
from handoff_graph.transcript import (
    approximate_tokens,
    briefing_message,
    briefing_revision,
    completed_calls,
    has_open_call,
    invalid_reason,
    is_briefing,
    is_transcript,
    message_keys,
    message_text,
    split,
)

TEXTS = st.sampled_from(["", "hello", "Do not deploy.", "ok\nfine"])
CONTENTS = TEXTS | st.just([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "so"}])


def unreadable(id: str | None) -> Any:
    """A call whose arguments the model got wrong."""
    return {"name": "t", "args": "{broken", "id": id, "error": "no JSON"}


def asked_by(message: BaseMessage) -> list[str]:
    """The ids of all calls that a provider is sent with a message."""
    if not isinstance(message, AIMessage):
        return []
    return [call["id"] or "" for call in (*message.tool_calls, *message.invalid_tool_calls)]


@st.composite
def histories(draw: st.DrawFn, ids: bool = True) -> list[BaseMessage]:
    """Random transcripts: parallel calls, missing and stray results, several humans, system
    messages in the middle, results that come late or twice, call ids used again or left out,
    calls whose arguments are no JSON."""
    messages: list[BaseMessage] = []
    waiting: list[str] = []
    for step in range(draw(st.integers(0, 14))):
        kind = draw(
            st.sampled_from(["human", "ai", "call", "call", "tool", "tool", "stray", "sys"])
        )
        if kind == "human":
            messages.append(HumanMessage(draw(TEXTS)))
        elif kind == "ai":
            messages.append(AIMessage(draw(CONTENTS)))
        elif kind == "sys":
            messages.append(SystemMessage("be kind"))
        elif kind == "call":
            names = [f"c{step}-{n}" for n in range(draw(st.integers(1, 3)))]
            if draw(st.booleans()):
                names[0] = draw(st.sampled_from(["again", ""]))
            if draw(st.booleans()):
                names[-1] = ""
            broken = draw(st.integers(0, len(names)))
            messages.append(
                AIMessage(
                    draw(CONTENTS),
                    tool_calls=[{"name": "t", "args": {}, "id": i} for i in names[broken:]],
                    invalid_tool_calls=[unreadable(i or None) for i in names[:broken]],
                )
            )
            waiting += names
        elif kind == "tool" and waiting:
            for name in draw(st.permutations(waiting))[: draw(st.integers(1, len(waiting)))]:
                waiting.remove(name)
                messages.append(ToolMessage("out", tool_call_id=name))
        elif kind == "stray":
            messages.append(ToolMessage("late", tool_call_id=f"gone-{step}"))
    if ids:
        for number, message in enumerate(messages):
            message.id = f"m{number}"
    return messages


def acceptable(messages: list[BaseMessage]) -> bool:
    """A provider's rules, written down once more, independently of the code under test."""
    position = 0
    while position < len(messages) and isinstance(messages[position], SystemMessage):
        position += 1
    while position < len(messages):
        message = messages[position]
        position += 1
        if isinstance(message, (SystemMessage, ToolMessage)):
            return False
        if asked := asked_by(message):
            while position < len(messages) and isinstance(messages[position], ToolMessage):
                answered = messages[position]
                assert isinstance(answered, ToolMessage)
                if answered.tool_call_id in asked:
                    asked.remove(answered.tool_call_id)
                position += 1
            if asked:
                return False
    return True


@given(histories(), st.integers(1, 5))
def test_p2_the_tail_is_valid_and_keeps_the_newest_human(history: Any, keep: int) -> None:
    if has_open_call(history):
        return
    parts = split(history, keep)
    briefing = briefing_message("briefing", revision=1, id="b")
    assert acceptable([briefing, *parts.tail])
    assert invalid_reason([briefing, *parts.tail]) is None
    humans = [m for m in history if isinstance(m, HumanMessage)]
    assert not humans or humans[-1] in parts.tail
    talk = [m for m in parts.tail if not isinstance(m, SystemMessage)]
    assert not humans or isinstance(talk[0], HumanMessage)
    together = {id(m) for m in (*parts.folded, *parts.tail)}
    assert together == {id(m) for m in history}


@given(histories(), st.integers(1, 5))
def test_the_checkers_agree(history: Any, keep: int) -> None:
    if not any(asked_by(m) for m in history):
        assert (invalid_reason(history) is None) == acceptable(history)


@given(histories(), st.integers(1, 3))
def test_the_newest_results_are_never_folded_before_a_model_saw_them(h: Any, keep: int) -> None:
    if not h or has_open_call(h) or invalid_reason(h):
        return
    assert h[-1] in split(h, keep).tail


@pytest.mark.parametrize("reducer", ["add_messages", "delta"])
@given(histories(), st.integers(1, 5))
def test_rewriting_by_id_gives_briefing_and_tail(reducer: str, history: Any, keep: int) -> None:
    parts = split(history, keep)
    if not parts.folded:
        return
    briefing = briefing_message("briefing", revision=3, id="b")
    writes = rewrite(history, briefing, parts.tail)
    appended = HumanMessage("from another branch", id="other")
    for order in ([writes, [appended]], [[appended], writes]):
        if reducer == "delta":
            result = _messages_delta_reducer(list(history), order)
        else:
            result = list(history)
            for write in order:
                result = add_messages(result, write)
        assert is_briefing(result[0])
        assert [m.content for m in result[1:]] == [m.content for m in (*parts.tail, appended)]
        assert len({m.id for m in result}) == len(result)


@given(histories())
def test_folding_again_folds_no_briefing(history: Any) -> None:
    briefing = briefing_message("briefing", revision=2, id="b")
    parts = split([briefing, *history], 1)
    assert not any(is_briefing(m) for m in (*parts.folded, *parts.tail))
    assert briefing_revision([briefing, *history]) == 2


@given(histories(ids=False))
def test_messages_without_ids_have_keys_that_do_not_move(history: Any) -> None:
    keys = message_keys(history)
    assert len(set(keys)) == len(keys)
    assert message_keys([*history, HumanMessage("hello")])[: len(keys)] == keys


def call(*ids: str, text: str = "") -> AIMessage:
    return AIMessage(text, tool_calls=[{"name": "t", "args": {}, "id": i} for i in ids])


def result(id: str) -> ToolMessage:
    return ToolMessage("out", tool_call_id=id)


def test_parallel_calls_count_one_each_and_stay_together() -> None:
    history = [HumanMessage("go"), call("a", "b", "c"), result("b"), result("a"), result("c")]
    assert completed_calls(history) == 3
    assert split([*history, AIMessage("done")], 2).tail == [*history, AIMessage("done")]
    assert split([*history, AIMessage("done")], 1).folded == history[1:]


def test_an_open_call_is_open_until_its_result_or_a_later_answer() -> None:
    history = [HumanMessage("go"), call("a", "b"), result("a")]
    assert has_open_call(history)
    assert has_open_call([*history, HumanMessage("and?")])
    assert not has_open_call([*history, result("b")])
    assert not has_open_call([*history, AIMessage("gave up")])


def test_counting_starts_behind_the_anchor() -> None:
    history = [call("a"), result("a"), call("b"), result("b")]
    for number, message in enumerate(history):
        message.id = f"m{number}"
    assert completed_calls(history, "m1") == 1
    assert completed_calls(history, "m3") == 0
    assert completed_calls(history, "unknown") == 2


def test_old_style_function_calls_are_exchanges_too() -> None:
    asked = AIMessage("", additional_kwargs={"function_call": {"name": "f", "arguments": "{}"}})
    answered = FunctionMessage("out", name="f")
    history = [HumanMessage("go"), asked]
    assert has_open_call(history)
    history.append(answered)
    assert not has_open_call(history)
    assert completed_calls(history) == 1
    assert invalid_reason(history) is None


def test_a_call_with_broken_arguments_is_a_call() -> None:
    asked = AIMessage("", invalid_tool_calls=[unreadable("bad")])
    history = [HumanMessage("go"), call("a"), result("a"), asked]
    assert has_open_call(history)
    assert "calls without results" in str(invalid_reason([*history, HumanMessage("?")]))
    history.append(result("bad"))
    assert not has_open_call(history)
    assert invalid_reason(history) is None
    assert completed_calls(history) == 2
    assert split(history, 1).tail == [history[0], *history[3:]]
    assert split([*history, AIMessage("done")], 1).folded == history[1:]


def test_calls_without_ids_have_the_results_that_follow() -> None:
    history = [HumanMessage("go"), call("", ""), result("")]
    assert has_open_call(history)
    history.append(result(""))
    assert not has_open_call(history)
    history += [AIMessage("", invalid_tool_calls=[unreadable(None)]), result("")]
    assert not has_open_call(history)
    assert completed_calls(history) == 3
    assert invalid_reason(history) is None
    assert split(history, 1).tail == [history[0], *history[-2:]]


def test_a_result_without_an_id_is_never_that_of_an_older_call() -> None:
    history = [HumanMessage("go"), call(""), AIMessage("gave up"), call(""), result("")]
    assert not has_open_call(history)
    assert completed_calls(history) == 1
    assert split(history, 3).tail == [history[0], *history[2:]]
    assert "without its call" in str(invalid_reason([result("")]))


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([result("x")], "without its call"),
        ([call("a"), HumanMessage("?")], "calls without results"),
        ([call("a"), HumanMessage("?"), result("a")], "other messages between"),
        ([HumanMessage("hi"), SystemMessage("late")], "system message behind"),
    ],
)
def test_what_a_provider_refuses_is_named(messages: list[BaseMessage], reason: str) -> None:
    assert reason in str(invalid_reason(messages))


def test_the_words_of_a_message_are_its_text_blocks() -> None:
    blocks: list[Any] = [
        {"type": "thinking", "thinking": "secret"},
        "plain",
        {"type": "text", "text": "words"},
        {"type": "image_url", "image_url": "x"},
    ]
    assert message_text(AIMessage(blocks)) == "plain\nwords"


def test_only_lists_of_messages_are_transcripts() -> None:
    assert is_transcript([HumanMessage("x")])
    assert not is_transcript([])
    assert not is_transcript(["x"])
    assert not is_transcript((HumanMessage("x"),))
    assert not is_transcript([HumanMessage("x"), RemoveMessage(id="1")])


class Note(BaseMessage):
    """A message class of a user's own."""

    type: str = "note"


@pytest.mark.parametrize(
    "odd", [RemoveMessage(id="a"), Note("x" * 400), ChatMessage("x", role="y")]
)
def test_tokens_of_any_message_are_counted(odd: BaseMessage) -> None:
    plain = HumanMessage("word " * 100)
    assert approximate_tokens([plain, odd]) >= 100
