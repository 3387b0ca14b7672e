"""What a checkpoint becomes before it is stored: pure functions over its channel values.

The saver keeps a `Head` per checkpoint: the task state that belongs to it and, where the saver
itself folds, which messages are gone. A graph that is running still holds those messages in
memory; every value it stores passes through `compact`, which puts the briefing in their place.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.messages import BaseMessage, SystemMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from handoff_graph.channels import is_in_flight, task_channel, transcripts_in, with_transcripts
from handoff_graph.errors import HandoffWarning
from handoff_graph.fold import Fold, Policy, complete, due, prepare
from handoff_graph.sparing import spared
from handoff_graph.summarize import HeuristicSummarizer, Summarizer
from handoff_graph.task import upcast
from handoff_graph.transcript import (
    briefing_message,
    invalid_reason,
    is_briefing,
    is_transcript,
    message_keys,
    message_text,
)

__all__ = [
    "Channel",
    "Head",
    "compact",
    "compact_nested",
    "compacted",
    "compacted_write",
    "fold_channels",
    "folds_landed",
    "guarded",
    "owned_by",
    "recover",
    "with_revision",
    "without_unlisted",
]


@dataclass(frozen=True)
class Channel:
    """What is known of one transcript channel whose folded messages may still be in memory.

    Attributes:
        briefing: stands for the folded messages.
        folded: the keys of those that a running graph may still hold.
        scanned: how many of that graph's messages the last fold has looked at.
        kept: index and key of those among them that were not folded, the last one included,
            so that what a later put stores is found without looking at all of them again.
    """

    briefing: SystemMessage
    folded: frozenset[str] = frozenset()
    scanned: int = 0
    kept: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Head:
    """The task as of one checkpoint.

    Attributes:
        state: the task state.
        channels: the transcripts that the saver folds.
        journaled: the state that the journal holds, where that is not `state` itself: a
            milestone knows more than its revision.
        given: the very object that the graph's task channel held, to know it again.
        unseen: the state with a person's change in it, while the running graph's has it not.
    """

    state: dict[str, Any] | None = None
    channels: Mapping[str, Channel] = field(default_factory=dict)
    journaled: dict[str, Any] | None = None
    given: Any = field(default=None, repr=False, compare=False)
    unseen: dict[str, Any] | None = field(default=None, repr=False, compare=False)

    @property
    def recorded(self) -> dict[str, Any] | None:
        """The state that the next change is journaled against."""
        return self.state if self.journaled is None else self.journaled


def compact(messages: Sequence[BaseMessage], channel: Channel | None) -> list[BaseMessage]:
    """The transcript as it is stored: the briefing, then whatever is not folded.

    A transcript that already starts from this briefing was loaded in its compact form; then
    all of it is new.
    """
    if channel is None:
        return list(messages)
    if _is_grown(messages, channel):
        old = [messages[index] for index, _ in channel.kept]
        new = [m for m in messages[channel.scanned :] if not is_briefing(m)]
        return [channel.briefing, *old, *new]
    gone = frozenset() if _is_loaded(messages, channel) else channel.folded
    pairs = zip(messages, message_keys(messages), strict=True)
    kept = [m for m, key in pairs if key not in gone and not is_briefing(m)]
    return [channel.briefing, *kept]


def _is_grown(messages: Sequence[BaseMessage], channel: Channel) -> bool:
    """Whether these are the messages that the last fold looked at, and newer ones."""
    return 0 < channel.scanned <= len(messages) and all(
        messages[index].id == key for index, key in channel.kept
    )


def _is_loaded(messages: Sequence[BaseMessage], channel: Channel) -> bool:
    """Whether the run that holds these messages started from the newest briefing."""
    return bool(messages) and (
        is_briefing(messages[0])
        and messages[0].additional_kwargs == channel.briefing.additional_kwargs
    )


def compact_nested(value: Any, channels: Mapping[str, Channel]) -> Any:
    """Compact the transcripts inside a value; the very same object if nothing was folded."""

    def change(messages: list[BaseMessage]) -> list[BaseMessage]:
        keys = set(message_keys(messages))
        for channel in channels.values():
            if keys & channel.folded:
                return compact(messages, channel)
        return messages

    return with_transcripts(value, change)


def fold_channels(
    head: Head,
    transcripts: Mapping[str, list[BaseMessage]],
    policy: Policy,
    summarizer: Summarizer,
    now: Callable[[], str],
    *,
    rebuilt: bool = False,
    force: bool = False,
) -> Head:
    """Fold every transcript that is due, for a graph that does not fold by itself.

    Args:
        head: the task as of the parent checkpoint.
        transcripts: the transcript channels of the checkpoint that is being stored.
        policy: when to fold.
        summarizer: makes the update of the folded messages.
        now: gives the stamp of a fold; called only if there is one.
        rebuilt: the transcripts come from the database, where earlier folds are in effect;
            a running graph may still hold what those folded.
        force: whether the run asks for it, whatever the counts say.

    Returns:
        The task as of this checkpoint; the very same `head` if nothing was due.
    """
    for name, messages in transcripts.items():
        known = head.channels.get(name)
        stored = compact(messages, known)
        if not due(head.state or {}, name, stored, policy, force=force):
            continue
        folding = prepare(name, stored, policy, now())
        if folding is None:
            continue
        state = head.state or {}
        captured = HeuristicSummarizer().captured(state, folding)
        trusted = type(summarizer) is HeuristicSummarizer
        summary = summarizer(*((state, folding) if trusted else spared(state, folding)))
        briefing_id = f"handoff-briefing-{name}"
        done = complete(state, folding, summary, policy, briefing_id, captured, trusted=trusted)
        head = _after_fold(head, name, messages, done, rebuilt)
    return head


def _after_fold(
    head: Head, name: str, messages: Sequence[BaseMessage], fold: Fold, rebuilt: bool
) -> Head:
    before = head.channels.get(name)
    gone = {id(m) for m in fold.folding.folded}
    pairs = list(zip(messages, message_keys(messages), strict=True))
    folded = {key for m, key in pairs if id(m) in gone}
    if before is not None and (rebuilt or not _is_loaded(messages, before)):
        folded |= before.folded
    kept = tuple(
        (index, key)
        for index, (m, key) in enumerate(pairs)
        if key not in folded and not is_briefing(m)
    )
    channels = {
        key: replace(c, briefing=fold.briefing.model_copy(update={"id": c.briefing.id}))
        for key, c in head.channels.items()
    }
    known = not rebuilt and bool(kept) and kept[-1][0] == len(messages) - 1
    scanned = len(messages) if known else 0
    channels[name] = Channel(fold.briefing, frozenset(folded), scanned, kept)
    return Head(fold.state, channels)


def without_unlisted(head: Head) -> tuple[Head, dict[str, list[Any]]]:
    """The head without the items that its roll-ups carry for the journal, and those items."""
    rolled_up: Mapping[str, Any] = (head.state or {}).get("rolled_up", {})
    unlisted = {
        name: entry["unlisted"] for name, entry in rolled_up.items() if entry.get("unlisted")
    }
    if head.state is None or not unlisted:
        return head, {}
    kept = {
        name: {key: value for key, value in entry.items() if key != "unlisted"}
        for name, entry in rolled_up.items()
    }
    return replace(head, state={**head.state, "rolled_up": kept}), unlisted


def owned_by(head: Head, owner: str) -> Head:
    """The same head with its task in the hands of whoever is working on it now."""
    if head.state is None or not owner or head.state["owner"] == owner:
        return head
    return replace(head, state={**head.state, "owner": owner})


def with_revision(head: Head, revision: int) -> Head:
    """The same head under the revision number that the journal gave it."""
    if head.state is None or head.state["revision"] == revision:
        return head
    channels = {
        name: replace(channel, briefing=_renumbered(channel.briefing, revision))
        for name, channel in head.channels.items()
    }
    return replace(head, state={**head.state, "revision": revision}, channels=channels)


def _renumbered(briefing: SystemMessage, revision: int) -> SystemMessage:
    return briefing_message(message_text(briefing), revision=revision, id=str(briefing.id))


def recover(
    stored: Mapping[str, Any],
    incoming: Mapping[str, Any],
    state: dict[str, Any] | None,
    journaled: dict[str, Any] | None,
) -> Head:
    """Rebuild the head of a stored checkpoint, for a saver that has not seen it before.

    Args:
        stored: the channel values of the parent checkpoint, from the database.
        incoming: the channel values now being stored by a run that goes on from it.
        state: the task state that belongs to the parent checkpoint.
        journaled: the one that the journal holds for its revision.

    Returns:
        The head. A message that the run still holds, that stands before the last stored one
        and is not stored itself, was folded.
    """
    channels: dict[str, Channel] = {}
    for name, messages in transcripts_in(stored).items():
        briefing = next((m for m in messages if is_briefing(m)), None)
        if not isinstance(briefing, SystemMessage):
            continue
        kept = set(message_keys(messages))
        held = incoming.get(name, ())
        keys = message_keys(held) if is_transcript(held) else []
        last = max((i for i, key in enumerate(keys) if key in kept), default=-1)
        channels[name] = Channel(briefing, frozenset(k for k in keys[:last] if k not in kept))
    return Head(state, channels, None if journaled == state else journaled or {})


def guarded(before: Mapping[str, Any] | None, state: dict[str, Any]) -> dict[str, Any]:
    """The task state a graph hands in, with any recorded constraint it has lost put back."""
    state = upcast(state)  # a graph may have overwritten the channel with less than a state
    held = {item["text"] for item in state["constraints"]}
    lost = [item for item in (before or {}).get("constraints", ()) if item["text"] not in held]
    return {**state, "constraints": [*lost, *state["constraints"]]} if lost else state


def folds_landed(
    before: Mapping[str, Any] | None, after: Mapping[str, Any], values: Mapping[str, Any]
) -> bool:
    """Whether a node's fold is in this checkpoint, checked against the transcript itself.

    Args:
        before: the task state of the parent checkpoint.
        after: the task state of this one.
        values: its channel values.

    Returns:
        True if a channel has been folded since the parent. A fold that did not take, because
        the channel's reducer does not know `RemoveMessage`, is reported and gives False.
    """
    counts = (before or {}).get("folds", {})
    folds = after["folds"].items()
    fresh = [name for name, fold in folds if fold["n"] > counts.get(name, {}).get("n", 0)]
    # A DeltaChannel has no value here; it is rebuilt when the checkpoint is to stand alone.
    reasons = {name: _fold_problem(values[name]) for name in fresh if name in values}
    for name, reason in reasons.items():
        if reason:
            warnings.warn(
                f"the fold of channel {name!r} did not take: {reason}. Nothing was removed. "
                "Does the channel use add_messages, or another reducer that honours "
                "RemoveMessage?",
                HandoffWarning,
                stacklevel=4,
            )
    return bool(fresh) and not any(reasons.values())


def _fold_problem(messages: Any) -> str | None:
    if isinstance(messages, _DeltaSnapshot):
        messages = messages.value
    if not is_transcript(messages):
        return "it is not a list of messages"
    if not is_briefing(messages[0]):
        return "its first message is not the briefing"
    return invalid_reason(messages)


def compacted_write(name: str, value: Any, head: Head) -> Any:
    """A task's write as it is stored; the very same object if nothing in it was folded."""
    if name in head.channels or is_in_flight(name, value):
        return compact_nested(value, head.channels)
    return value


def compacted(values: Mapping[str, Any], head: Head) -> Mapping[str, Any]:
    """The channel values as they are stored; the same object if nothing is to be changed."""
    channel = task_channel(values)
    changed: dict[str, Any] = {}
    if channel is not None and head.state is not None and values[channel] != head.state:
        changed[channel] = head.state
    for name, value in values.items() if head.channels else ():
        if name in head.channels and (is_transcript(value) or value == []):
            changed[name] = compact(value, head.channels[name])
        elif name in head.channels and isinstance(value, _DeltaSnapshot):
            changed[name] = _DeltaSnapshot(compact(value.value, head.channels[name]))
        elif is_in_flight(name, value):
            inner = compact_nested(value, head.channels)
            if inner is not value:
                changed[name] = inner
    return {**values, **changed} if changed else values
