"""`DeltaChannel`s: making a checkpoint stand on its own before its ancestors go.

A `DeltaChannel` stores nothing in most checkpoints; LangGraph rebuilds its value from the
ancestors' writes. A transcript on one is therefore written into the checkpoint that a fold
landed in, as the snapshot LangGraph itself would write there.
"""

from __future__ import annotations

from typing import Any, cast

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, DeltaChannelHistory
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph.message import _messages_delta_reducer
from langgraph.types import Overwrite

__all__ = ["stand_alone"]


def stand_alone(
    inner: SqliteSaver,
    config: RunnableConfig,
    stored: Checkpoint,
    metadata: CheckpointMetadata,
    at: RunnableConfig,
) -> bool:
    """Store full values for the delta channels that a checkpoint leaves to its ancestors.

    Call inside the transaction that stored the checkpoint.

    Args:
        inner: the saver of the checkpoint.
        config: what `put` was called with: names the parent.
        stored: the checkpoint as stored.
        metadata: its metadata, where LangGraph counts the writes to each delta channel.
        at: what `put` returned: names the checkpoint.

    Returns:
        Whether it stands alone now. False where a delta channel holds something other than
        messages, whose reducer is not known here: then its ancestors must stay.
    """
    counters = metadata.get("counters_since_delta_snapshot") or {}
    values = stored["channel_values"]
    names = [n for n in counters if n in stored["channel_versions"] and n not in values]
    if not names:
        return True
    histories = inner.get_delta_channel_history(config=at, channels=names)
    rebuilt = {name: _transcript(histories[name]) for name in names}
    snapshots = {n: _DeltaSnapshot(value) for n, value in rebuilt.items() if value is not None}
    if len(snapshots) < len(names):
        return False
    rest = {name: count for name, count in counters.items() if name not in snapshots}
    told = {**metadata, "counters_since_delta_snapshot": rest}
    whole = {**stored, "channel_values": {**values, **snapshots}}
    inner.put(config, cast(Checkpoint, whole), cast(CheckpointMetadata, told), {})
    return True


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
