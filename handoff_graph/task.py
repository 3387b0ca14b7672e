"""The task state, and the one function that changes it.

`merge` is a LangGraph reducer (`task: Annotated[dict, merge]`) that imports no LangGraph, and
`task_update` builds what it merges.

How two updates meet. Everything is keyed, and the later stamp (`at`) wins: scalars by name,
items by id, work items across `in_progress`, `blocked` and `done` together, so that a move
never leaves a copy behind. Ties are broken by content, never by arrival, which makes stamped
updates commute: parallel branches of one superstep give one result in any order. Constraints
do not compete at all, they accumulate: `merge` has no path that drops one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, cast

from handoff_graph.errors import InvalidTask
from handoff_graph.schema import (
    SECTIONS,
    STATUSES,
    WORK,
    Item,
    Status,
    TaskState,
    TaskUpdate,
    blank_state,
    canonical,
    is_task_state,
    item_order,
    new_id,
    upcast,
    utc_now,
)
from handoff_graph.values import (
    BOOKKEEPING,
    check_names,
    check_state,
    read_folds,
    read_items,
    read_revision,
    read_rolled_up,
    read_scalar,
    read_stamps,
    read_text,
)

__all__ = [
    "Item",
    "Status",
    "TaskState",
    "TaskUpdate",
    "blank_state",
    "content",
    "extend",
    "is_task_state",
    "merge",
    "task_update",
    "upcast",
    "utc_now",
]


_FIELDS = frozenset(TaskUpdate.__annotations__) | frozenset(TaskState.__annotations__)


def content(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state without its revision: what decides whether a new revision is due."""
    return {key: value for key, value in state.items() if key != "revision"}


def task_update(*, at: str | None = None, by: str = "", **fields: Any) -> TaskUpdate:
    """Build a stamped, checked update: what nodes, tools and people should merge.

    Args:
        at: ISO 8601 time of the update; now, if left out.
        by: who says so, for every item that does not name somebody itself.
        **fields: any fields of `TaskUpdate`. An item may be a string, its text.

    Returns:
        A plain dict to return from a node or tool as `{"task": update}`.

    Raises:
        InvalidTask: a field breaks the schema; it says which and why.

    Example:
        >>> update = task_update(by="human", constraints=["Do not touch prod."], at="2026-01-01")
        >>> merge({}, update)["constraints"][0]["text"]
        'Do not touch prod.'
    """
    for name in fields.keys() - _FIELDS:
        near = difflib.get_close_matches(name, _FIELDS, n=1, cutoff=0.8)
        if near:
            raise InvalidTask(name, f"a field; did you mean {near[0]!r}?", fields[name])
    update = {**fields, "at": at or utc_now(), "by": by}
    _apply(blank_state(), update, check_moves=False)
    return cast(TaskUpdate, update)


def merge(state: Mapping[str, Any] | None, update: Mapping[str, Any] | None) -> dict[str, Any]:
    """Merge an update into a task state: the reducer of the `task` channel.

    Deterministic and idempotent; neither argument is changed. Updates that carry `at` (all
    that `task_update` builds) also commute. A raw dict without `at` takes the state's newest
    time and wins ties, so that a plain `update_state` does what it says.

    Args:
        state: a task state, or `{}`/None for a task that has none yet.
        update: a `TaskUpdate`, or another task state of the same task.

    Returns:
        The new task state.

    Raises:
        InvalidTask: a field of either breaks the schema.
        UnsupportedSchema: either was written by a newer version.

    Example:
        >>> state = merge({}, task_update(in_progress=[{"id": "p1", "text": "audit"}]))
        >>> state = merge(state, task_update(done=[{"id": "p1"}]))
        >>> [item["text"] for item in state["done"]], state["in_progress"]
        (['audit'], [])
    """
    if state is None or is_task_state(state):
        base = dict(check_state(upcast(state)))
    else:
        base = _apply(blank_state(), upcast(state, partial=True))
    return _apply(base, upcast(update, partial=True)) if update else base


def extend(state: Mapping[str, Any], update: Mapping[str, Any] | None) -> dict[str, Any]:
    """`merge`, into a state that is known to be whole, such as the result of another merge."""
    return _apply(state, upcast(update, partial=True)) if update else dict(state)


# -- one update into one state ---------------------------------------------------------------


def _apply(
    base: Mapping[str, Any], update: Mapping[str, Any], *, check_moves: bool = True
) -> dict[str, Any]:
    state: dict[str, Any] = dict(base)
    check_names(update)
    at = read_text(update, "at")
    by = read_text(update, "by")
    clock = at or str(base["updated"])
    sequential = not at and "stamps" not in update
    arriving = {
        section: read_items(update, section, by=by, clock=clock, sequential=sequential)
        for section in SECTIONS
        if section in update
    }
    _merge_scalars(state, update, at)
    state["rolled_up"] = _merge_newest(base["rolled_up"], read_rolled_up(update), "count")
    _merge_work(state, arriving, check_moves)
    for section, items in arriving.items():
        if section == "constraints":
            state[section] = _union_constraints(state[section], items)
        elif section == "retirements":
            state[section] = _union(state[section], items)
        elif section not in WORK:
            state[section] = _merge_section(section, state[section], items)
    _drop_rolled_up(state)
    state["folds"] = _merge_newest(base["folds"], read_folds(update), "n")
    state["revision"] = max(int(base["revision"]), read_revision(update))
    stamps = [str(item.get("at", "")) for items in arriving.values() for item in items]
    state["updated"] = max([str(base["updated"]), at, read_text(update, "updated"), *stamps])
    return state


def _merge_scalars(state: dict[str, Any], update: Mapping[str, Any], at: str) -> None:
    stamps = dict(state["stamps"])
    given = read_stamps(update)
    raw = not at and "stamps" not in update
    for name, value in update.items():
        if name in BOOKKEEPING or (value == "" and name not in given):
            continue
        value = read_scalar(name, value)
        stamp = str(given.get(name, "")) or at or (str(state["updated"]) if raw else "")
        ours = (str(stamps.get(name, "")), _rank(name, state.get(name)))
        if value == state.get(name) and stamp <= ours[0]:
            continue
        if raw or name not in state or (stamp, _rank(name, value)) > ours:
            state[name], stamps[name] = value, stamp
    state["stamps"] = stamps


def _rank(name: str, value: Any) -> tuple[int, str]:
    return (
        STATUSES.index(value) if name == "status" and value in STATUSES else 0,
        canonical(value),
    )


def _merge_work(
    state: dict[str, Any], arriving: Mapping[str, list[dict[str, Any]]], check_moves: bool
) -> None:
    if not any(section in arriving for section in WORK):
        return
    held = {item["id"]: (section, item) for section in WORK for item in state[section]}
    for section in WORK:
        for item in arriving.get(section, ()):
            before = held.get(item["id"])
            if not item.get("text"):
                if before is None and check_moves:
                    raise InvalidTask(f"{section}[{item['id']}].text", "a text for a new item", "")
                rest = {k: v for k, v in (before[1] if before else {}).items() if k != "needs"}
                item = {**rest, **item}
            raw = item.pop("_raw", False)
            if before is None or raw or _age(section, item) > _age(*before):
                held[item["id"]] = (section, item)
    for section in WORK:
        items = (item for where, item in held.values() if where == section)
        state[section] = sorted(items, key=item_order)


def _merge_section(
    section: str, ours: Iterable[dict[str, Any]], theirs: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    held = {item["id"]: item for item in ours}
    for item in theirs:
        raw = item.pop("_raw", False)
        before = held.get(item["id"])
        if section == "sessions" and before is not None:
            held[item["id"]] = _widen(before, item)
        elif before is None or raw or _age(section, item) > _age(section, before):
            held[item["id"]] = item
    return sorted(held.values(), key=item_order)


def _widen(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A session seen twice: the wider span and the larger count, whoever came first."""
    newer = one if _session_age(one) >= _session_age(other) else other
    both = dict(newer)
    both["from"] = min(str(one.get("from", "")), str(other.get("from", "")))
    both["to"] = max(str(one.get("to", "")), str(other.get("to", "")))
    both["tool_calls"] = max(int(one.get("tool_calls", 0)), int(other.get("tool_calls", 0)))
    return both


def _session_age(item: Mapping[str, Any]) -> tuple[str, int, str]:
    spans = ("from", "to", "tool_calls")
    return _age("sessions", {key: value for key, value in item.items() if key not in spans})


def _union(
    ours: Iterable[dict[str, Any]], theirs: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Keep every item ever recorded; of one id the first record stays."""
    held: dict[str, dict[str, Any]] = {}
    for item in (*ours, *theirs):
        item = {key: value for key, value in item.items() if key != "_raw"}
        before = held.get(item["id"])
        if before is None or _age("", item) < _age("", before):
            held[item["id"]] = item
    return sorted(held.values(), key=item_order)


def _union_constraints(
    ours: Iterable[dict[str, Any]], theirs: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Keep every text ever recorded. Of one text the first record stays, and learns where else
    it was said; of one id that was given to two texts, the earlier record keeps it and the
    later gets one of its own."""
    by_text: dict[str, dict[str, Any]] = {}
    said: dict[str, set[str]] = {}
    for item in (*ours, *theirs):
        sources = {str(item.get("src", "")), *item.get("also", ())}
        said.setdefault(item["text"], set()).update(sources)
        item = {key: value for key, value in item.items() if key not in ("_raw", "also")}
        before = by_text.get(item["text"])
        if before is None or _age("", item) < _age("", before):
            by_text[item["text"]] = item
    taken: dict[str, dict[str, Any]] = {}
    for item in sorted(by_text.values(), key=item_order):
        if also := sorted(said[item["text"]] - {str(item.get("src", ""))}):
            item = {**item, "also": also}
        if item["id"] in taken:
            item = {**item, "id": f"{item['id']}-{new_id('constraints', item['text'])[1:]}"}
        taken[item["id"]] = item
    return sorted(taken.values(), key=item_order)


def _merge_newest(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], counter: str
) -> dict[str, Any]:
    """Of two entries under one name the one that has counted further."""
    merged = dict(ours)
    for name, entry in theirs.items():
        before = merged.get(name, {counter: -1})
        merged[name] = max(before, entry, key=lambda e: (e[counter], canonical(e)))
    return merged


def _drop_rolled_up(state: dict[str, Any]) -> None:
    """Take out what the newest roll-ups took, so that a late copy does not bring it back."""
    for section, entry in state["rolled_up"].items():
        gone, through = set(entry.get("last", ())), str(entry.get("through", ""))
        for swept in WORK if section in WORK else (section,):
            state[swept] = [
                item
                for item in state[swept]
                if item["id"] not in gone or str(item.get("at", "")) > through
            ]


def _age(section: str, item: Mapping[str, Any]) -> tuple[str, int, str]:
    rank = WORK.index(section) if section in WORK else 0
    return (
        str(item.get("at", "")),
        rank,
        canonical({k: v for k, v in item.items() if k != "_raw"}),
    )
