"""A person's change to a task while no run is writing it: a revision beside a checkpoint.

The checkpoint's row stays as it is, its pending writes and interrupts too. Its metadata names
the revision, so that whoever reads the checkpoint, or goes on from it, has the change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import CheckpointTuple

from handoff_graph import journal
from handoff_graph.briefing import render_briefing
from handoff_graph.channels import task_channel, transcripts_in
from handoff_graph.codec import Codec
from handoff_graph.compaction import Head
from handoff_graph.dialect import Dialect
from handoff_graph.errors import UnknownThread
from handoff_graph.steps import Done, Query, Steps
from handoff_graph.task import content, extend, merge, utc_now
from handoff_graph.transcript import briefing_message, is_briefing

__all__ = ["EDIT", "amend", "amended", "edited", "rebriefed"]

EDIT = "handoff_edit"
"""In the metadata of a checkpoint: the revision that a person made beside it."""

Change = Callable[[dict[str, Any]], Mapping[str, Any]]


def amend(
    dialect: Dialect, thread_id: str, change: Change, *, reason: str, codec: Codec
) -> Steps[Done]:
    """Merge an update into a thread's task, as a revision of its own.

    Args:
        dialect: the database's.
        thread_id: the thread.
        change: from the task state as it stands to the `TaskUpdate`.
        reason: what the journal says the revision is: `edit`, `review`.
        codec: how the journal's text is stored.

    Raises:
        UnknownThread: the thread has no task yet.

    Returns:
        Of the operation: `(checkpoint id, state, stamp)`; None if the update changes nothing.
    """
    known = yield from journal.head(thread_id, codec)
    newest = yield Query(
        "SELECT checkpoint_id, metadata FROM checkpoints"
        " WHERE thread_id = ? AND checkpoint_ns = '' ORDER BY checkpoint_id DESC LIMIT 1",
        (thread_id,),
    )
    if known is None or not newest:
        raise UnknownThread(thread_id)
    before = known.state
    after = extend(before, change(before))
    if content(after) == content(before):
        return Done(None)
    checkpoint_id, metadata = newest[0]
    at = utc_now()
    after["revision"] = yield from journal.next_revision(thread_id, "")
    yield from journal.append(
        thread_id, "", checkpoint_id, before=before, after=after, at=at, reason=reason, codec=codec
    )
    told = json.dumps({**dialect.metadata(metadata), EDIT: after["revision"]})
    yield Query(
        f"UPDATE checkpoints SET metadata = CAST(? AS {dialect.json})"
        " WHERE thread_id = ? AND checkpoint_ns = '' AND checkpoint_id = ?",
        (told, thread_id, checkpoint_id),
    )
    return Done((checkpoint_id, after, at))


def edited(saved: CheckpointTuple, state: Mapping[str, Any]) -> CheckpointTuple:
    """A checkpoint as it reads with a person's change to its task.

    Args:
        saved: the checkpoint.
        state: the task state of the revision that its metadata names.
    """
    values = dict(saved.checkpoint["channel_values"])
    channel = task_channel(values)
    if channel is not None:
        values[channel] = merge(values[channel], state)
    values = rebriefed(values, state)
    return saved._replace(checkpoint={**saved.checkpoint, "channel_values": values})


def rebriefed(values: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """Channel values whose briefings speak of this state."""
    fresh = {
        name: [_rewritten(m, state) if is_briefing(m) else m for m in messages]
        for name, messages in transcripts_in(values).items()
        if isinstance(values[name], list)
    }
    return {**values, **fresh}


def amended(head: Head, state: dict[str, Any]) -> Head:
    """A head with a person's change in it, which the run that goes on does not know of."""
    whole = merge(head.state, state)
    channels = {
        name: replace(channel, briefing=_rewritten(channel.briefing, whole))
        for name, channel in head.channels.items()
    }
    return Head(whole, channels, unseen=whole)


def _rewritten(briefing: BaseMessage, state: Mapping[str, Any]) -> Any:
    text = render_briefing(state)
    return briefing_message(text, revision=int(state["revision"]), id=str(briefing.id))
