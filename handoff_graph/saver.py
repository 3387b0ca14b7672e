"""`HandoffSaver`: a checkpointer that stores the task and a working tail, not the history."""

from __future__ import annotations

import asyncio
import copy
import inspect
import warnings
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from typing_extensions import Self

from handoff_graph import reading
from handoff_graph.backends import open_store, store_around
from handoff_graph.encryption import codec_of
from handoff_graph.errors import HandoffWarning
from handoff_graph.export import LedgerExporter
from handoff_graph.fold import Policy
from handoff_graph.maintenance import ThreadMaintenance
from handoff_graph.mirror import LedgerMirror
from handoff_graph.model import ModelSummarizer
from handoff_graph.retention import History, check_history, thread_name
from handoff_graph.store import Store
from handoff_graph.summarize import HeuristicSummarizer, Summarizer
from handoff_graph.superstep import Saved, Superstep

__all__ = ["HandoffSaver"]

Listener = Callable[[Saved], None]


class HandoffSaver(ThreadMaintenance):
    """A drop-in for `SqliteSaver` or `PostgresSaver` that stays small while the task grows.

    With a `SummarizerNode` in the graph, the transcript arrives folded: the saver journals
    each revision of the task state and removes what the fold superseded. On a graph without
    one it folds by itself, every `every` tool calls, with no model call. Until a fold happens
    it stores exactly what the inner saver would. One object serves `invoke` and `ainvoke`.

    Args:
        inner: the saver that stores the checkpoints: a `SqliteSaver`, a `PostgresSaver` or an
            `AsyncPostgresSaver`.
        every: tool calls between two folds, where the saver folds.
        keep: newest exchanges that stay word for word behind a fold of the saver's.
        max_tokens: also fold when a transcript passes this many approximate tokens; or None.
        budget: tokens that the briefing may take.
        summarizer: makes the update of what the saver folds; it runs inside `put`, so it must
            not wait for anything.
        owner: who is working, for the journal and the ledger, such as `agent-session-14`.
        ledger: a folder to mirror each thread into, as a markdown file; or its exporter.
        history: what a fold leaves of the checkpoints before it: `"milestones"`, one small
            checkpoint per fold and session; `"latest"`, nothing; `"all"`, everything.

    Example:
        >>> saver = HandoffSaver.from_conn_string(":memory:")
        >>> saver.get_tuple({"configurable": {"thread_id": "t"}}) is None
        True
        >>> saver.close()
    """

    def __init__(
        self,
        inner: BaseCheckpointSaver[Any],
        *,
        every: int = 10,
        keep: int = 1,
        max_tokens: int | None = Policy.max_tokens,
        budget: int = Policy.budget,
        summarizer: Summarizer | None = None,
        owner: str = "",
        ledger: str | Path | LedgerExporter | None = None,
        history: History = "milestones",
        _store: Store | None = None,
    ) -> None:
        store = _store or store_around(inner)
        super().__init__(serde=inner.serde)
        waits = isinstance(summarizer, (str, Runnable, ModelSummarizer))
        is_coroutine = inspect.iscoroutinefunction(summarizer)
        if waits or is_coroutine or not (summarizer is None or callable(summarizer)):
            found = "a coroutine function" if is_coroutine else type(summarizer).__name__
            raise TypeError(
                f"summarizer: expected a plain function, found {found}. The saver "
                "folds inside put, where nothing may wait; give it to a SummarizerNode instead."
            )
        self.inner = inner
        self.policy = Policy(every, keep, max_tokens, budget, owner)
        self._store = store
        self._codec = codec_of(inner.serde)
        self._superstep = Superstep(
            self._store.dialect,
            self.policy,
            summarizer or HeuristicSummarizer(),
            check_history(history),
            inner.serde,
            self._codec,
        )
        self._heads = self._superstep.heads
        self._listeners: list[Listener] = []
        if ledger is not None:
            self.export_to(ledger if isinstance(ledger, LedgerExporter) else LedgerExporter(ledger))

    # -- opening and closing -------------------------------------------------------------------

    @classmethod
    def from_conn_string(cls, conn_string: str | Path, **options: Any) -> Self:
        """Open a database.

        Args:
            conn_string: the path of a SQLite file, created if missing; `:memory:`; or the URL
                of a PostgreSQL database, `postgresql://...`.
            **options: as for the class.

        Returns:
            The saver, which is also a context manager, for `with` and `async with`.

        Raises:
            NotAHandoffDatabase: nothing of the kind can be opened there.
        """
        inner, store = open_store(str(conn_string))
        return cls(inner, _store=store, **options)

    def setup(self) -> None:
        """Create the tables where they are missing. Called when needed; harmless to repeat."""
        self._store.setup()

    def close(self) -> None:
        """Close what `from_conn_string` opened. May be called again."""
        self._store.close()

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
        await self._store.asetup()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._store.aclose()

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """A clone whose serializer also accepts these types, over the same database."""
        clone = copy.copy(self)
        clone._store = self._store.with_allowlist(extra_allowlist)
        clone.serde = clone._store.serde
        clone._superstep = copy.copy(self._superstep)
        clone._superstep.serde = clone.serde
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
            self.add_listener(LedgerMirror(self._store, exporter, self._codec))

    @property
    def _mirror(self) -> LedgerMirror | None:
        return next((lis for lis in self._listeners if isinstance(lis, LedgerMirror)), None)

    def leave_folding(self, thread_id: str) -> None:
        """Have a thread folded by the nodes of its graph alone, also before their first visit."""
        self._heads.leave_to_graph(thread_name(thread_id))

    def _remove_ledger(self, thread_id: str) -> None:
        if self._mirror is not None:
            self._mirror.exporter.remove(thread_id)

    def _notify(self, saved: Saved | None) -> None:
        if saved is None:
            return
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
        return self._store.read(reading.task_state(config, self._codec))

    async def atask_state(self, config: RunnableConfig) -> dict[str, Any] | None:
        """`task_state`, without blocking the event loop."""
        return await self._store.aread(reading.task_state(config, self._codec))

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

        Raises:
            StorageError: the database failed; nothing was stored.
            CheckpointRemoved: another run went on and folded the parent checkpoint away.
            ThreadDeleted: the thread was deleted while this run was under way.
        """
        where = reading.stored_form(config)
        steps = self._superstep.put(where, checkpoint, metadata, new_versions)
        result, saved = self._store.write(where["configurable"]["thread_id"], steps)
        self._notify(saved)
        return reading.as_asked(result, config)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`put`, without blocking the event loop."""
        where = reading.stored_form(config)
        steps = self._superstep.put(where, checkpoint, metadata, new_versions)
        result, saved = await self._store.awrite(where["configurable"]["thread_id"], steps)
        if saved is not None and self._listeners:
            await asyncio.to_thread(self._notify, saved)
        return reading.as_asked(result, config)

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
        where = reading.stored_form(config)
        steps = self._superstep.put_writes(where, writes, task_id, task_path)
        self._store.note(where["configurable"]["thread_id"], steps)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """`put_writes`, without blocking the event loop."""
        where = reading.stored_form(config)
        steps = self._superstep.put_writes(where, writes, task_id, task_path)
        await self._store.anote(where["configurable"]["thread_id"], steps)

    # -- reading -------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read a checkpoint, the newest unless `config` names one.

        Raises:
            CheckpointRemoved: a fold has removed the one it names. To find nothing would have
                the run start from an empty state.
        """
        where = reading.stored_form(config)
        found = self._store.read(reading.checkpoint(where, self._codec))
        self._heal(where)
        return found

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple`, without blocking the event loop."""
        where = reading.stored_form(config)
        found = await self._store.aread(reading.checkpoint(where, self._codec))
        if self._mirror is not None:
            await asyncio.to_thread(self._heal, where)
        return found

    def _heal(self, where: RunnableConfig) -> None:
        if self._mirror is not None and not where["configurable"].get("checkpoint_ns"):
            self._mirror.heal(where["configurable"]["thread_id"])

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
        pages = reading.Pages(config, filter, before, limit, self._codec)
        while not pages.ended:
            yield from pages.turned(self._store.read(pages.steps()))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list`, without blocking the event loop."""
        pages = reading.Pages(config, filter, before, limit, self._codec)
        while not pages.ended:
            for found in pages.turned(await self._store.aread(pages.steps())):
                yield found

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """The stored value and later writes of `DeltaChannel`s, as the inner saver has them."""
        where = reading.stored_form(config)
        return self._store.read(reading.delta_history(where, channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`get_delta_channel_history`, without blocking the event loop."""
        where = reading.stored_form(config)
        return await self._store.aread(reading.delta_history(where, channels))

    def get_next_version(self, current: str | None, channel: None) -> str:
        """The next version of a channel, in the inner saver's form."""
        return self.inner.get_next_version(current, channel)  # type: ignore[no-any-return]
