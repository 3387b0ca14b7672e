"""`DeltaChannel`s: reading a transcript on one, and making a checkpoint stand on its own.

A `DeltaChannel` stores nothing in most checkpoints; LangGraph rebuilds its value from the
ancestors' writes. Where a fold lands, a transcript on one is therefore written into the
checkpoint, as the snapshot that LangGraph itself would write there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, DeltaChannelHistory
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph.message import _messages_delta_reducer
from langgraph.types import Overwrite

from handoff_graph.steps import Inner, Steps

__all__ = ["open_deltas", "rebuilt", "with_snapshots"]


def open_deltas(checkpoint: Checkpoint, metadata: Mapping[str, Any]) -> list[str]:
    """The delta channels whose values a checkpoint leaves to its ancestors.

    Args:
        checkpoint: the checkpoint.
        metadata: its metadata, where LangGraph counts the writes to each delta channel.
    """
    counters = metadata.get("counters_since_delta_snapshot") or {}
    values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
    return [name for name in counters if name in versions and name not in values]


def rebuilt(at: RunnableConfig, names: Sequence[str]) -> Steps[dict[str, list[BaseMessage]]]:
    """The transcripts among these delta channels, as of a stored checkpoint.

    One that holds something other than messages is left out: its reducer is not known here.
    """
    if not names:
        return {}
    found = yield Inner("get_delta_channel_history", (), {"config": at, "channels": names})
    values = {name: _transcript(found[name]) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def with_snapshots(
    stored: Checkpoint, metadata: CheckpointMetadata, transcripts: Mapping[str, list[BaseMessage]]
) -> tuple[Checkpoint, CheckpointMetadata]:
    """A checkpoint that holds these delta channels itself, and its metadata."""
    if not transcripts:
        return stored, metadata
    counters = metadata.get("counters_since_delta_snapshot") or {}
    rest = {name: count for name, count in counters.items() if name not in transcripts}
    snapshots = {name: _DeltaSnapshot(value) for name, value in transcripts.items()}
    whole = {**stored, "channel_values": {**stored["channel_values"], **snapshots}}
    told = {**metadata, "counters_since_delta_snapshot": rest}
    return cast(Checkpoint, whole), cast(CheckpointMetadata, told)


def _transcript(history: DeltaChannelHistory) -> list[BaseMessage] | None:
    """The transcript that a history amounts to; None if it is no transcript."""
    seed: Any = history.get("seed", [])
    value: Any = seed.value if isinstance(seed, _DeltaSnapshot) else seed
    writes: list[Any] = []
    for _, _, write in history["writes"]:
        if isinstance(write, Overwrite):
            value, writes = write.value or [], []
        else:
            writes.append(write)
    parts = [m for part in (value, *writes) for m in (part if isinstance(part, list) else [part])]
    if not all(isinstance(m, BaseMessage) for m in parts):
        return None
    return list(_messages_delta_reducer(value, writes))
