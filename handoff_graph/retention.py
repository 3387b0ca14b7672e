"""Retention: what a fold leaves of the checkpoints before it.

`"milestones"` keeps every checkpoint since the last fold, and of what came before one small
checkpoint per fold, per session end and per end of a run that has an id, so that history can
still be walked. `"latest"` keeps nothing before the fold, `"all"` everything. Whatever the
policy, nothing goes that a live branch starts from, that has no child yet (it may be resumed:
pending writes and interrupts are there), or that a `DeltaChannel` is still rebuilt from.

The walk goes back from the fold to the last milestone, so it costs what has happened since.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple, cast, get_args

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple

from handoff_graph import journal
from handoff_graph.codec import Codec
from handoff_graph.deltas import open_deltas, rebuilt, with_snapshots
from handoff_graph.dialect import Dialect
from handoff_graph.errors import EmptyThreadId
from handoff_graph.milestones import FOLD, MILESTONE, milestone, revision_of
from handoff_graph.steps import Inner, Many, Query, Steps
from handoff_graph.task import utc_now

__all__ = [
    "Address",
    "History",
    "check_history",
    "folded_away",
    "is_stored",
    "relink",
    "retire",
    "thread_name",
]

History = Literal["milestones", "latest", "all"]

_PAGE = 64  # checkpoints read at a time on the way back


def thread_name(thread_id: Any) -> str:
    """A thread id as it is stored.

    Raises:
        EmptyThreadId: it is empty.
    """
    if thread_id is None or str(thread_id) == "":
        raise EmptyThreadId(thread_id)
    return str(thread_id)


class Address(NamedTuple):
    """Where a checkpoint is: empty `checkpoint_id` means the newest, or none yet."""

    thread_id: str
    ns: str
    checkpoint_id: str

    @property
    def config(self) -> RunnableConfig:
        """The LangGraph config that names it."""
        where = {"thread_id": self.thread_id, "checkpoint_ns": self.ns}
        named = {"checkpoint_id": self.checkpoint_id} if self.checkpoint_id else {}
        return {"configurable": {**where, **named}}


@dataclass(frozen=True)
class _Row:
    checkpoint_id: str
    parent: str | None
    metadata: Mapping[str, Any]
    ends_run: bool = False
    """Whether its child is of another run, which may be taken back by its id."""


def check_history(history: str) -> History:
    """The policy of this name.

    Raises:
        ValueError: there is none.
    """
    for known in get_args(History):
        if history == known:
            return known  # type: ignore[no-any-return]
    raise ValueError(f"history: expected one of {', '.join(get_args(History))}, found {history!r}")


def retire(
    dialect: Dialect,
    here: Address,
    history: History,
    codec: Codec,
    delta: Collection[str] = (),
) -> Steps[list[str]]:
    """Apply a policy to the ancestors of a checkpoint that stands on its own.

    The walk ends at a branch point: a checkpoint that another branch also starts from stays.
    With the checkpoints go their writes, what the subgraph calls of those supersteps stored
    under namespaces of their own, and what a killed run left without a checkpoint.

    Args:
        dialect: the database's.
        here: the checkpoint.
        history: the policy.
        codec: how the journal's text is stored.
        delta: `DeltaChannel`s which it does not hold itself, so that ancestors that wrote to
            them have to stay, without anything else.

    Returns:
        The ids of the removed checkpoints.
    """
    yield from _delete_orphans(dialect, here)
    if history == "all":
        return []
    chain, end = yield from _superseded(dialect, here, history)
    if not chain:
        return []
    oldest = min(row.checkpoint_id for row in chain)
    kept = yield from _carriers(dialect, here, chain, delta)
    if history == "milestones":
        ends = yield from journal.session_ends(here.thread_id, here.ns, oldest)
        kept |= {row.checkpoint_id for row in chain if FOLD in row.metadata or row.ends_run}
        kept |= {row.checkpoint_id for row in chain} & ends
    gone = [row.checkpoint_id for row in chain if row.checkpoint_id not in kept]
    yield from _delete_subgraph_calls(dialect, here, [row.checkpoint_id for row in chain])
    freed = yield from dialect.versions(*here[:2], [row.checkpoint_id for row in chain])
    line = [here.checkpoint_id]
    in_use: set[tuple[str, str]] = set()
    for row in chain:
        if row.checkpoint_id in kept:
            dropped = yield from _shrink(dialect, here, row, delta, codec)
            if dropped is None:  # it holds no task: nothing to remember it by
                gone.append(row.checkpoint_id)
                continue
            line.append(row.checkpoint_id)
            values = freed.get(row.checkpoint_id, set())
            in_use |= {value for value in values if value[0] not in dropped}
    yield from dialect.delete(*here[:2], gone)
    yield from relink(here, [*line, *([end] if end else [None])])
    survivors = yield from dialect.versions(
        *here[:2], [here.checkpoint_id, *([end] if end else [])]
    )
    in_use = in_use.union(*survivors.values())
    yield from dialect.delete_values(*here[:2], set().union(*freed.values()) - in_use)
    return gone


def is_stored(at: Address) -> Steps[bool]:
    """Whether there is such a checkpoint."""
    rows = yield Query(
        "SELECT 1 FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
        at,
    )
    return bool(rows)


def folded_away(at: Address) -> Steps[bool]:
    """Whether a checkpoint is missing because a fold has removed it."""
    fold = (yield from journal.position(at.thread_id, at.ns)).fold
    return bool(at.checkpoint_id) and at.checkpoint_id < fold and not (yield from is_stored(at))


# -- which go ----------------------------------------------------------------------------------


def _superseded(
    dialect: Dialect, here: Address, history: History
) -> Steps[tuple[list[_Row], str | None]]:
    """The ancestors to be dealt with, newest first, and the one at which the walk ended.

    Checkpoint ids grow with time: by the time the walk reaches a checkpoint, all its children
    have been read.
    """
    rows: dict[str, tuple[str | None, Any]] = {}
    children: Counter[str | None] = Counter()
    chain: list[_Row] = []
    child = _Row("", None, {})
    wanted: str | None = here.checkpoint_id
    cursor = ""
    while wanted:
        if wanted not in rows:
            page = yield from _page(here, cursor)
            if not page:
                return chain, None  # the walk has reached a parent that is not stored
            cursor = page[-1][0]
            rows.update({key: (parent, metadata) for key, parent, metadata in page})
            children.update(parent for _, parent, _ in page)
            continue
        parent, metadata = rows[wanted]
        row = _Row(wanted, parent, dialect.metadata(metadata))
        if wanted != here.checkpoint_id:
            marked = MILESTONE in row.metadata and history == "milestones"
            if marked or children[wanted] > 1 or (yield from _waits(dialect, here, row, child)):
                return chain, wanted
            later, earlier = child.metadata.get("run_id"), row.metadata.get("run_id")
            chain.append(replace(row, ends_run=later is not None and later != earlier))
        child = row
        wanted = row.parent
    return chain, None


def _waits(dialect: Dialect, here: Address, row: _Row, child: _Row) -> Steps[bool]:
    """Whether a checkpoint still waits for an answer, though it has a child.

    An update of the state goes on beside an interrupted or failed step, and does not use up
    what its tasks have written. Where an earlier fold has removed that update, its checkpoint
    is the child.
    """
    updated = child.metadata.get("source") in ("update", "fork")
    folded = FOLD in child.metadata and child.checkpoint_id != here.checkpoint_id
    if not updated and not folded:
        return False
    rows = yield Query(
        f"SELECT 1 FROM {dialect.writes} WHERE thread_id = ? AND checkpoint_ns = ?"
        " AND checkpoint_id = ? AND channel IN ('__interrupt__', '__error__') LIMIT 1",
        (*here[:2], row.checkpoint_id),
    )
    return bool(rows)


def _page(here: Address, before: str) -> Steps[list[tuple[str, str | None, Any]]]:
    """The id, parent and stored metadata of the next older checkpoints."""
    older = " AND checkpoint_id < ?" if before else ""
    rows: list[tuple[str, str | None, Any]] = yield Query(
        "SELECT checkpoint_id, parent_checkpoint_id, metadata FROM checkpoints"
        f" WHERE thread_id = ? AND checkpoint_ns = ?{older} ORDER BY checkpoint_id DESC LIMIT ?",
        (*here[:2], *([before] if before else []), _PAGE),
    )
    return rows


def _carriers(
    dialect: Dialect, here: Address, chain: Sequence[_Row], delta: Collection[str]
) -> Steps[set[str]]:
    """The ancestors from which these delta channels are rebuilt."""
    found: set[str] = set()
    for name in delta:
        for row in chain:
            counters = row.metadata.get("counters_since_delta_snapshot") or {}
            if name not in counters:  # it holds the value itself
                found.add(row.checkpoint_id)
        rows = yield Query(
            f"SELECT DISTINCT checkpoint_id FROM {dialect.writes}"
            " WHERE thread_id = ? AND checkpoint_ns = ? AND channel = ?",
            (*here[:2], name),
        )
        found |= {row[0] for row in rows}
    return found & {row.checkpoint_id for row in chain}


# -- how they go -------------------------------------------------------------------------------


def _shrink(
    dialect: Dialect, here: Address, row: _Row, delta: Collection[str], codec: Codec
) -> Steps[Collection[str] | None]:
    """Store a checkpoint as a milestone.

    Returns:
        The channels whose values it has lost, or None if there is nothing to make one of.
    """
    at = here._replace(checkpoint_id=row.checkpoint_id)
    saved: CheckpointTuple = yield Inner("get_tuple", (at.config,))
    names = open_deltas(saved.checkpoint, saved.metadata)
    found = yield from rebuilt(saved.config, names)
    stored, told = with_snapshots(saved.checkpoint, saved.metadata, found)
    values, versions = stored["channel_values"], stored["channel_versions"]
    state = None
    if revision := revision_of(values):
        state = yield from journal.state_at(here.thread_id, here.ns, revision, codec)
    small = milestone(values, state, utc_now())
    if small is None and not delta:
        return None
    if small is not None:
        replaced = {n: versions[n] for n in {*small.replaced, *found} if n in versions}
        yield from dialect.delete_values(*here[:2], {(n, str(v)) for n, v in replaced.items()})
        stored = cast(Checkpoint, {**stored, "channel_values": small.values})
        news = codec.dumps(json.dumps(small.mark["news"]))
        told = cast(CheckpointMetadata, {**told, MILESTONE: {**small.mark, "news": news}})
        parent = here._replace(checkpoint_id=row.parent or "").config
        yield Inner("put", (parent, stored, told, replaced))
    marks = "".join(", ?" for _ in delta)
    yield Query(
        f"DELETE FROM {dialect.writes} WHERE thread_id = ? AND checkpoint_ns = ?"
        f" AND checkpoint_id = ? AND channel NOT IN (''{marks})",
        (*at, *delta),
    )
    return small.dropped if small is not None else ()


def relink(here: Address, line: Sequence[str | None]) -> Steps[None]:
    """Make each checkpoint of the line the child of the next."""
    yield Many(
        "UPDATE checkpoints SET parent_checkpoint_id = ?"
        " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
        [(older, *here[:2], newer) for newer, older in pairwise(line)],
    )


def _delete_orphans(dialect: Dialect, here: Address) -> Steps[None]:
    """Remove writes whose checkpoint was never stored.

    A run goes ahead of its background puts, so a kill can leave them. Checkpoint ids grow
    with time: what the living run writes ahead is newer than the checkpoint in hand.
    """
    prefix = f"{here.ns}|" if here.ns else ""
    table = dialect.writes
    yield Query(
        f"DELETE FROM {table} WHERE thread_id = ? AND checkpoint_id < ?"
        " AND (checkpoint_ns = ? OR substr(checkpoint_ns, 1, ?) = ?)"
        " AND NOT EXISTS (SELECT 1 FROM checkpoints c"
        f" WHERE c.thread_id = {table}.thread_id AND c.checkpoint_ns = {table}.checkpoint_ns"
        f" AND c.checkpoint_id = {table}.checkpoint_id)",
        (here.thread_id, here.checkpoint_id, here.ns, len(prefix), prefix),
    )


def _delete_subgraph_calls(dialect: Dialect, here: Address, gone: Collection[str]) -> Steps[None]:
    """Remove what the subgraphs called from the given checkpoints have stored.

    A subgraph without memory of its own keeps its rows under `node:<task id>`, and names
    the checkpoint it was called from in the `parents` of its metadata.
    """
    prefix = f"{here.ns}|" if here.ns else ""
    rows = yield Query(
        "SELECT DISTINCT checkpoint_ns, metadata FROM checkpoints"
        " WHERE thread_id = ? AND checkpoint_ns > ?",
        (here.thread_id, prefix),
    )
    spaces: set[str] = set()
    for space, metadata in rows:
        call = space[len(prefix) :].split("|")[0] if space.startswith(prefix) else ""
        parents = dialect.metadata(metadata).get("parents") or {}
        if ":" in call and parents.get(here.ns) in gone:
            spaces.add(space)
    yield from dialect.delete_namespaces(here.thread_id, sorted(spaces))
