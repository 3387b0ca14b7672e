"""What the saver reads: checkpoints, lists of them, the task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory

from handoff_graph.codec import Codec
from handoff_graph.errors import CheckpointRemoved
from handoff_graph.heads import address, head_of, read_checkpoint, whole
from handoff_graph.retention import folded_away
from handoff_graph.steps import Inner, Steps

__all__ = ["Pages", "as_asked", "checkpoint", "delta_history", "stored_form", "task_state"]

_PAGE = 50  # checkpoints read at a time while listing


def stored_form(config: RunnableConfig) -> RunnableConfig:
    """The config with its thread id as it is stored, a string.

    Raises:
        EmptyThreadId: it names no thread.
    """
    at = address(config)
    where = config["configurable"]
    if where["thread_id"] is at.thread_id and "checkpoint_ns" in where:
        return config
    named = {**where, "thread_id": at.thread_id, "checkpoint_ns": at.ns}
    return cast(RunnableConfig, {**config, "configurable": named})


def as_asked(result: RunnableConfig, config: RunnableConfig) -> RunnableConfig:
    """What `put` returned, with the thread id as the caller wrote it."""
    thread_id = config["configurable"]["thread_id"]
    return cast(
        RunnableConfig, {"configurable": {**result["configurable"], "thread_id": thread_id}}
    )


def checkpoint(config: RunnableConfig, codec: Codec) -> Steps[CheckpointTuple | None]:
    """Read a checkpoint.

    Raises:
        CheckpointRemoved: a fold has removed the one that is named.
    """
    at = address(config)
    found = yield from read_checkpoint(config, codec)
    if found is None and not at.ns and (yield from folded_away(at)):
        raise CheckpointRemoved(at.thread_id, at.checkpoint_id)
    return found


def task_state(config: RunnableConfig, codec: Codec) -> Steps[dict[str, Any] | None]:
    """The task state as of a checkpoint, or None."""
    found = yield from checkpoint(stored_form(config), codec)
    return None if found is None else (yield from head_of(found, {}, codec)).state


def delta_history(
    config: RunnableConfig, channels: Sequence[str]
) -> Steps[Mapping[str, DeltaChannelHistory]]:
    """The stored value and later writes of these channels."""
    kwargs = {"config": config, "channels": channels}
    found: Mapping[str, DeltaChannelHistory] = yield Inner("get_delta_channel_history", (), kwargs)
    return found


class Pages:
    """A list of checkpoints, read a page at a time within one thread.

    Across threads checkpoint ids do not lead on from one page to the next: there all is one
    page.
    """

    def __init__(
        self,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
        codec: Codec,
    ) -> None:
        self._config = config
        self._paged = config is not None and "thread_id" in config["configurable"]
        if config is not None and self._paged:
            named = {**config["configurable"], "thread_id": address(config).thread_id}
            self._config = cast(RunnableConfig, {**config, "configurable": named})
        self._filter = filter
        self._before = before
        self._left = limit
        self._codec = codec
        self.ended = limit is not None and limit <= 0

    def steps(self) -> Steps[list[CheckpointTuple]]:
        """Read the next page."""
        kwargs = {"filter": self._filter, "before": self._before, "limit": self._size}
        page = yield Inner("list", (self._config,), kwargs)
        restored: list[CheckpointTuple] = []
        for saved in page:
            restored.append((yield from whole(saved, self._codec)))
        return restored

    @property
    def _size(self) -> int | None:
        if not self._paged:
            return self._left
        return _PAGE if self._left is None else min(_PAGE, self._left)

    def turned(self, page: list[CheckpointTuple]) -> list[CheckpointTuple]:
        """Note that this page has been read, and go on behind it."""
        if not self._paged or len(page) < _PAGE:
            self.ended = True
        else:
            self._before = page[-1].config
            self._left = None if self._left is None else self._left - len(page)
            self.ended = self._left == 0
        return page
