"""Milestones: checkpoints of the past, with the task in the journal instead of the row.

A milestone keeps its channels but for the transcripts and the task state: those are rebuilt,
when it is read, from the journal's revision. So it is small, and no folded text is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from handoff_graph.briefing import render_briefing
from handoff_graph.channels import (
    INPUT,
    TASKS,
    task_channel,
    transcripts_in,
    without_messages,
)
from handoff_graph.transcript import (
    briefing_message,
    briefing_revision,
    is_briefing,
    message_keys,
)

__all__ = ["FOLD", "MILESTONE", "Milestone", "milestone", "restored"]

FOLD = "handoff_fold"
"""In the metadata of a checkpoint in which a fold landed: the revision."""

MILESTONE = "handoff_milestone"
"""In the metadata of a milestone: `{"revision", "task", "transcripts"}`."""


@dataclass(frozen=True)
class Milestone:
    """What a checkpoint becomes.

    Attributes:
        values: its channel values.
        mark: goes into its metadata under `MILESTONE`.
        dropped: the channels whose values are gone.
        replaced: the channels that hold something else than before.
    """

    values: Mapping[str, Any]
    mark: Mapping[str, Any]
    dropped: frozenset[str]
    replaced: frozenset[str]


def milestone(values: Mapping[str, Any], *, carrier: bool = False) -> Milestone | None:
    """Make a milestone of a checkpoint.

    Args:
        values: its channel values.
        carrier: make one even if it holds no task: its writes are needed.

    Returns:
        The milestone; None if the checkpoint holds no task to remember.
    """
    channel = task_channel(values)
    transcripts = transcripts_in(values)
    messages = [m for found in transcripts.values() for m in found]
    revision = values[channel]["revision"] if channel else briefing_revision(messages)
    if not revision and not carrier:
        return None
    kept: dict[str, Any] = {}
    replaced: set[str] = set()
    for name, value in values.items():
        if name == channel or (name in transcripts and not isinstance(value, _DeltaSnapshot)):
            continue
        small = value
        if name in transcripts:
            # Its children are rebuilt from the row itself, so the briefing stays in it.
            small = _DeltaSnapshot([m for m in transcripts[name] if is_briefing(m)])
        elif name in (TASKS, INPUT):
            small = without_messages(value, set(message_keys(messages)))
        kept[name] = small
        if small is not value:
            replaced.add(name)
    ids = {
        name: _briefing_id(name, found) for name, found in transcripts.items() if name not in kept
    }
    mark = {"revision": revision or 0, "task": channel, "transcripts": ids}
    return Milestone(kept, mark, frozenset(values) - set(kept), frozenset(replaced))


def restored(
    values: Mapping[str, Any], mark: Mapping[str, Any], state: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The channel values of a milestone, with the task state and the briefing back in them.

    Args:
        values: its channel values as stored.
        mark: what `milestone` put into its metadata.
        state: the task state of the mark's revision.
    """
    if state is None:
        return dict(values)
    whole = dict(values)
    if mark["task"]:
        whole[mark["task"]] = dict(state)
    for name, briefing_id in mark["transcripts"].items():
        text = render_briefing(state)
        whole[name] = [briefing_message(text, revision=mark["revision"], id=briefing_id)]
    return whole


def _briefing_id(name: str, messages: list[BaseMessage]) -> str:
    found = next((m.id for m in messages if is_briefing(m)), None)
    return found or f"handoff-briefing-{name}"
