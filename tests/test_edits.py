"""A person changes a task beside its checkpoint: the next run has it, and the one under way."""

from __future__ import annotations

from typing import Any

import pytest
from agents import RULE, build, config, output, request
from databases import Database

from handoff_graph import HandoffState, UnknownThread, add_handoff, task_update
from handoff_graph.constraints import active, retire
from handoff_graph.transcript import is_briefing, message_text

NEW_RULE = "Do not touch the billing tables."


def graph_of(wired: bool, saver: Any, calls: int = 24) -> Any:
    builder = build(calls, state=HandoffState) if wired else build(calls)
    if wired:
        add_handoff(builder, ledger=None, every=5)
    return builder.compile(checkpointer=saver, interrupt_before=["tools"])


def briefing_of(values: dict[str, Any]) -> str:
    first = values["messages"][0]
    assert is_briefing(first)
    return message_text(first)


@pytest.mark.parametrize("wired", [False, True], ids=["alone", "nodes"])
def test_an_edit_is_in_what_the_next_run_reads(database: Database, wired: bool) -> None:
    with database.open(every=5) as saver:
        graph = graph_of(wired, saver)
        graph.invoke(request(), config())
        for _ in range(8):
            graph.invoke(None, config())
        before = graph.get_state(config())
        saver.update_task("t", task_update(by="human", constraints=[NEW_RULE]))
        after = graph.get_state(config())
        assert after.next == before.next == ("tools",)
        assert NEW_RULE in briefing_of(after.values)
    with database.open(every=5) as saver:  # another process
        graph = graph_of(wired, saver)
        assert NEW_RULE in briefing_of(graph.get_state(config()).values)
        while graph.get_state(config()).next:
            graph.invoke(None, config())
        task = saver.task_state(config())
        assert [c["text"] for c in active(task)] == [RULE, NEW_RULE]
        assert NEW_RULE in briefing_of(graph.get_state(config()).values)


@pytest.mark.parametrize("wired", [False, True], ids=["alone", "nodes"])
def test_an_edit_reaches_a_run_that_is_under_way(database: Database, wired: bool) -> None:
    """Another process edits while a tool of this one runs."""
    edits: list[int] = []
    seen: list[list[Any]] = []

    def lookup(key: str) -> str:
        """Look a key up."""
        if not edits and key == "k8":
            with database.open() as other_saver:
                update = task_update(by="human", constraints=[NEW_RULE])
                edits.append(other_saver.update_task("t", update))
        return output(key)

    with database.open(every=5) as saver:
        schema = {"state": HandoffState} if wired else {}
        builder = build(24, tool=lookup, seen=seen, **schema)
        if wired:
            add_handoff(builder, ledger=None, every=5)
        graph = builder.compile(checkpointer=saver)
        graph.invoke(request(), config(), durability="sync")
        assert edits
        state = saver.task_state(config())
        assert [c["text"] for c in active(state)] == [RULE, NEW_RULE]
        assert NEW_RULE in briefing_of(graph.get_state(config()).values)
        if wired:
            read = [bool(NEW_RULE in str(messages[0].content)) for messages in seen]
            # The superstep of call 8 stores it, the next visit of the node tells the agent.
            assert read == [False] * 9 + [True] * 16


def test_a_retirement_by_hand_takes_the_rule_out_of_the_briefing(database: Database) -> None:
    with database.open(every=5) as saver:
        graph = graph_of(False, saver)
        graph.invoke(request(), config())
        for _ in range(8):
            graph.invoke(None, config())
        task = saver.task_state(config())
        rule = active(task)[0]
        lifted = retire(task, rule["id"], why="The lag is gone for good.", by="dana")
        assert saver.update_task("t", lifted) == task["revision"] + 1
        assert saver.update_task("t", lifted) == 0
        assert "Constraints:" not in briefing_of(graph.get_state(config()).values)
        assert saver.task_state(config())["constraints"] == task["constraints"]


def test_an_edit_needs_a_task(database: Database) -> None:
    with database.open() as saver, pytest.raises(UnknownThread):
        saver.update_task("nobody", task_update(notes=["hello"]))


def test_a_fold_that_moves_a_message_says_nothing_again(database: Database) -> None:
    """A rule that was retired before the first fold stays so: the message that the fold moves
    to another id has said it once."""
    with database.open() as saver:
        builder = build(24, state=HandoffState)
        add_handoff(builder, ledger=None, every=5)
        graph = builder.compile(checkpointer=saver, interrupt_before=["tools"])
        graph.invoke(request(), config())
        graph.invoke(None, config())
        graph.invoke(None, config())
        task = saver.task_state(config())
        assert not task["folds"]
        saver.update_task("t", retire(task, active(task)[0]["id"], why="It is over.", by="dana"))
        while graph.get_state(config()).next:
            graph.invoke(None, config())
        task = saver.task_state(config())
        assert task["folds"]["messages"]["n"] == 4
        assert active(task) == []
        assert "also" not in task["constraints"][0]
