"""How a constraint stops to bind (P3): by a person's word that is on record, and no other way."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from agents import RULE, build, config, request
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from handoff_graph import (
    HandoffSaver,
    HandoffState,
    UnknownConstraint,
    add_handoff,
    merge,
    task_update,
)
from handoff_graph.briefing import render_briefing
from handoff_graph.compaction import Head, fold_channels
from handoff_graph.constraints import active, proposals, retire, retired
from handoff_graph.fold import Fold, Folding, Policy, complete, prepare
from handoff_graph.guard import guard
from handoff_graph.lifting import lifted_in
from handoff_graph.schema import utc_now
from handoff_graph.summarize import HeuristicSummarizer

AT = "2026-03-01T10:00:00.000000Z"
QUIET = "Never deploy on Fridays."


def state_of(*rules: tuple[str, str], **fields: Any) -> dict[str, Any]:
    constraints = [{"id": key, "text": text, "src": "h0"} for key, text in rules]
    return merge({}, task_update(at="2026-01-01", by="human", constraints=constraints, **fields))


def heard(state: Any, *messages: BaseMessage, at: str = AT) -> dict[str, Any]:
    """The state after what is recorded of these messages whatever a summary says."""
    folding = Folding("messages", list(messages), [], 0, "", at)
    return merge(state, HeuristicSummarizer().captured(state, folding))


def binding(state: Any) -> list[str]:
    return [c["id"] for c in active(state)]


SEVERAL = state_of(
    ("c1", "Do not deploy"),
    ("c1-2", "Do not deploy on Fridays"),
    ("c1.3", QUIET),
    ("c10", "Keep lag under 2s."),
    ("p1", "Ask me before each call."),
    in_progress=[{"id": "p1", "text": "audit"}],
)


@pytest.mark.parametrize(
    ("said", "lifts"),
    [
        ("Please retire c1.", ["c1"]),
        ("You can drop [c1], the freeze is over.", ["c1"]),
        ("Good news: c10 no longer applies.", ["c10"]),
        ("c10 has been lifted by the board.", ["c10"]),
        ("Drop c1, c1-2 and c10.", ["c1", "c1-2", "c10"]),
        ("Both c1 and c10 are retired.", ["c1", "c10"]),
        ("I hereby lift the rule “Keep lag under 2s.” Thanks.", ["c10"]),
        ("Lift `c10`, please.", ["c10"]),
        ("- retire **c10**\n- go on", ["c10"]),
        # The longer of two names or quotes that fit in one place is meant.
        ("Retire c1-2.", ["c1-2"]),
        ("Retire c1.3.", ["c1.3"]),
        ('Drop "Do not deploy on Fridays".', ["c1-2"]),
        ("Retire c100.", []),
        ("Retire c1-20.", []),
        # Denied, asked, reported, of another time.
        ("Don't retire c1.", []),
        ("Don’t retire c1.", []),
        ("DO NOT RETIRE c1.", []),
        ("You cannot drop c1.", []),
        ("You can't drop c1.", []),
        ("Nobody may lift c1.", []),
        ("There is no reason to lift c1.", []),
        ("Go on without lifting c1.", []),
        ("Should we drop c1?", []),
        ("Should we drop c1? :)", []),
        ("Should we drop c1？", []),
        ("Could you drop c1", []),
        ("If we drop c1, all breaks.", []),
        ("Unless I lift c1, wait.", []),
        ("Once the lag is low, drop c1.", []),
        ("I will lift c1 tomorrow.", []),
        ("Before you drop c1, call me.", []),
        ("The vendor says to drop c1.", []),
        ("Drop c1 or keep it, as you like.", []),
        ("c1 was never lifted.", []),
        # The verb is about something else.
        ("Drop the staging tables, and mind c1.", []),
        ("Drop everything but c1.", []),
        ("As c1 says so, remove the index.", []),
        ("Remove the backup, c1 binds.", []),
        ("Drop c1's tables.", []),
        # Not a person's words.
        ("> retire c1\n\nWhat does this mean?", []),
        ("```\nretire c1\n```", []),
        ("    retire c1", []),
        # Looks the same and is not.
        ("Retire \u04411.", []),  # a Cyrillic letter
        ("Retire C1.", []),
        ("Retire ｃ1.", []),
        # An id that is also another item's.
        ("Drop p1.", []),
        ("Drop the rule: Ask me before each call.", ["p1"]),
    ],
)
def test_P3_a_person_retires_what_they_name_or_quote(said: str, lifts: list[str]) -> None:
    assert sorted(rule for rule, _ in lifted_in(said, SEVERAL)) == sorted(lifts)


@pytest.mark.parametrize(
    "message",
    [
        AIMessage("Retire c1. c1 is lifted.", id="x"),
        ToolMessage("Retire c1. c1 is lifted.", tool_call_id="t", id="x"),
        SystemMessage("Retire c1. c1 is lifted.", id="x"),
    ],
    ids=lambda message: message.type,
)
def test_P3_nobody_else_retires_anything(message: BaseMessage) -> None:
    state = state_of(("c1", QUIET))
    assert heard(state, message)["retirements"] == []
    folding = Folding("m", [message], [], 0, "", AT)
    assert "retirements" not in HeuristicSummarizer()(state, folding)


def test_P3_a_retirement_says_who_why_and_when() -> None:
    state = heard(state_of(("c1", QUIET)), HumanMessage("Fine. Drop c1, it is over.", id="h7"))
    assert binding(state) == []
    assert [c["text"] for c in state["constraints"]] == [QUIET]
    (item,) = state["retirements"]
    assert (item["by"], item["src"], item["at"]) == ("human", "h7", AT)
    assert (item["text"], item["rule"]) == ("Drop c1, it is over.", QUIET)
    assert QUIET not in render_briefing(state)


@pytest.mark.parametrize("said", ["Drop the rule: Never deploy on Fridays.", f'I lift "{QUIET}"'])
def test_P3_the_words_that_lift_a_rule_are_no_new_rule(said: str) -> None:
    state = state_of(("c1", QUIET), objective="Migrate.")
    message = HumanMessage(said, id="h7")
    folding = Folding("m", [message], [], 0, "", AT)
    for update in (
        HeuristicSummarizer().captured(state, folding),
        HeuristicSummarizer()(state, folding),
    ):
        after = merge(state, update)
        assert active(after) == []
        assert [c["text"] for c in after["constraints"]] == [QUIET]


def test_P3_said_again_later_it_binds_again() -> None:
    state = heard(state_of(("c1", QUIET)), HumanMessage("Drop c1.", id="h7"))
    assert binding(state) == []
    again = heard(state, HumanMessage(f"Listen. {QUIET}", id="h8"), at="2026-03-02")
    assert binding(again) == ["c1"]
    both = heard(
        state_of(("c1", QUIET)),
        HumanMessage("Drop c1.", id="h7"),
        HumanMessage(f"No, wait. {QUIET}", id="h8"),
    )
    assert binding(both) == ["c1"]
    assert binding(heard(again, HumanMessage("Drop c1.", id="h9"))) == []


@pytest.mark.xfail(strict=True, reason="what was said is told apart by message ids alone")
def test_P3_recorded_again_without_a_message_it_binds_again() -> None:
    rule = {"id": "c1", "text": QUIET}
    state = merge({}, task_update(at="2026-01-01", by="human", constraints=[rule]))
    state = merge(state, retire(state, "c1", why="over", by="dana", at="2026-01-02"))
    state = merge(state, task_update(at="2026-01-03", by="dana", constraints=[rule]))
    assert binding(state) == ["c1"]


@pytest.mark.xfail(strict=True, reason="what was said is told apart by message ids alone")
def test_P3_a_rule_is_lifted_where_messages_have_no_ids() -> None:
    messages = [HumanMessage(QUIET), HumanMessage(f'Drop "{QUIET}"'), AIMessage("Dropped.")]
    assert active(heard({}, *messages)) == []


@pytest.mark.xfail(strict=True, reason="the person's own words for the rule read like a denial")
def test_P3_a_rule_that_is_named_and_told_in_other_words_is_lifted() -> None:
    assert lifted_in("Retire c1: never deploying on Fridays is over.", state_of(("c1", QUIET)))


def test_P3_retire_needs_a_rule_and_a_reason() -> None:
    state = state_of(("c1", QUIET))
    with pytest.raises(UnknownConstraint, match="c2"):
        retire(state, "c2", why="over", by="dana")
    for blank in ("", "  \n"):
        with pytest.raises(ValueError, match="why"):
            retire(state, "c1", why=blank, by="dana")
    after = merge(state, retire(state, "c1", why="over", by="dana"))
    assert [c["id"] for c in retired(after)] == ["c1"]
    assert after["constraints"] == state["constraints"]


def propose(state: Any, at: str = AT) -> dict[str, Any]:
    summary = {"retirements": [{"text": "Seems over.", "constraint": "c1", "by": "human"}]}
    return merge(state, guard(state, Folding("m", [], [], 0, "", at), summary).update)


def test_P3_what_a_model_proposes_binds_until_a_person_confirms_it() -> None:
    state = propose(state_of(("c1", QUIET)))
    assert binding(state) == ["c1"]
    (item,) = state["retirements"]
    assert (item["by"], item["standing"]) == ("model", "proposed")
    assert "it binds" in render_briefing(state)
    confirmed = merge(state, retire(state, "c1", why="right", by="dana"))
    assert binding(confirmed) == []
    assert proposals(confirmed) == {}


def test_P3_a_proposal_is_made_once_and_ends_when_the_rule_is_said_again() -> None:
    state = propose(state_of(("c1", QUIET)))
    assert propose(state, at="2026-03-05") == merge(state, {"at": "2026-03-05"})
    again = heard(state, HumanMessage(f"Mind: {QUIET}", id="h8"), HumanMessage(QUIET, id="h9"))
    assert proposals(again) == {}
    assert list(proposals(propose(again, at="2026-03-06"))) == [QUIET]


def test_P3_a_model_that_retires_an_unknown_rule_is_told_so() -> None:
    state = state_of(("c1", QUIET), in_progress=[{"id": "p1", "text": "audit"}])
    for rule in ("c2", "p1", "", "c1 "):
        summary = {"retirements": [{"text": "over", "constraint": rule}]}
        found = guard(state, Folding("m", [], [], 0, "", AT), summary)
        if rule.strip() == "c1":
            continue
        assert "retirements" not in found.update
        assert found.refused[0].startswith("retirement of an unknown constraint")


EVENTS = st.lists(
    st.sampled_from(["say h1", "say h2", "retire", "propose", "other"]), min_size=1, max_size=4
)


@given(EVENTS)
def test_P3_the_order_of_parallel_branches_does_not_matter(events: list[str]) -> None:
    start = state_of(("c1", QUIET))
    updates: list[Any] = []
    for number, event in enumerate(events):
        at = f"2026-02-0{number + 1}"
        if event.startswith("say"):
            rule = {"text": QUIET, "src": event[4:], "by": "human"}
            updates.append(task_update(at=at, constraints=[rule]))
        elif event == "other":
            updates.append(task_update(at=at, constraints=["Keep lag under 2s."]))
        else:
            standing: Any = "confirmed" if event == "retire" else "proposed"
            updates.append(retire(start, "c1", why=event, by="dana", at=at, standing=standing))
    results = []
    for order in itertools.permutations(updates):
        state = start
        for update in order:
            state = merge(state, update)
        results.append(state)
    assert all(result == results[0] for result in results)
    said = any(event.startswith("say") for event in events)
    assert ("c1" in binding(results[0])) == (said or "retire" not in events)


# -- for one step only -------------------------------------------------------------------------

ONE_STEP = "For this step, don't restart the pod."


def talk(prefix: str, *said: str) -> list[BaseMessage]:
    found: list[BaseMessage] = [
        HumanMessage(text, id=f"{prefix}h{n}") for n, text in enumerate(said)
    ]
    for number in range(2):
        call = {"name": "look", "args": {}, "id": f"{prefix}{number}"}
        found += [
            AIMessage("", id=f"{prefix}a{number}", tool_calls=[call]),
            ToolMessage("ok", id=f"{prefix}r{number}", tool_call_id=f"{prefix}{number}"),
        ]
    return found


def fold(state: Any, messages: Sequence[BaseMessage], at: str, channel: str = "messages") -> Fold:
    folding = prepare(channel, messages, Policy(), at)
    assert folding is not None
    captured = HeuristicSummarizer().captured(state, folding)
    return complete(state, folding, {}, Policy(), "b", captured)


def steps(state: Any) -> list[str]:
    return [c["text"] for c in active(state) if c.get("scope") == "step"]


def test_P3_a_rule_for_one_step_ends_with_its_phase_and_that_is_recorded() -> None:
    state = fold({}, talk("a", "Go on.", ONE_STEP, QUIET, "Well?"), "2026-01-01T00:00:00Z").state
    assert steps(state) == [ONE_STEP]
    state = fold(state, talk("b", "Go on."), "2026-01-02T00:00:00Z").state
    assert steps(state) == [ONE_STEP]
    state = merge(state, task_update(at="2026-01-03", phase="copy"))
    assert steps(state) == [ONE_STEP]
    state = fold(state, talk("c", "Go on."), "2026-01-04T00:00:00Z").state
    assert steps(state) == []
    assert [c["text"] for c in active(state)] == [QUIET]
    (item,) = state["retirements"]
    assert (item["by"], item["rule"]) == ("handoff", ONE_STEP)
    assert ONE_STEP in [c["text"] for c in state["constraints"]]


def test_P3_a_rule_for_a_step_of_the_new_phase_stays() -> None:
    state = task_update(at="2026-01-01", phase="audit")
    state = fold(state, talk("a", "Go on."), "2026-01-02T00:00:00Z").state
    state = merge(state, task_update(at="2026-01-03", phase="copy"))
    rule = {"text": ONE_STEP, "scope": "step"}
    state = merge(state, task_update(at="2026-01-04", by="dana", constraints=[rule]))
    state = fold(state, talk("b", "Go on."), "2026-01-05T00:00:00Z").state
    assert steps(state) == [ONE_STEP]


def test_P3_a_phase_that_another_channel_has_not_folded_in_yet_ends_nothing_twice() -> None:
    state = task_update(at="2026-01-01", phase="audit")
    for channel in ("west", "east"):
        state = fold(state, talk(channel, "Go on."), "2026-01-02T00:00:00Z", channel).state
    state = merge(state, task_update(at="2026-01-03", phase="copy"))
    state = fold(state, talk("w2", "Go on."), "2026-01-04T00:00:00Z", "west").state
    state = fold(state, talk("w3", ONE_STEP, "Go on."), "2026-01-05T00:00:00Z", "west").state
    assert steps(state) == [ONE_STEP]
    state = fold(state, talk("e2", "Go on."), "2026-01-06T00:00:00Z", "east").state
    assert steps(state) == [ONE_STEP]


# -- on a database -----------------------------------------------------------------------------


def graph_of(wired: bool, saver: Any) -> Any:
    builder = build(40, state=HandoffState) if wired else build(40)
    if wired:
        add_handoff(builder, ledger=None, every=3)
    return builder.compile(checkpointer=saver, interrupt_before=["tools"])


def turn(graph: Any, times: int) -> None:
    for _ in range(times):
        graph.invoke(None, config())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process is killed, and forked for that")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("wired", [False, True], ids=["alone", "nodes"])
def test_P3_a_retirement_survives_folds_a_kill_and_a_resume(tmp_path: Path, wired: bool) -> None:
    path = tmp_path / "h.db"

    def first_process() -> None:
        with HandoffSaver.from_conn_string(path, every=3) as saver:
            graph = graph_of(wired, saver)
            graph.invoke(request(), config())
            turn(graph, 6)
            task = saver.task_state(config())
            rule = active(task)[0]["id"]
            said = HumanMessage(f"Good news. Retire [{rule}].", id="lift")
            graph.update_state(config(), {"messages": [said]}, as_node="tools")
            turn(graph, 8)
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            first_process()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with HandoffSaver.from_conn_string(path, every=3) as saver:
        task = saver.task_state(config())
        assert task is not None
        assert [c["text"] for c in retired(task)] == [RULE]
        item = task["retirements"]
        turn(graph := graph_of(wired, saver), 12)
        after = saver.task_state(config())
        assert after["folds"]["messages"]["n"] > task["folds"]["messages"]["n"] > 2
        assert (active(after), after["retirements"]) == ([], item)
        assert after["constraints"] == task["constraints"]
        said = HumanMessage(f"On second thoughts. {RULE}", id="again")
        graph.update_state(config(), {"messages": [said]}, as_node="tools")
        turn(graph, 8)
        assert [c["text"] for c in active(saver.task_state(config()))] == [RULE]


def test_P3_a_lifting_message_that_stays_in_the_tail_lifts_once() -> None:
    rule = HumanMessage(f"Go on. {QUIET}", id="h0")
    lift = HumanMessage(f'I lift "{QUIET}"', id="h1")
    messages: list[Any] = [rule, lift, *talk("a")]
    head = fold_channels(Head(), {"m": messages}, Policy(every=1), HeuristicSummarizer(), utc_now)
    for prefix in "bcd":
        messages += talk(prefix)
        head = fold_channels(head, {"m": messages}, Policy(every=1), HeuristicSummarizer(), utc_now)
    assert head.state is not None
    assert active(head.state) == []
    assert len(head.state["retirements"]) == 1
