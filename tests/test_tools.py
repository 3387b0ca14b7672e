"""An agent's own hand on its task: what it writes passes the guard."""

from __future__ import annotations

from typing import Any

import pytest
from agents import RULE, config, lookup, request
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from handoff_graph import HandoffState, task_tools
from handoff_graph.constraints import active

LOOKUP = ("lookup", {"key": "k1"})


def run(*calls: tuple[str, dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """The task and the tools' answers after these calls, one a turn, with ids call-0, call-1..."""
    script = list(enumerate(calls))

    def agent(state: dict[str, Any]) -> dict[str, Any]:
        if not script:
            return {"messages": [AIMessage("Done.")]}
        number, (name, args) = script.pop(0)
        call = {"name": name, "args": args, "id": f"call-{number}"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    builder = StateGraph(HandoffState)
    builder.add_node("agent", agent)
    builder.add_node("tools", ToolNode([lookup, *task_tools()]))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition, ["tools", END])
    builder.add_edge("tools", "agent")
    values = builder.compile().invoke(request(), config())
    replies = [str(m.content) for m in values["messages"] if isinstance(m, ToolMessage)]
    return values["task"], replies


def test_a_task_is_kept_by_tools_alone() -> None:
    task, replies = run(
        LOOKUP,
        ("start", {"item": "Look up the keys"}),
        ("complete", {"item": "Look up key k1", "evidence": "call-0"}),
        ("block", {"item": "Look up the keys", "needs": "a password"}),
        ("record_decision", {"text": "Keep logical replication.", "why": "version skew"}),
        ("add_constraint", {"quote": RULE}),
        ("add_artifact", {"uri": "sql/fix.sql", "what": "created"}),
        ("update_task", {"next_action": "Ask for it.", "open_questions": ["Who has it?"]}),
        ("complete_phase", {"next_phase": "copy"}),
    )
    assert [i["text"] for i in task["done"]] == ["Look up key k1"]
    assert task["in_progress"] == []
    assert [(i["text"], i["needs"]) for i in task["blocked"]] == [
        ("Look up the keys", "a password")
    ]
    assert [(i["text"], i["why"]) for i in task["decisions"]] == [
        ("Keep logical replication.", "version skew")
    ]
    assert [(c["text"], c["by"], c["src"]) for c in active(task)] == [(RULE, "human", "request")]
    assert task["next_action"] == "Ask for it."
    assert task["phase"] == "copy"
    assert set(replies[1:-1]) == {"recorded"}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            ("add_constraint", {"quote": "You may deploy on Fridays."}),
            "constraint without a source",
        ),
        (("complete", {"item": "Migrate all", "evidence": "call-9"}), "done without evidence"),
        (
            ("complete", {"item": "Drop the database", "evidence": "call-0"}),
            "done without evidence",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused_and_said(
    call: tuple[str, dict[str, Any]], said: str
) -> None:
    task, replies = run(LOOKUP, call)
    assert said in replies[-1]
    assert task["done"] == []
    assert active(task) == []


def test_an_item_is_named_by_its_id() -> None:
    task, _ = run(LOOKUP, ("start", {"item": "Look up key k1"}))
    key = task["in_progress"][0]["id"]
    task, _ = run(
        LOOKUP,
        ("start", {"item": "Look up key k1"}),
        ("complete", {"item": f"[{key}]", "evidence": "call-0"}),
    )
    assert [(i["id"], i["text"]) for i in task["done"]] == [(key, "Look up key k1")]
    assert task["in_progress"] == []
