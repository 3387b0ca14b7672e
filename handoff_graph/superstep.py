"""What one superstep writes: its checkpoint, the journal's row, and what a fold removes.

Operations as steps (see `steps`); the saver hands them to its store, which runs each within
one transaction.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from handoff_graph import journal
from handoff_graph.channels import awaits_task, task_channel, transcripts_in
from handoff_graph.codec import Codec
from handoff_graph.compaction import (
    Head,
    compact,
    compacted,
    compacted_write,
    fold_channels,
    folds_landed,
    guarded,
    owned_by,
    with_revision,
    without_unlisted,
)
from handoff_graph.deltas import open_deltas, rebuilt, with_snapshots
from handoff_graph.dialect import Dialect
from handoff_graph.edits import amended, rebriefed
from handoff_graph.errors import CheckpointRemoved, HandoffWarning, ThreadDeleted
from handoff_graph.fold import FORCE, Policy
from handoff_graph.heads import Heads, address, head_of, read_checkpoint
from handoff_graph.milestones import FOLD
from handoff_graph.refusals import check_metadata, check_task
from handoff_graph.retention import Address, History, is_stored, retire
from handoff_graph.steps import Done, Inner, Many, Query, Steps
from handoff_graph.summarize import Summarizer
from handoff_graph.task import content, merge, utc_now
from handoff_graph.watch import Watches

__all__ = ["Saved", "Superstep"]


@dataclass(frozen=True)
class Saved:
    """What a listener is told after a checkpoint with a new revision has been committed."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    state: dict[str, Any]
    at: str


class _Put(NamedTuple):
    """One `put`: where, what, the stamp of whatever it brings, and what to note once it is in."""

    config: RunnableConfig
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    new_versions: ChannelVersions
    here: Address
    at: str
    on_commit: list[Callable[[], None]]

    @property
    def values(self) -> Mapping[str, Any]:
        return self.checkpoint["channel_values"]


class Superstep:
    """The writing half of the saver.

    Args:
        dialect: the database's.
        policy: when to fold, where the saver folds.
        summarizer: makes the update of what the saver folds.
        history: what a fold leaves of the checkpoints before it.
        serde: the inner saver's serializer.
        codec: how the journal's text is stored.
    """

    def __init__(
        self,
        dialect: Dialect,
        policy: Policy,
        summarizer: Summarizer,
        history: History,
        serde: SerializerProtocol,
        codec: Codec,
    ) -> None:
        self.dialect = dialect
        self.policy = policy
        self.summarizer = summarizer
        self.history = history
        self.serde = serde
        self.codec = codec
        self.heads = Heads()
        self._watches = Watches(policy)

    # -- put -----------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Steps[Done]:
        """Store a checkpoint; the value is what `put` returns and the `Saved`, or None."""
        here = address(config)._replace(checkpoint_id=checkpoint["id"])
        check_metadata(config, metadata)
        put = _Put(config, checkpoint, metadata, new_versions, here, utc_now(), [])
        stands = yield from self._admit(put)
        before = yield from self._load(put, stands)
        after, folded, transcripts = yield from self._advance(put, before)
        after, unlisted = without_unlisted(owned_by(after, self.policy.owner))
        after, changed = yield from self._numbered(here, before, after)
        edited = before.unseen is not None
        result, gone = yield from self._store(put, after, folded, transcripts, edited=edited)
        if changed is not None:
            check_task(config, changed)
            yield from journal.append(
                *here,
                before=before.recorded,
                after=changed,
                at=put.at,
                reason="fold" if folded else "update",
                unlisted=unlisted,
                codec=self.codec,
            )

        def remember() -> None:
            self.heads.begin_session(here.thread_id)
            self.heads.remember(here, after)
            for note in put.on_commit:
                note()
            for checkpoint_id in gone:
                self.heads.retire(here._replace(checkpoint_id=checkpoint_id))

        saved = None if changed is None else Saved(*here, changed, put.at)
        return Done((result, saved), remember)

    def _admit(self, put: _Put) -> Steps[journal.Position]:
        """Take the thread's turn, refuse a run of a deleted thread, note a new session."""
        thread_id, ns, _ = put.here
        parent = address(put.config).checkpoint_id
        stands = yield from journal.position(thread_id, ns)
        if (parent or put.here.checkpoint_id) <= stands.tombstone:
            raise ThreadDeleted(thread_id)
        at = put.here._replace(checkpoint_id=parent)
        if parent and parent < stands.fold and not (yield from is_stored(at)):
            # A run that was left behind: what it holds unfolded must not come back.
            raise CheckpointRemoved(thread_id, parent)
        if parent and not ns and not self.heads.has_session(thread_id):
            owner = self.policy.owner
            yield from journal.begin_session(thread_id, ns, parent, owner=owner, at=put.at)
        return stands

    def _load(self, put: _Put, stands: journal.Position) -> Steps[Head]:
        """The head of the parent checkpoint, with what a person has changed beside it."""
        parent = address(put.config)
        if not parent.checkpoint_id:
            return Head()
        known = self.heads.known(parent)
        if known is not None:
            here, revision = stands.checkpoint == parent.checkpoint_id, stands.revision
            if not here or revision <= int((known.recorded or {}).get("revision", 0)):
                return known
            edit = yield from journal.state_at(*parent[:2], revision, self.codec)
            return known if edit is None else amended(known, edit)
        saved = yield from read_checkpoint(put.config, self.codec)
        if saved is None:
            return Head()
        return (yield from head_of(saved, put.values, self.codec))

    def _advance(
        self, put: _Put, before: Head
    ) -> Steps[tuple[Head, bool, dict[str, list[BaseMessage]]]]:
        """The task as of this checkpoint.

        Returns:
            Its head, whether a fold landed in it, and the transcripts that it leaves to its
            ancestors, where they had to be read.
        """
        names = open_deltas(put.checkpoint, put.metadata)
        channel = task_channel(put.values)
        if channel is not None:
            given = put.values[channel]
            if given is before.given:  # no reducer has made a new one of it
                return before, False, {}
            state = guarded(before.state, given)
            unseen = None
            if before.unseen is not None and content(state) != content(
                merged := merge(before.unseen, state)
            ):
                state, unseen = merged, before.unseen
            folded = folds_landed(before.state, state, put.values)
            return (
                Head(state, given=given, unseen=unseen),
                folded,
                (yield from self._read(put, names if folded else [])),
            )
        if self._is_left_to_graph(put):
            return before, False, {}
        held = transcripts_in(put.values)
        sizes = {name: len(messages) for name, messages in held.items()}
        force = bool(put.config["configurable"].get(FORCE))
        if not force and not self._watches.is_due(*put.here, sizes):
            return before, False, {}
        read = yield from self._read(put, names)
        after = self._fold(before, held, force=force)
        after = self._fold(after, read, force=force, rebuilt=True)
        folds = (after.state or {}).get("folds", {})
        left = {n: compact(m, after.channels.get(n)) for n, m in {**held, **read}.items()}
        looked = partial(self._watches.looked, *put.here, left, sizes, folds)
        put.on_commit.append(looked)
        return after, after is not before, read

    def _is_left_to_graph(self, put: _Put) -> bool:
        """Whether the graph's own nodes will fold this, under their own policy.

        A run's input is never folded: it is with the first step that the run shows whether
        its graph has such nodes.
        """
        told: Mapping[str, Any] = put.metadata
        is_input = told.get("source") == "input"
        return (
            is_input or awaits_task(put.values) or self.heads.is_left_to_graph(put.here.thread_id)
        )

    def _read(self, put: _Put, names: Sequence[str]) -> Steps[dict[str, list[BaseMessage]]]:
        """The transcripts on these delta channels as of the checkpoint in hand."""
        if not names:
            return {}
        # It has to be stored for that; it is replaced before the transaction ends.
        at = yield Inner("put", (put.config, put.checkpoint, put.metadata, {}))
        return (yield from rebuilt(at, names))

    def _fold(
        self,
        head: Head,
        transcripts: Mapping[str, list[BaseMessage]],
        *,
        force: bool,
        rebuilt: bool = False,
    ) -> Head:
        """The head after the folds that are due; the same where there are none, or one fails."""
        try:
            return fold_channels(
                head,
                transcripts,
                self.policy,
                self.summarizer,
                utc_now,
                rebuilt=rebuilt,
                force=force,
            )
        except Exception as error:
            warnings.warn(
                f"the fold failed and changed nothing, the checkpoint is stored unfolded: "
                f"{type(error).__name__}: {error}",
                HandoffWarning,
                stacklevel=2,
            )
            return head

    def _numbered(
        self, here: Address, before: Head, after: Head
    ) -> Steps[tuple[Head, dict[str, Any] | None]]:
        """The new head under its revision number, and its state if that is a new revision."""
        if after.state is None or (after is before and before.journaled is None):
            return after, None
        recorded = before.recorded
        if recorded and content(recorded) == content(after.state):
            return replace(with_revision(after, recorded["revision"]), journaled=None), None
        number = yield from journal.next_revision(here.thread_id, here.ns)
        after = with_revision(after, max(number, after.state["revision"]))
        return replace(after, journaled=None), after.state

    def _store(
        self,
        put: _Put,
        after: Head,
        folded: bool,
        transcripts: Mapping[str, list[BaseMessage]],
        *,
        edited: bool,
    ) -> Steps[tuple[RunnableConfig, list[str]]]:
        """Store the checkpoint as the head has it, and remove what a fold has superseded.

        Returns:
            What `put` returns, and the ids of the removed checkpoints.
        """
        values = compacted(put.values, after)
        if edited and after.state is not None:
            # Channels whose version is the parent's, where they are stored without the change.
            channel = task_channel(values)
            task = {} if channel is None else {channel: dict(after.state)}
            values = {**rebriefed(values, after.state), **task}
        stored = cast(Checkpoint, {**put.checkpoint, "channel_values": values})
        told = put.metadata
        if folded and after.state is not None:
            told = cast(CheckpointMetadata, {**told, FOLD: after.state["revision"]})
            whole = {n: compact(m, after.channels.get(n)) for n, m in transcripts.items()}
            stored, told = with_snapshots(stored, told, whole)
        versions = put.checkpoint["channel_versions"]
        replaced = {
            name: versions[name]
            for name, value in stored["channel_values"].items()
            if name in versions and value is not put.values.get(name)
        }
        unsaid = {(n, str(v)) for n, v in replaced.items() if n not in put.new_versions}
        yield from self.dialect.delete_values(*put.here[:2], unsaid)
        fresh = {**put.new_versions, **replaced}
        result = yield Inner("put", (put.config, stored, told, fresh))
        if after.channels and self.heads.had_early_writes(put.here):
            yield from self._rewrite_writes(put.here, after)
        if not folded:
            return result, []
        delta = open_deltas(stored, told)
        return result, (yield from retire(self.dialect, put.here, self.history, self.codec, delta))

    def _rewrite_writes(self, at: Address, head: Head) -> Steps[None]:
        """Take folded messages out of the writes that are stored for a checkpoint."""
        table, column = self.dialect.writes, self.dialect.value
        where = "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
        rows = yield Query(f"SELECT task_id, idx, channel, type, {column} FROM {table} {where}", at)
        changed: list[Sequence[Any]] = []
        for task_id, index, channel, kind, data in rows:
            value = self.serde.loads_typed((kind, data))
            small = compacted_write(channel, value, head)
            if small is not value:
                changed.append((*self.serde.dumps_typed(small), *at, task_id, index))
        if changed:
            yield Many(
                f"UPDATE {table} SET type = ?, {column} = ? {where} AND task_id = ? AND idx = ?",
                changed,
            )

    # -- put_writes ----------------------------------------------------------------------------

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> Steps[Done]:
        """Store a task's writes, unless a fold has removed the checkpoint they belong to."""
        at = address(config)
        if self.heads.is_retired(at):
            return Done(None)
        stands = yield from journal.position(at.thread_id)
        if at.checkpoint_id <= stands.tombstone:
            return Done(None)
        self._watches.note(*at, writes)
        head = self.heads.begin_writes(at)
        if head is not None and head.channels:
            writes = [(name, compacted_write(name, value, head)) for name, value in writes]
        yield Inner("put_writes", (config, writes, task_id, task_path))
        return Done(None)
