"""Which task belongs to which checkpoint, and which checkpoints a fold has removed."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from threading import Lock
from typing import Any, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from handoff_graph import journal
from handoff_graph.channels import task_channel
from handoff_graph.codec import Codec
from handoff_graph.compaction import Head, recover
from handoff_graph.deltas import open_deltas, rebuilt
from handoff_graph.edits import EDIT, edited
from handoff_graph.milestones import MILESTONE, restored, revision_of, task_of
from handoff_graph.retention import Address, thread_name
from handoff_graph.steps import Inner, Steps

__all__ = ["Heads", "address", "head_of", "read_checkpoint", "whole"]

_HEADS = 1024  # checkpoints whose task is held in memory; any other is read back when needed
_RETIRED = 20_000  # removed checkpoints for which a late write is still recognised

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def address(config: RunnableConfig) -> Address:
    """The address that a LangGraph config names.

    Raises:
        EmptyThreadId: it names no thread.
    """
    where = config["configurable"]
    thread_id = thread_name(where.get("thread_id"))
    return Address(thread_id, where.get("checkpoint_ns", ""), where.get("checkpoint_id") or "")


def read_checkpoint(config: RunnableConfig, codec: Codec) -> Steps[CheckpointTuple | None]:
    """Read a checkpoint; in a milestone the task and the briefing are put back."""
    saved: CheckpointTuple | None = yield Inner("get_tuple", (config,))
    return (yield from whole(saved, codec)) if saved is not None else None


def whole(saved: CheckpointTuple, codec: Codec) -> Steps[CheckpointTuple]:
    """A checkpoint with its task and briefing back in it, if it is a milestone, and with what
    a person has changed beside it."""
    if MILESTONE in saved.metadata:
        mark, state = yield from _marked(saved, codec)
        values = restored(saved.checkpoint["channel_values"], mark, task_of(mark, state))
        saved = saved._replace(checkpoint={**saved.checkpoint, "channel_values": values})
    if EDIT in saved.metadata:
        at, revision = address(saved.config), cast(Any, saved.metadata)[EDIT]
        edit = yield from journal.state_at(at.thread_id, at.ns, revision, codec)
        return saved if edit is None else edited(saved, edit)
    return saved


def head_of(saved: CheckpointTuple, incoming: Mapping[str, Any], codec: Codec) -> Steps[Head]:
    """The head of a checkpoint.

    Args:
        saved: the checkpoint, whole.
        incoming: the channel values that a run going on from it now stores.
        codec: the journal's.
    """
    at = address(saved.config)
    names = open_deltas(saved.checkpoint, saved.metadata)
    values = {**saved.checkpoint["channel_values"], **(yield from rebuilt(saved.config, names))}
    if MILESTONE in saved.metadata:
        mark, state = yield from _marked(saved, codec)
        return recover(values, incoming, task_of(mark, state), state)
    channel = task_channel(values)
    if channel is not None:
        return Head(values[channel], unseen=values[channel] if EDIT in saved.metadata else None)
    revision = max(revision_of(values), cast(Any, saved.metadata).get(EDIT, 0))
    state = None
    if revision:
        state = yield from journal.state_at(at.thread_id, at.ns, revision, codec)
    return recover(values, incoming, state, state)


def _marked(
    saved: CheckpointTuple, codec: Codec
) -> Steps[tuple[dict[str, Any], dict[str, Any] | None]]:
    """The mark of a milestone, and the task state that the journal holds for its revision."""
    at = address(saved.config)
    mark = dict(cast(Any, saved.metadata)[MILESTONE])
    mark["news"] = json.loads(codec.loads(mark["news"]))
    state = None
    if mark["revision"]:
        state = yield from journal.state_at(at.thread_id, at.ns, mark["revision"], codec)
    return mark, state


class Heads:
    """The `Head` of each checkpoint that this process wrote lately, and what it removed.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._heads: OrderedDict[Address, Head] = OrderedDict()
        self._retired: OrderedDict[Address, None] = OrderedDict()
        self._sessions: OrderedDict[str, None] = OrderedDict()
        self._left_to_graph: OrderedDict[str, None] = OrderedDict()
        self._early: OrderedDict[Address, None] = OrderedDict()
        self._unseen: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def known(self, at: Address) -> Head | None:
        """The head of a checkpoint, if it is in memory."""
        with self._lock:
            return self._heads.get(at)

    def remember(self, at: Address, head: Head) -> None:
        """Keep the head of a checkpoint that has just been committed."""
        with self._lock:
            _note(self._heads, at, head, _HEADS)
            self._early.pop(at, None)
            if head.unseen is not None and not at.ns:
                _note(self._unseen, at.thread_id, head.unseen, _HEADS)
            elif self._unseen and not at.ns:
                self._unseen.pop(at.thread_id, None)

    def unseen(self, thread_id: str) -> dict[str, Any] | None:
        """The task with a person's change in it that the running graph does not know of."""
        return self._unseen.get(thread_id) if self._unseen else None

    def retire(self, at: Address) -> None:
        """Note that a fold has removed this checkpoint."""
        with self._lock:
            self._heads.pop(at, None)
            _note(self._retired, at, None, _RETIRED)

    def is_retired(self, at: Address) -> bool:
        """Whether a fold has removed this checkpoint."""
        with self._lock:
            return at in self._retired

    def begin_writes(self, at: Address) -> Head | None:
        """The head for a task's writes; where there is none yet, note that they come early."""
        with self._lock:
            head = self._heads.get(at)
            if head is None:
                _note(self._early, at, None, _HEADS)
            return head

    def had_early_writes(self, at: Address) -> bool:
        """Whether writes may have been stored for this checkpoint before the checkpoint."""
        with self._lock:
            return at in self._early or len(self._early) == _HEADS

    def has_session(self, thread_id: str) -> bool:
        """Whether this saver is already at work on a thread."""
        with self._lock:
            return thread_id in self._sessions

    def begin_session(self, thread_id: str) -> None:
        """Note that this saver is at work on a thread."""
        with self._lock:
            _note(self._sessions, thread_id, None, _RETIRED)

    def is_left_to_graph(self, thread_id: str) -> bool:
        """Whether a graph with nodes of its own for it folds this thread."""
        with self._lock:
            return thread_id in self._left_to_graph

    def leave_to_graph(self, thread_id: str) -> None:
        """Note that a graph with nodes of its own for it folds this thread."""
        with self._lock:
            _note(self._left_to_graph, thread_id, None, _RETIRED)

    def forget_thread(self, thread_id: str) -> None:
        """Drop all that is known of a deleted thread."""
        with self._lock:
            self._sessions.pop(thread_id, None)
            for at in [at for at in self._heads if at.thread_id == thread_id]:
                del self._heads[at]


def _note(memory: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    memory[key] = value
    while len(memory) > most:
        memory.popitem(last=False)
