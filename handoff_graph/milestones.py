"""Milestones: checkpoints of the past, with the task in the journal instead of the row.

A milestone keeps its channels but for the transcripts and the task state: those are rebuilt,
when it is read, from the journal's revision and from the little that came after it. So it is
small, and no folded text is in it.
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
from handoff_graph.diff import apply_change, diff
from handoff_graph.fold import Folding
from handoff_graph.schema import blank_state, upcast
from handoff_graph.summarize import HeuristicSummarizer
from handoff_graph.task import extend
from handoff_graph.transcript import (
    briefing_message,
    briefing_revision,
    completed_calls,
    is_briefing,
    message_keys,
)

__all__ = [
    "FOLD",
    "MILESTONE",
    "Milestone",
    "milestone",
    "restored",
    "revision_of",
    "task_of",
]

FOLD = "handoff_fold"
"""In the metadata of a checkpoint in which a fold landed: the revision."""

MILESTONE = "handoff_milestone"
"""In the metadata of a milestone: `{"revision", "task", "transcripts", "news"}`: its revision, the
channels to rebuild, and what changed since the revision as `diff` gives it (as stored text)."""


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


def revision_of(values: Mapping[str, Any]) -> int:
    """The revision that a checkpoint's task or briefing speaks of; 0 if there is none."""
    channel = task_channel(values)
    if channel is not None:
        return int(values[channel]["revision"])
    messages = [m for found in transcripts_in(values).values() for m in found]
    return briefing_revision(messages) or 0


def milestone(
    values: Mapping[str, Any], state: Mapping[str, Any] | None, at: str
) -> Milestone | None:
    """Make a milestone of a checkpoint.

    Args:
        values: its channel values, every transcript among them.
        state: the task state that the journal holds for its revision, or None.
        at: the stamp of what the messages add to it: of now, for an earlier one would also
            change what the state holds already.

    Returns:
        The milestone; None if the checkpoint holds neither a task nor a message.
    """
    channel = task_channel(values)
    transcripts = transcripts_in(values)
    if state is None and not transcripts:
        return None
    whole = _gathered(values[channel] if channel else state, transcripts, at)
    keys = {key for found in transcripts.values() for key in message_keys(found)}
    revision = revision_of(values)
    kept: dict[str, Any] = {}
    for name, value in values.items():
        if name in transcripts and isinstance(value, _DeltaSnapshot):
            # Its children are rebuilt from the row itself, so the briefing stays in it.
            text = render_briefing(whole)
            key = _briefing_id(name, transcripts[name])
            kept[name] = _DeltaSnapshot([briefing_message(text, revision=revision, id=key)])
        elif name != channel and name not in transcripts:
            in_flight = name in (TASKS, INPUT)
            kept[name] = without_messages(value, keys) if in_flight else value
    ids = {
        name: _briefing_id(name, found) for name, found in transcripts.items() if name not in kept
    }
    news = diff(state, {**whole, **_stamps(state)})
    mark = {"revision": revision, "task": channel, "transcripts": ids, "news": news}
    dropped = frozenset(values) - set(kept)
    replaced = frozenset(name for name, value in kept.items() if value is not values[name])
    return Milestone(kept, mark, dropped, replaced)


def _stamps(state: Mapping[str, Any] | None) -> dict[str, Any]:
    """The stamps of a state, which what was said before a milestone leaves as they are."""
    return {key: (state or blank_state())[key] for key in ("updated", "stamps")}


def _gathered(
    state: Mapping[str, Any] | None, transcripts: Mapping[str, list[BaseMessage]], at: str
) -> dict[str, Any]:
    """The task state with what the messages say that are not folded into it yet.

    They will be, but into a later revision: whoever goes back to the milestone, to fork from
    it or to roll a run back, must not lose them.
    """
    whole: Mapping[str, Any] = upcast(state)
    for name, messages in transcripts.items():
        rest = [m for m in messages if not is_briefing(m)]
        if rest:
            folding = Folding(name, rest, (), completed_calls(rest), "", at)
            whole = extend(whole, HeuristicSummarizer()(whole, folding))
    return {**whole, "revision": int((state or {}).get("revision", 0))}


def task_of(mark: Mapping[str, Any], state: Mapping[str, Any] | None) -> dict[str, Any]:
    """The task state of a milestone.

    Args:
        mark: what `milestone` put into its metadata.
        state: the task state that the journal holds for the mark's revision.
    """
    return apply_change(state, mark["news"])


def restored(
    values: Mapping[str, Any], mark: Mapping[str, Any], task: Mapping[str, Any]
) -> dict[str, Any]:
    """The channel values of a milestone, with the task state and the briefing back in them.

    Args:
        values: its channel values as stored.
        mark: what `milestone` put into its metadata.
        task: its task state.
    """
    whole = dict(values)
    if mark["task"]:
        whole[mark["task"]] = dict(task)
    text = render_briefing(task)
    for name, key in mark["transcripts"].items():
        whole[name] = [briefing_message(text, revision=mark["revision"], id=key)]
    return whole


def _briefing_id(name: str, messages: list[BaseMessage]) -> str:
    found = next((m.id for m in messages if is_briefing(m)), None)
    return found or f"handoff-briefing-{name}"
