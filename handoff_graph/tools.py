"""Tools by which an agent keeps the record of its own task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool
from langgraph.prebuilt import InjectedState
from langgraph.types import Command

from handoff_graph.channels import declare_task_key
from handoff_graph.export_node import fields_of
from handoff_graph.fold import Folding
from handoff_graph.guard import guard
from handoff_graph.schema import WORK, utc_now
from handoff_graph.task import merge, task_update
from handoff_graph.transcript import is_transcript

__all__ = ["task_tools"]

State = Annotated[Any, InjectedState]
CallId = Annotated[str, InjectedToolCallId]


def task_tools(*, task_key: str = "task", messages_key: str = "messages") -> list[BaseTool]:
    """Tools for any `ToolNode`, with which a model writes to the task state.

    What it writes passes the guard that summaries pass: a constraint needs the words of a
    person, a finished item the id of a tool call that succeeded. The answer says what was
    refused and why, so that the model can do better.

    Args:
        task_key: the channel of the task state.
        messages_key: the channel that the tools' answers go to.

    Returns:
        `update_task`, `record_decision`, `add_constraint`, `add_artifact`, `start`, `block`,
        `complete` and `complete_phase`.

    Example:
        >>> [tool.name for tool in task_tools()][:3]
        ['update_task', 'record_decision', 'add_constraint']
    """
    declare_task_key(task_key)
    desk = _Desk(task_key, messages_key)
    verbs: tuple[Callable[..., Any], ...] = (
        desk.update_task,
        desk.record_decision,
        desk.add_constraint,
        desk.add_artifact,
        desk.start,
        desk.block,
        desk.complete,
        desk.complete_phase,
    )
    return [StructuredTool.from_function(verb) for verb in verbs]


class _Desk:
    """The tools, over one pair of channels."""

    def __init__(self, task_key: str, messages_key: str) -> None:
        self._task_key = task_key
        self._messages_key = messages_key

    def update_task(
        self,
        state: State,
        call_id: CallId,
        next_action: str = "",
        open_questions: list[str] | None = None,
        notes: list[str] | None = None,
    ) -> Command[Any]:
        """Record the next step, questions that nobody has answered, or notes for later."""
        given = {"next_action": next_action, "open_questions": open_questions, "notes": notes}
        return self._write(state, call_id, {k: v for k, v in given.items() if v})

    def record_decision(self, text: str, why: str, state: State, call_id: CallId) -> Command[Any]:
        """Record a decision that binds later work, and its reason."""
        return self._write(state, call_id, {"decisions": [{"text": text, "why": why}]})

    def add_constraint(self, quote: str, state: State, call_id: CallId) -> Command[Any]:
        """Record a rule that a person has set, in their own words: copy the whole sentence."""
        return self._write(state, call_id, {"constraints": [quote]})

    def add_artifact(self, uri: str, what: str, state: State, call_id: CallId) -> Command[Any]:
        """Record a file, table or URL that matters: its path or address, and what happened."""
        return self._write(state, call_id, {"artifacts": [{"uri": uri, "what": what}]})

    def start(self, item: str, state: State, call_id: CallId) -> Command[Any]:
        """Record work that has begun: a text, or the id of an item in the record."""
        return self._write(state, call_id, {"in_progress": [self._item(state, item)]})

    def block(self, item: str, needs: str, state: State, call_id: CallId) -> Command[Any]:
        """Record that work cannot go on (a text, or the id of an item), and what it needs."""
        return self._write(
            state, call_id, {"blocked": [{**self._item(state, item), "needs": needs}]}
        )

    def complete(self, item: str, evidence: str, state: State, call_id: CallId) -> Command[Any]:
        """Record finished work: a text or the id of an item, and the id of the tool call, or of
        the person's message, that shows it."""
        done = {**self._item(state, item), "src": evidence}
        return self._write(state, call_id, {"done": [done]})

    def complete_phase(self, next_phase: str, state: State, call_id: CallId) -> Command[Any]:
        """End the current phase of the task and name the next one."""
        update = task_update(by="model", phase=next_phase)
        return self._answer(call_id, update, f"the phase is now: {next_phase}")

    def _item(self, state: Any, item: str) -> dict[str, str]:
        task = fields_of(state).get(self._task_key) or {}
        known = {i["id"]: i["text"] for section in WORK for i in task.get(section, ())}
        key = item.strip().strip("[]")
        return {"id": key, "text": known[key]} if key in known else {"text": item}

    def _write(self, state: Any, call_id: str, update: Mapping[str, Any]) -> Command[Any]:
        values = fields_of(state)
        task = merge(values.get(self._task_key) or {}, None)
        seen = [m for value in values.values() if is_transcript(value) for m in value]
        let = guard(task, Folding("", seen, (), 0, "", utc_now()), {**update, "by": "model"})
        known = set(let.update) - {"at", "unsourced"}
        said = ["recorded" if known else "nothing was recorded", *let.refused]
        return self._answer(call_id, let.update, "; ".join(said))

    def _answer(self, call_id: str, update: Mapping[str, Any], text: str) -> Command[Any]:
        reply = ToolMessage(text, tool_call_id=call_id)
        return Command(update={self._task_key: dict(update), self._messages_key: [reply]})
