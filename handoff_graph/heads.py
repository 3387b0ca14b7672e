"""Which task belongs to which checkpoint, and which checkpoints a fold has removed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig

from handoff_graph import journal
from handoff_graph.compaction import Head, recover, task_channel
from handoff_graph.sqlite import SqliteStore
from handoff_graph.transcript import briefing_revision, is_transcript

__all__ = ["Address", "Heads", "address"]

_HEADS = 1024  # checkpoints whose task is held in memory; any other is read back when needed
_RETIRED = 20_000  # removed checkpoints for which a late write is still recognised


class Address(NamedTuple):
    """Where a checkpoint is: empty `checkpoint_id` means the newest, or none yet."""

    thread_id: str
    ns: str
    checkpoint_id: str


def address(config: RunnableConfig) -> Address:
    """The address that a LangGraph config names."""
    where = config["configurable"]
    return Address(
        str(where["thread_id"]), where.get("checkpoint_ns", ""), where.get("checkpoint_id") or ""
    )


class Heads:
    """The `Head` of each checkpoint that this process wrote lately; others are read back.

    Its methods are called under the store's lock.
    """

    def __init__(self) -> None:
        self._heads: OrderedDict[Address, Head] = OrderedDict()
        self._retired: OrderedDict[Address, None] = OrderedDict()

    def known(self, at: Address) -> Head | None:
        """The head of a checkpoint, if it is in memory."""
        return self._heads.get(at)

    def load(self, store: SqliteStore, config: RunnableConfig, incoming: Mapping[str, Any]) -> Head:
        """The head of a checkpoint.

        Args:
            store: where to read it back from.
            config: names the checkpoint; without a checkpoint id there is none yet.
            incoming: the channel values that a run going on from it now stores.
        """
        at = address(config)
        if not at.checkpoint_id:
            return Head()
        known = self._heads.get(at)
        if known is not None:
            return known
        saved = store.saver.get_tuple(config)
        values = saved.checkpoint["channel_values"] if saved else {}
        channel = task_channel(values)
        if channel is not None:
            return Head(values[channel])
        messages = [m for value in values.values() if is_transcript(value) for m in value]
        revision = briefing_revision(messages)
        state = None
        if revision is not None:
            state = journal.state_at(store.conn, at.thread_id, at.ns, revision)
        return recover(values, incoming, state)

    def remember(self, at: Address, head: Head) -> None:
        """Keep the head of a checkpoint that has just been committed."""
        self._heads[at] = head
        while len(self._heads) > _HEADS:
            self._heads.popitem(last=False)

    def retire(self, at: Address) -> None:
        """Note that a fold has removed this checkpoint."""
        self._heads.pop(at, None)
        self._retired[at] = None
        while len(self._retired) > _RETIRED:
            self._retired.popitem(last=False)

    def is_retired(self, at: Address) -> bool:
        """Whether a fold has removed this checkpoint."""
        return at in self._retired

    def forget_thread(self, thread_id: str) -> None:
        """Drop all that is known of a deleted thread."""
        for at in [at for at in self._heads if at.thread_id == thread_id]:
            del self._heads[at]
