"""Operations on whole threads: delete, copy, prune, and the removal of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.base.id import uuid6

from handoff_graph import journal
from handoff_graph.codec import Codec
from handoff_graph.deltas import open_deltas, rebuilt, with_snapshots
from handoff_graph.dialect import Dialect
from handoff_graph.errors import ThreadExists, UnknownThread
from handoff_graph.heads import head_of, read_checkpoint
from handoff_graph.milestones import FOLD
from handoff_graph.retention import (
    Address,
    History,
    check_history,
    relink,
    retire,
    thread_name,
)
from handoff_graph.steps import Done, Inner, Query, Steps

__all__ = [
    "JOURNAL_COLUMNS",
    "copy_thread",
    "delete_thread",
    "keep_latest",
    "prune",
    "pruned",
    "remove_runs",
    "thread_names",
    "threads_of_runs",
]

JOURNAL_COLUMNS = {
    "handoff_journal": "checkpoint_ns, revision, parent_revision, keyframe, checkpoint_id, at,"
    " owner, reason, change, state",
    "handoff_threads": "checkpoint_ns, revision, checkpoint_id, fold_checkpoint_id, at, title,"
    " status, owner, state",
    "handoff_sessions": "checkpoint_ns, checkpoint_id, owner, at",
}
"""What a copy takes along of the journal's tables, besides `thread_id`; the ledger stays."""


def thread_names(thread_ids: Sequence[Any]) -> list[str]:
    """Thread ids as they are stored.

    Raises:
        TypeError: a single one was given, not a list.
        EmptyThreadId: one of them is empty.
    """
    if isinstance(thread_ids, str):
        raise TypeError(f"thread_ids: expected a list of thread ids, found the str {thread_ids!r}")
    return [thread_name(thread_id) for thread_id in thread_ids]


def pruned(dialect: Dialect, thread_id: str, strategy: str, codec: Codec) -> Steps[Done]:
    """Prune a thread by a strategy of LangGraph's or a retention policy of ours.

    Raises:
        ValueError: there is no such strategy.
    """
    if strategy == "delete":
        return delete_thread(thread_id)
    if strategy == "keep_latest":
        return keep_latest(dialect, thread_id)
    if strategy in get_args(History):
        return prune(dialect, thread_id, check_history(strategy), codec)
    names = ", ".join(("keep_latest", "delete", *get_args(History)))
    raise ValueError(f"strategy: expected one of {names}, found {strategy!r}")


def delete_thread(thread_id: str) -> Steps[Done]:
    """Delete a thread's checkpoints, writes and journal.

    What a run still has under way, and stores later, does not bring the thread back.
    """
    yield Inner("delete_thread", (thread_id,))
    yield from journal.forget(thread_id, str(uuid6()))
    return Done(None)


def copy_thread(dialect: Dialect, source: str, target: str) -> Steps[Done]:
    """Copy all of a thread, its journal too, under another id; the source stays as it is.

    Raises:
        ThreadExists: there is something under the target id.
    """
    for table in ("checkpoints", "handoff_threads"):
        found = yield Query(f"SELECT 1 FROM {table} WHERE thread_id = ? LIMIT 1", (target,))
        if found:
            raise ThreadExists(target)
    yield from journal.undelete(target)
    for table, columns in {**dialect.tables, **JOURNAL_COLUMNS}.items():
        yield Query(
            f"INSERT INTO {table} (thread_id, {columns})"
            f" SELECT ?, {columns} FROM {table} WHERE thread_id = ?",
            (target, source),
        )
    return Done(None)


# -- pruning -----------------------------------------------------------------------------------


def prune(dialect: Dialect, thread_id: str, history: History, codec: Codec) -> Steps[Done]:
    """Apply a retention policy to a stored thread; the value is how many checkpoints went.

    Args:
        dialect: the database's.
        thread_id: the thread.
        history: `"latest"` leaves the newest checkpoint of every branch that has one to go on
            from; `"milestones"` acts on what is older than each branch's newest fold.
        codec: how the journal's text is stored.

    Raises:
        UnknownThread: there is no such thread.
    """
    rows = yield Query(
        "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, metadata FROM checkpoints"
        " WHERE thread_id = ?",
        (thread_id,),
    )
    if not rows:
        raise UnknownThread(thread_id)
    parents = {(ns, key): parent for ns, key, parent, _ in rows}
    folds = {(ns, key) for ns, key, _, told in rows if FOLD in dialect.metadata(told)}
    leaves = parents.keys() - {(ns, parent) for (ns, _), parent in parents.items()}
    count = 0
    for ns, leaf in sorted(leaves):
        at: str | None = leaf
        while history == "milestones" and at and (ns, at) not in folds:
            at = parents.get((ns, at))
        if at and history != "all":
            gone = yield from _retire_from(dialect, Address(thread_id, ns, at), history, codec)
            count += len(gone)
    return Done(count)


def keep_latest(dialect: Dialect, thread_id: str) -> Steps[Done]:
    """Leave the newest checkpoint of each namespace and nothing else.

    Ancestors stay where a `DeltaChannel` of something other than messages is rebuilt from
    them. A subgraph call goes with the checkpoint that it was called from.
    """
    rows = yield Query(
        "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, metadata FROM checkpoints"
        " WHERE thread_id = ?",
        (thread_id,),
    )
    spaces: dict[str, dict[str, str | None]] = {}
    callers: dict[str, set[str]] = {}
    for ns, key, parent, told in rows:
        spaces.setdefault(ns, {})[key] = parent
        caller = (dialect.metadata(told).get("parents") or {}).get("")
        callers.setdefault(ns, set()).update([caller] if caller else [])
    roots = spaces.get("", {})
    newest = max(roots, default="")
    calls = [
        ns for ns in spaces if ":" in ns and callers[ns] and callers[ns] <= roots.keys() - {newest}
    ]
    yield from dialect.delete_namespaces(thread_id, sorted(calls))
    for ns, parents in sorted(spaces.items()):
        if ns not in calls:
            yield from _keep_newest(dialect, thread_id, ns, parents)
    return Done(None)


def _keep_newest(
    dialect: Dialect, thread_id: str, ns: str, parents: Mapping[str, str | None]
) -> Steps[None]:
    here = Address(thread_id, ns, max(parents))
    kept = [here.checkpoint_id]
    if (yield from _stand_alone(here)):
        while (parent := parents.get(kept[-1])) in parents:
            kept.append(str(parent))
    gone = sorted(parents.keys() - set(kept))
    freed = yield from dialect.versions(thread_id, ns, gone)
    in_use = yield from dialect.versions(thread_id, ns, kept)
    yield from dialect.delete(thread_id, ns, gone)
    values = set().union(*freed.values()) - set().union(*in_use.values())
    yield from dialect.delete_values(thread_id, ns, values)
    yield from relink(here, [*kept, None])


# -- runs --------------------------------------------------------------------------------------


def threads_of_runs(dialect: Dialect, run_ids: Sequence[str]) -> Steps[dict[str, list[Address]]]:
    """The checkpoints that these runs have stored, by thread."""
    found: dict[str, list[Address]] = {}
    for run_id in run_ids:
        rows = yield Query(
            "SELECT thread_id, checkpoint_ns, checkpoint_id FROM checkpoints"
            f" WHERE {dialect.run_id} = ?",
            (str(run_id),),
        )
        for row in rows:
            found.setdefault(row[0], []).append(Address(*row))
    return found


def remove_runs(
    dialect: Dialect, thread_id: str, stored: Sequence[Address], codec: Codec
) -> Steps[Done]:
    """Remove what runs have stored in a thread; the value is the removed checkpoints.

    What later runs have stored stays, and stands on its own. The head of the thread goes back
    to the newest checkpoint that is left; the journal keeps the revisions as a record.
    """
    removed: list[Address] = []
    for ns in sorted({at.ns for at in stored}):
        gone = {at.checkpoint_id for at in stored if at.ns == ns}
        rows = yield Query(
            "SELECT checkpoint_id, parent_checkpoint_id FROM checkpoints"
            " WHERE thread_id = ? AND checkpoint_ns = ?",
            (thread_id, ns),
        )
        parents: dict[str, str | None] = dict(rows)
        removed += yield from _remove(dialect, thread_id, ns, gone, parents)
    if any(not at.ns for at in removed):
        yield from _head_back(thread_id, codec)
    return Done(removed)


def _remove(
    dialect: Dialect,
    thread_id: str,
    ns: str,
    gone: set[str],
    parents: Mapping[str, str | None],
) -> Steps[list[Address]]:
    orphans = [key for key, parent in parents.items() if parent in gone and key not in gone]
    for orphan in orphans:
        here = Address(thread_id, ns, orphan)
        ancestor = parents[orphan]
        needed = bool((yield from _stand_alone(here)))
        while ancestor in gone:
            if needed:  # a DeltaChannel is rebuilt from it
                gone = gone - {ancestor}
            ancestor = parents.get(ancestor)
        if not needed:
            yield from relink(here, [orphan, ancestor])
    keys = sorted(gone)
    freed = yield from dialect.versions(thread_id, ns, keys)
    in_use = yield from dialect.versions(thread_id, ns, sorted(parents.keys() - gone))
    yield from dialect.delete(thread_id, ns, keys)
    values = set().union(*freed.values()) - set().union(*in_use.values())
    yield from dialect.delete_values(thread_id, ns, values)
    return [Address(thread_id, ns, key) for key in keys]


def _head_back(thread_id: str, codec: Codec) -> Steps[None]:
    saved = yield from read_checkpoint(Address(thread_id, "", "").config, codec)
    state = None
    if saved is not None:
        state = (yield from head_of(saved, {}, codec)).state
    if saved is None or state is None:
        yield Query(
            "DELETE FROM handoff_threads WHERE thread_id = ? AND checkpoint_ns = ''", (thread_id,)
        )
    else:
        at = saved.config["configurable"]["checkpoint_id"]
        yield from journal.set_head(thread_id, "", at, state, codec)


# -- what they share ---------------------------------------------------------------------------


def _retire_from(
    dialect: Dialect, here: Address, history: History, codec: Codec
) -> Steps[list[str]]:
    delta = yield from _stand_alone(here)
    return (yield from retire(dialect, here, history, codec, delta))


def _stand_alone(here: Address) -> Steps[list[str]]:
    """Have a checkpoint hold its transcripts itself.

    Returns:
        The delta channels which it still leaves to its ancestors.
    """
    saved: CheckpointTuple = yield Inner("get_tuple", (here.config,))
    names = open_deltas(saved.checkpoint, saved.metadata)
    found = yield from rebuilt(saved.config, names)
    if found:
        stored, told = with_snapshots(saved.checkpoint, saved.metadata, found)
        versions = {name: stored["channel_versions"][name] for name in found}
        parent = saved.parent_config or here._replace(checkpoint_id="").config
        yield Inner("put", (parent, stored, told, versions))
    return [name for name in names if name not in found]
