"""The saver's operations on whole threads: delete, copy, prune, take a run back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from handoff_graph import threads
from handoff_graph.codec import Codec
from handoff_graph.edits import amend
from handoff_graph.heads import Heads
from handoff_graph.retention import Address, thread_name
from handoff_graph.steps import Done, Steps
from handoff_graph.store import Store
from handoff_graph.superstep import Saved
from handoff_graph.task import TaskUpdate

__all__ = ["ThreadMaintenance"]


class ThreadMaintenance(BaseCheckpointSaver[str]):
    """The half of a saver that acts on whole threads, sync and async."""

    _store: Store
    _codec: Codec
    _heads: Heads

    def _remove_ledger(self, thread_id: str) -> None:
        """Delete the thread's ledger, where this saver exports one."""

    def delete_thread(self, thread_id: str, *, ledger: bool = False) -> None:
        """Delete a thread: its checkpoints, writes and journal.

        A run that is still under way does not bring it back. Its ledger file stays, unless
        `ledger` is true and this saver exports it.
        """
        name = thread_name(thread_id)
        self._store.write(name, threads.delete_thread(name))
        self._forget(name, ledger)

    async def adelete_thread(self, thread_id: str, *, ledger: bool = False) -> None:
        """`delete_thread`, without blocking the event loop."""
        name = thread_name(thread_id)
        await self._store.awrite(name, threads.delete_thread(name))
        await asyncio.to_thread(self._forget, name, ledger)

    def _forget(self, name: str, ledger: bool) -> None:
        self._heads.forget_thread(name)
        if ledger:
            self._remove_ledger(name)

    def update_task(self, thread_id: str, update: TaskUpdate, *, reason: str = "edit") -> int:
        """Merge a person's update into a thread's task, as a revision of its own.

        The checkpoint stays as it is, with its pending writes and interrupts. The next run
        starts from the change. One that is under way stores it from its next superstep on, and
        with a `SummarizerNode` in its graph its agent reads it after its next tool step.

        Args:
            thread_id: the thread.
            update: as `task_update` builds it.
            reason: what `handoff log` says the revision is.

        Raises:
            UnknownThread: the thread has no task yet.

        Returns:
            The revision; 0 if the update changes nothing.
        """
        name = thread_name(thread_id)
        return self._amended(name, self._store.write(name, self._amend(name, update, reason)))

    async def aupdate_task(
        self, thread_id: str, update: TaskUpdate, *, reason: str = "edit"
    ) -> int:
        """`update_task`, without blocking the event loop."""
        name = thread_name(thread_id)
        made = await self._store.awrite(name, self._amend(name, update, reason))
        return await asyncio.to_thread(self._amended, name, made)

    def unseen(self, thread_id: str) -> dict[str, Any] | None:
        """The task state with a person's change in it, while the run that is under way on this
        thread does not know of it; None if there is no such thing."""
        return self._heads.unseen(thread_id)

    def _amend(self, name: str, update: TaskUpdate, reason: str) -> Steps[Done]:
        dialect = self._store.dialect
        return amend(dialect, name, lambda _: update, reason=reason, codec=self._codec)

    def _amended(self, name: str, made: tuple[str, dict[str, Any], str] | None) -> int:
        if made is None:
            return 0
        checkpoint_id, state, at = made
        self._notify(Saved(name, "", checkpoint_id, state, at))
        return int(state["revision"])

    def _notify(self, saved: Saved) -> None:
        """Tell the listeners of a new revision."""

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all of a thread, its journal too, under another id.

        Raises:
            ThreadExists: there is something under the target id.
        """
        source, target = map(thread_name, (source_thread_id, target_thread_id))
        self._store.write(target, threads.copy_thread(self._store.dialect, source, target))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`copy_thread`, without blocking the event loop."""
        source, target = map(thread_name, (source_thread_id, target_thread_id))
        await self._store.awrite(target, threads.copy_thread(self._store.dialect, source, target))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Prune threads, each in a transaction of its own.

        Args:
            thread_ids: the threads.
            strategy: `"keep_latest"` leaves the newest checkpoint of each namespace, standing
                on its own; `"delete"` nothing. A retention policy (`"milestones"`, `"latest"`)
                applies that instead: live forks stay, as when the saver folds.
        """
        for name in threads.thread_names(thread_ids):
            steps = threads.pruned(self._store.dialect, name, strategy, self._codec)
            self._store.write(name, steps)
            self._heads.forget_thread(name)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """`prune`, without blocking the event loop."""
        for name in threads.thread_names(thread_ids):
            steps = threads.pruned(self._store.dialect, name, strategy, self._codec)
            await self._store.awrite(name, steps)
            self._heads.forget_thread(name)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete what these runs have stored, such as to roll one back.

        What later runs stored stays. The thread's head goes back to the newest checkpoint
        that is left; the journal keeps the revisions as a record.
        """
        found = self._store.read(threads.threads_of_runs(self._store.dialect, run_ids))
        for name, stored in found.items():
            steps = threads.remove_runs(self._store.dialect, name, stored, self._codec)
            self._retired(self._store.write(name, steps))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs`, without blocking the event loop."""
        found = await self._store.aread(threads.threads_of_runs(self._store.dialect, run_ids))
        for name, stored in found.items():
            steps = threads.remove_runs(self._store.dialect, name, stored, self._codec)
            self._retired(await self._store.awrite(name, steps))

    def _retired(self, removed: Sequence[Address]) -> None:
        for at in removed:
            self._heads.retire(at)
