"""`HandoffSaver`: a checkpointer that stores the task and a working tail, not the history."""

from __future__ import annotations

import asyncio
import copy
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.sqlite import SqliteSaver
from typing_extensions import Self

from handoff_graph import journal
from handoff_graph.compaction import (
    Head,
    compact_nested,
    compacted,
    fold_channels,
    folds_landed,
    guarded,
    owned_by,
    task_channel,
    with_revision,
    without_unlisted,
)
from handoff_graph.deltas import stand_alone
from handoff_graph.errors import CheckpointRemoved, HandoffWarning
from handoff_graph.export import LedgerExporter
from handoff_graph.fold import Policy
from handoff_graph.heads import Address, Heads, address
from handoff_graph.mirror import LedgerMirror, Saved
from handoff_graph.sqlite import SqliteStore, connect
from handoff_graph.summarize import HeuristicSummarizer, Summarizer
from handoff_graph.task import content, utc_now
from handoff_graph.threaded import ThreadedSaver
from handoff_graph.transcript import is_transcript

__all__ = ["HandoffSaver"]

Listener = Callable[[Saved], None]


class HandoffSaver(ThreadedSaver):
    """A drop-in for `SqliteSaver` whose database stays small while the task grows.

    With a `SummarizerNode` in the graph, the transcript arrives folded: the saver journals
    each revision of the task state and removes what the fold superseded. On a graph without
    one it folds by itself, every `every` tool calls, with no model call. Until a fold happens
    it stores exactly what the inner saver would. One object serves `invoke` and `ainvoke`.

    Args:
        inner: the saver that stores the checkpoints.
        every: tool calls between two folds, where the saver folds.
        keep: newest exchanges that stay word for word behind a fold of the saver's.
        max_tokens: also fold when a transcript passes this many approximate tokens.
        budget: tokens that the briefing may take.
        summarizer: makes the update of what the saver folds; it runs inside `put`, so it must
            not wait for anything.
        owner: who is working, for the journal and the ledger, such as `agent-session-14`.
        ledger: a folder to mirror each thread into, as a markdown file.

    Example:
        >>> saver = HandoffSaver.from_conn_string(":memory:")
        >>> saver.get_tuple({"configurable": {"thread_id": "t"}}) is None
        True
        >>> saver.close()
    """

    def __init__(
        self,
        inner: SqliteSaver,
        *,
        every: int = 10,
        keep: int = 1,
        max_tokens: int | None = None,
        budget: int = Policy.budget,
        summarizer: Summarizer | None = None,
        owner: str = "",
        ledger: str | Path | LedgerExporter | None = None,
        _owned: bool = False,
    ) -> None:
        if not isinstance(inner, SqliteSaver):
            raise TypeError(
                f"HandoffSaver wraps a SqliteSaver, not {type(inner).__name__}. It serves "
                "ainvoke too, so no AsyncSqliteSaver is needed."
            )
        super().__init__(serde=inner.serde)
        self.inner = inner
        self.policy = Policy(every, keep, max_tokens, budget, owner)
        self.summarizer: Summarizer = summarizer or HeuristicSummarizer()
        self._store = SqliteStore(inner, owned=_owned)
        self._heads = Heads()
        self._listeners: list[Listener] = []
        self._owned = _owned
        if ledger is not None:
            self.export_to(ledger if isinstance(ledger, LedgerExporter) else LedgerExporter(ledger))

    # -- opening and closing -------------------------------------------------------------------

    @classmethod
    def from_conn_string(cls, conn_string: str | Path, **options: Any) -> Self:
        """Open a SQLite file.

        Args:
            conn_string: the path of the file, created if missing, or `:memory:`.
            **options: as for the class.

        Returns:
            The saver, which is also a context manager, for `with` and `async with`.
        """
        return cls(SqliteSaver(connect(str(conn_string))), _owned=True, **options)

    def setup(self) -> None:
        """Create the tables where they are missing. Called when needed; harmless to repeat."""
        self._store.setup()

    def close(self) -> None:
        """Close the connection, if `from_conn_string` opened it. May be called again."""
        if self._owned:
            self.inner.conn.close()

    def __enter__(self) -> Self:
        self.setup()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.setup)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """A clone whose serializer also accepts these types, over the same database."""
        clone = copy.copy(self)
        clone._store = copy.copy(self._store)
        clone._store.saver = cast(SqliteSaver, self._store.saver.with_allowlist(extra_allowlist))
        clone.serde = clone._store.saver.serde
        return clone

    # -- listeners -----------------------------------------------------------------------------

    def add_listener(self, listener: Listener) -> None:
        """Call `listener(saved)` after every commit that brought a new revision.

        It runs in the thread of `put`, outside the transaction. What it raises is reported as
        a `HandoffWarning` and goes no further.
        """
        self._listeners.append(listener)

    def export_to(self, exporter: LedgerExporter) -> None:
        """Mirror every new revision of a root graph's task into a ledger, from now on."""
        if self._mirror is None:
            self.add_listener(LedgerMirror(self._store, exporter))

    @property
    def _mirror(self) -> LedgerMirror | None:
        return next((lis for lis in self._listeners if isinstance(lis, LedgerMirror)), None)

    def _notify(self, saved: Saved) -> None:
        for listener in self._listeners:
            try:
                listener(saved)
            except Exception as error:
                warnings.warn(
                    f"listener {listener!r} failed on thread {saved.thread_id!r} "
                    f"(the checkpoint is stored): {error}",
                    HandoffWarning,
                    stacklevel=2,
                )

    # -- the task ------------------------------------------------------------------------------

    def task_state(self, config: RunnableConfig) -> dict[str, Any] | None:
        """The task state as of a checkpoint.

        Args:
            config: names the thread, and the checkpoint if not the newest is meant.

        Returns:
            The state, or None if the thread has none yet.
        """
        saved = self.get_tuple(config)
        if saved is None:
            return None
        with self._store.reading():
            head = self._heads.load(self._store, saved.config, {})
        return head.state

    # -- writing -------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; arguments and result as in `BaseCheckpointSaver.put`.

        In one transaction: the checkpoint with folded messages replaced by their briefing,
        the journal's row if the task state changed, the removal of what a fold superseded.
        """
        at = utc_now()
        values = checkpoint["channel_values"]
        here = address(config)._replace(checkpoint_id=checkpoint["id"])
        gone: list[str] = []

        def remember() -> None:
            self._heads.remember(here, after)
            for checkpoint_id in gone:
                self._heads.retire(here._replace(checkpoint_id=checkpoint_id))

        with self._store.writing(on_commit=remember) as inner:
            before = self._heads.load(self._store, config, values)
            after, folded = self._advance(before, values)
            after, unlisted = without_unlisted(owned_by(after, self.policy.owner))
            after, changed = self._numbered(here, before, after)
            stored = cast(Checkpoint, {**checkpoint, "channel_values": compacted(values, after)})
            result = inner.put(config, stored, metadata, new_versions)
            if after.channels:  # a task's writes may come in before the checkpoint itself
                self._store.rewrite_writes(
                    here, lambda value: compact_nested(value, after.channels)
                )
            if changed is not None:
                reason = "fold" if folded else "update"
                journal.append(
                    self._store.conn,
                    *here,
                    before=before.state,
                    after=changed,
                    at=at,
                    reason=reason,
                    unlisted=unlisted,
                )
            if folded and stand_alone(inner, config, stored, metadata, result):
                gone += self._store.retire(*here)
        if changed is not None:
            self._notify(Saved(*here, changed, at))
        return result

    def _numbered(
        self, here: Address, before: Head, after: Head
    ) -> tuple[Head, dict[str, Any] | None]:
        """The new head under its revision number, and its state if that is a new revision."""
        if after.state is None:
            return after, None
        if before.state is not None and content(before.state) == content(after.state):
            return with_revision(after, before.state["revision"]), None
        number = journal.next_revision(self._store.conn, here.thread_id, here.ns)
        after = with_revision(after, max(number, after.state["revision"]))
        return after, after.state

    def _advance(self, before: Head, values: Mapping[str, Any]) -> tuple[Head, bool]:
        """The task as of the checkpoint in hand, and whether a fold landed in it."""
        channel = task_channel(values)
        if channel is not None:
            state = guarded(before.state, values[channel])
            return Head(state), folds_landed(before.state, state, values)
        transcripts = {name: value for name, value in values.items() if is_transcript(value)}
        try:
            after = fold_channels(before, transcripts, self.policy, self.summarizer, utc_now)
        except Exception as error:
            warnings.warn(
                f"the fold failed and changed nothing, the checkpoint is stored unfolded: "
                f"{type(error).__name__}: {error}",
                HandoffWarning,
                stacklevel=3,
            )
            after = before
        return after, after is not before

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store a task's writes; arguments as in `BaseCheckpointSaver.put_writes`.

        Background writers can be late: what belongs to a checkpoint that a fold has already
        removed was consumed with it, and is dropped.
        """
        at = address(config)
        with self._store.noting() as inner:
            if self._heads.is_retired(at):
                return
            head = self._heads.known(at)
            if head is not None and head.channels:
                writes = [(name, compact_nested(value, head.channels)) for name, value in writes]
            inner.put_writes(config, writes, task_id, task_path)

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread: its checkpoints, writes and journal. Its ledger file stays."""

        def forget() -> None:
            self._heads.forget_thread(str(thread_id))

        with self._store.writing(on_commit=forget) as inner:
            inner.delete_thread(thread_id)
            self._store.delete_journal(str(thread_id))

    # -- reading -------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read a checkpoint, the newest unless `config` names one.

        Raises:
            CheckpointRemoved: a fold has removed the one it names. To find nothing would have
                the run start from an empty state.
        """
        at = address(config)
        with self._store.reading() as inner:
            found = inner.get_tuple(config)
            if found is None and not at.ns and self._store.folded_away(*at):
                raise CheckpointRemoved(at.thread_id, at.checkpoint_id)
        if self._mirror is not None and not at.ns:
            self._mirror.heal(at.thread_id)
        return found

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """List checkpoints, newest first; arguments as in `BaseCheckpointSaver.list`.

        Read in pages, so that the saver can be used while the result is consumed.
        """
        yield from self._store.pages(config, filter=filter, before=before, limit=limit)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """The stored value and later writes of `DeltaChannel`s, as the inner saver has them."""
        with self._store.reading() as inner:
            return inner.get_delta_channel_history(config=config, channels=channels)

    def get_next_version(self, current: str | None, channel: None) -> str:
        """The next version of a channel, in the inner saver's form."""
        return self.inner.get_next_version(current, channel)
