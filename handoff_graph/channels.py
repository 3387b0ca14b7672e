"""Which channels of a checkpoint hold what: transcripts, the task, messages on their way."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Overwrite, Send

from handoff_graph.task import is_task_state
from handoff_graph.transcript import is_transcript, message_keys

__all__ = [
    "INPUT",
    "TASKS",
    "awaits_task",
    "declare_task_key",
    "is_in_flight",
    "task_channel",
    "transcripts_in",
    "with_transcripts",
    "without_messages",
]

TASKS = "__pregel_tasks"
"""LangGraph's channel of `Send`s."""

INPUT = "__start__"
"""LangGraph's channel of a run's input."""

_task_keys = {"task"}


def transcripts_in(values: Mapping[str, Any]) -> dict[str, list[BaseMessage]]:
    """The transcript channels among channel values, by name; snapshots are looked into."""
    inner = {k: v.value if isinstance(v, _DeltaSnapshot) else v for k, v in values.items()}
    return {name: value for name, value in inner.items() if name != INPUT and is_transcript(value)}


def awaits_task(values: Mapping[str, Any]) -> bool:
    """Whether the graph keeps its task state itself, and has not opened it yet."""
    return any(values.get(key) == {} for key in _task_keys)


def declare_task_key(key: str) -> None:
    """Note that graphs of this process keep their task state in a channel of this name."""
    _task_keys.add(key)


def task_channel(values: Mapping[str, Any]) -> str | None:
    """The channel in which the graph keeps its task state, if it has one."""
    return next((name for name, value in values.items() if is_task_state(value)), None)


def is_in_flight(name: str, value: Any) -> bool:
    """Whether a channel of LangGraph's own carries messages to where they will be.

    The input of an entrypoint is an argument: a resumed run must be given the same again.
    Channels of the user's own that are no transcripts are stored as they are.
    """
    return name == TASKS or (name == INPUT and type(value) is dict)


def with_transcripts(value: Any, change: Callable[[list[BaseMessage]], list[BaseMessage]]) -> Any:
    """Change the transcripts in a dict, a list, a `Send`, an `Overwrite` or a snapshot.

    Returns the very same object where `change` has returned what it was given.
    """
    if is_transcript(value):
        return change(value)
    if isinstance(value, Send):
        arg = with_transcripts(value.arg, change)
        if arg is value.arg:
            return value
        changed_send = copy.copy(value)  # whatever else it carries, such as a timeout
        changed_send.arg = arg
        return changed_send
    if isinstance(value, Overwrite | _DeltaSnapshot):
        inner = with_transcripts(value.value, change)
        return value if inner is value.value else type(value)(inner)
    if type(value) is dict:
        changed = {key: with_transcripts(inner, change) for key, inner in value.items()}
        return changed if any(changed[key] is not value[key] for key in value) else value
    if type(value) is list or type(value) is tuple:
        parts = [with_transcripts(inner, change) for inner in value]
        same = all(new is old for new, old in zip(parts, value, strict=True))
        return value if same else type(value)(parts)
    return value


def without_messages(value: Any, keys: Collection[str]) -> Any:
    """Take these messages out of the transcripts inside a value, by their keys."""

    def change(messages: list[BaseMessage]) -> list[BaseMessage]:
        pairs = zip(messages, message_keys(messages), strict=True)
        kept = [m for m, key in pairs if key not in keys]
        return kept if len(kept) < len(messages) else messages

    return with_transcripts(value, change)
