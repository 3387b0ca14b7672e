"""The task state, and the one function that changes it.

A task state is a plain JSON object, so it can be a LangGraph channel
(`task: Annotated[dict, merge]`), a row in the journal, or a line in a file, and no moved or
renamed class can ever make an old thread unreadable. This module is pure: no clock but the
one `task_update` reads for its stamp, no I/O, no LangGraph.

How two updates meet. Everything is keyed, and the later stamp (`at`) wins: scalars by name,
items by id, work items across `in_progress`, `blocked` and `done` together, so that a move
never leaves a copy behind. Ties are broken by content, never by arrival, which makes stamped
updates commute: parallel branches of one superstep give one result in any order. Constraints
do not compete at all, they accumulate: `merge` has no path that drops one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Literal, TypedDict, cast, get_args

from handoff_graph.errors import InvalidTask, UnsupportedSchema

__all__ = [
    "SCHEMA",
    "Item",
    "Status",
    "TaskState",
    "TaskUpdate",
    "blank_state",
    "content",
    "is_task_state",
    "item_order",
    "merge",
    "new_id",
    "stamp",
    "task_update",
    "utc_now",
]

SCHEMA = 1
"""Version of the stored form. Raise it with an entry in `_UPCASTS`, never without."""

MARK = "handoff_task"
"""The key that holds the schema version, and by which a task state is recognised."""

Status = Literal["not_started", "in_progress", "blocked", "done", "abandoned"]
STATUSES: tuple[str, ...] = get_args(Status)

WORK = ("in_progress", "blocked", "done")
"""Sections that share one id space; on equal stamps the later one in this order wins."""

SECTIONS = (
    *WORK,
    "constraints",
    "decisions",
    "artifacts",
    "open_questions",
    "secrets",
    "notes",
    "sessions",
)
SCALARS = ("title", "objective", "status", "owner", "next_action", "phase")

_PREFIX = {
    "constraints": "c",
    "decisions": "k",
    "artifacts": "a",
    "open_questions": "q",
    "secrets": "s",
    "notes": "n",
    "sessions": "z",
}
_WORD = {"artifacts": "uri", "secrets": "name", "sessions": "owner"}
_LINE_BREAKS = re.compile(r"[^\S\r\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029]*[\r\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+\s*")
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")


class Item(TypedDict, total=False):
    """One fact. `artifacts` name it in `uri`, `secrets` in `name`, `sessions` in `owner`."""

    id: str
    text: str
    by: str  # "human", "tool", or the owner who said it
    at: str  # ISO 8601, UTC
    src: str  # the tool call id or message id it came from
    needs: str  # blocked: what it waits for
    why: str  # decisions: the reason; sessions: why it ended
    uri: str  # artifacts: path or URI
    what: str  # artifacts: what happened to it
    name: str  # secrets: what it is
    where: str  # secrets: where it lives; never the value
    outcome: str  # in_progress: "failed" or "unknown", when a call did not succeed


class TaskState(TypedDict, total=False):
    """The structured record of a task: what a checkpoint keeps instead of the conversation."""

    handoff_task: int
    revision: int
    updated: str
    title: str
    objective: str
    status: Status
    owner: str
    next_action: str
    phase: str
    in_progress: list[Item]
    blocked: list[Item]
    done: list[Item]
    constraints: list[Item]
    decisions: list[Item]
    artifacts: list[Item]
    open_questions: list[Item]
    secrets: list[Item]
    notes: list[Item]
    sessions: list[dict[str, Any]]
    rolled_up: dict[str, dict[str, Any]]
    folds: dict[str, dict[str, Any]]
    stamps: dict[str, str]


class TaskUpdate(TaskState, total=False):
    """A change to a `TaskState`: any of its fields, plus `at` and `by` for all its items."""

    at: str
    by: str


def stamp(when: datetime) -> str:
    """A time as it is stored: ISO 8601, UTC, microseconds, so that stamps sort as text."""
    utc = when.astimezone(timezone.utc)
    return utc.isoformat(timespec="microseconds").replace("+00:00", "Z")


def utc_now() -> str:
    """The current time as a stamp."""
    return stamp(datetime.now(timezone.utc))


def new_id(section: str, *parts: str) -> str:
    """A short stable id from what the item says, so parallel branches agree on it.

    Args:
        section: the section the item belongs to; all work sections share one id space.
        parts: the text (or tool call) that identifies the item.

    Returns:
        A letter for the section and six base32 characters, such as `c7q2mxa`.
    """
    digest = hashlib.sha256("\x1f".join(parts).encode("utf-8", "replace")).digest()
    return _PREFIX.get(section, "w") + base64.b32encode(digest)[:6].decode().lower()


def blank_state() -> TaskState:
    """A task state that says nothing yet."""
    state: dict[str, Any] = {MARK: SCHEMA, "revision": 0, "updated": ""}
    state.update({name: "" for name in SCALARS})
    state["status"] = "not_started"
    state.update({name: [] for name in SECTIONS})
    state.update(rolled_up={}, folds={}, stamps={})
    return cast(TaskState, state)


def is_task_state(value: object) -> bool:
    """Whether a channel's value is a task state (found by its mark, not by its channel)."""
    return isinstance(value, dict) and isinstance(value.get(MARK), int)


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
    base = upcast(state)
    return _apply(base, upcast(update, partial=True)) if update else base


# Each entry lifts a stored state from its key's version to the next one.
_UPCASTS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


def upcast(stored: Mapping[str, Any] | None, *, partial: bool = False) -> dict[str, Any]:
    """Bring a stored state of any earlier version to `SCHEMA`; unknown fields stay."""
    if stored is not None and not isinstance(stored, Mapping):
        raise InvalidTask("task", "an object", stored)
    state = dict(stored or {})
    version = state.get(MARK, SCHEMA)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise InvalidTask(MARK, "a schema version (a positive integer)", version)
    if version > SCHEMA:
        raise UnsupportedSchema("the task state", version, SCHEMA)
    for step in range(version, SCHEMA):
        state = _UPCASTS[step](state)
    return state if partial else {**blank_state(), **state, MARK: SCHEMA}


# -- one update into one state ---------------------------------------------------------------


def _apply(
    base: Mapping[str, Any], update: Mapping[str, Any], *, check_moves: bool = True
) -> dict[str, Any]:
    state: dict[str, Any] = dict(base)
    at = _optional_text(update, "at")
    by = _optional_text(update, "by")
    clock = at or str(base["updated"])
    sequential = not at and "stamps" not in update
    arriving = {
        section: [
            _item(section, number, raw, by=by, clock=clock, sequential=sequential)
            for number, raw in enumerate(_listed(update, section))
        ]
        for section in SECTIONS
        if section in update
    }
    _merge_scalars(state, update, at)
    state["rolled_up"] = _merge_rolled_up(base["rolled_up"], update.get("rolled_up") or {})
    _merge_work(state, arriving, check_moves)
    for section, items in arriving.items():
        if section == "constraints":
            state[section] = _union_constraints(state[section], items)
        elif section not in WORK:
            state[section] = _merge_section(section, state[section], items)
        if section not in WORK:
            state[section] = _without_rolled_up(section, state[section], state["rolled_up"])
    state["folds"] = _merge_folds(base["folds"], update.get("folds") or {})
    state["revision"] = max(int(base["revision"]), _revision(update))
    stamps = [str(item.get("at", "")) for items in arriving.values() for item in items]
    state["updated"] = max([str(base["updated"]), at, _optional_text(update, "updated"), *stamps])
    return state


def _merge_scalars(state: dict[str, Any], update: Mapping[str, Any], at: str) -> None:
    stamps = dict(state["stamps"])
    given = update.get("stamps") or {}
    if not isinstance(given, Mapping):
        raise InvalidTask("stamps", "an object", given)
    known = {*SECTIONS, "rolled_up", "folds", "stamps", "revision", "updated", "at", "by", MARK}
    raw = not at and "stamps" not in update
    for name, value in update.items():
        if name in known or (value == "" and name not in given):
            continue
        value = _scalar(name, value)
        stamp = str(given.get(name, "")) or at or (str(state["updated"]) if raw else "")
        ours = (str(stamps.get(name, "")), _rank(name, state.get(name)))
        if value == state.get(name) and stamp <= ours[0]:
            continue
        if raw or name not in state or (stamp, _rank(name, value)) > ours:
            state[name], stamps[name] = value, stamp
    state["stamps"] = stamps


def _scalar(name: str, value: Any) -> Any:
    if name == "status" and value not in STATUSES:
        raise InvalidTask("status", "one of " + ", ".join(STATUSES), value)
    if name in SCALARS:
        if not isinstance(value, str):
            raise InvalidTask(name, "a string", value)
        return _one_line(value)
    return _json(name, value)


def _rank(name: str, value: Any) -> tuple[int, str]:
    return (STATUSES.index(value) if name == "status" and value in STATUSES else 0, _canon(value))


def _merge_work(
    state: dict[str, Any], arriving: Mapping[str, list[dict[str, Any]]], check_moves: bool
) -> None:
    if not any(section in arriving for section in WORK):
        state["done"] = _without_rolled_up("done", state["done"], state["rolled_up"])
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
        kept = _without_rolled_up(section, items, state["rolled_up"])
        state[section] = sorted(kept, key=item_order)


def _merge_section(
    section: str, ours: Iterable[dict[str, Any]], theirs: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    held = {item["id"]: item for item in ours}
    for item in theirs:
        raw = item.pop("_raw", False)
        before = held.get(item["id"])
        if section == "sessions" and before is not None:
            item = _widen(before, item)
        if before is None or raw or _age(section, item) > _age(section, before):
            held[item["id"]] = item
    return sorted(held.values(), key=item_order)


def _widen(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A session seen twice: the wider span and the larger count, whoever came first."""
    older, newer = sorted((one, other), key=lambda item: _age("sessions", item))
    both = {**older, **newer}
    both["from"] = min(str(one.get("from", "")), str(other.get("from", "")))
    both["to"] = max(str(one.get("to", "")), str(other.get("to", "")))
    both["tool_calls"] = max(int(one.get("tool_calls", 0)), int(other.get("tool_calls", 0)))
    return both


def _union_constraints(
    ours: Iterable[dict[str, Any]], theirs: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Keep every text ever recorded. Of one text the first record stays; of one id that was
    given to two texts, the earlier record keeps it and the later gets one of its own."""
    by_text: dict[str, dict[str, Any]] = {}
    for item in (*ours, *theirs):
        item = {key: value for key, value in item.items() if key != "_raw"}
        before = by_text.get(item["text"])
        if before is None or _age("", item) < _age("", before):
            by_text[item["text"]] = item
    taken: dict[str, dict[str, Any]] = {}
    for item in sorted(by_text.values(), key=item_order):
        if item["id"] in taken:
            item = {**item, "id": f"{item['id']}-{new_id('constraints', item['text'])[1:]}"}
        taken[item["id"]] = item
    return sorted(taken.values(), key=item_order)


def _merge_rolled_up(ours: Mapping[str, Any], theirs: Any) -> dict[str, Any]:
    """`{section: {count, last, through}}`: how many items are in the journal only, the ids
    that the newest roll-up took, and the newest stamp among those."""
    if not isinstance(theirs, Mapping):
        raise InvalidTask("rolled_up", "an object of {section: {count, last, through}}", theirs)
    merged = dict(ours)
    for section, entry in theirs.items():
        if not isinstance(entry, Mapping) or not isinstance(entry.get("count"), int):
            raise InvalidTask(f"rolled_up.{section}.count", "a count", entry)
        before = merged.get(section, {"count": 0})
        merged[section] = max(before, dict(entry), key=lambda e: (e["count"], _canon(e)))
    return merged


def _without_rolled_up(
    section: str, items: Iterable[dict[str, Any]], rolled_up: Mapping[str, Any]
) -> list[dict[str, Any]]:
    entry = rolled_up.get(section, {})
    gone, through = entry.get("last", ()), entry.get("through", "")
    return [i for i in items if i["id"] not in gone or str(i.get("at", "")) > through]


def _merge_folds(ours: Mapping[str, Any], theirs: Any) -> dict[str, Any]:
    """`{channel: {n, anchor, calls, ...}}`: the bookkeeping of each transcript's last fold."""
    if not isinstance(theirs, Mapping):
        raise InvalidTask("folds", "an object of {channel: fold}", theirs)
    merged = dict(ours)
    for channel, entry in theirs.items():
        if not isinstance(entry, Mapping) or not isinstance(entry.get("n"), int):
            raise InvalidTask(f"folds.{channel}.n", "a count of folds", entry)
        before = merged.get(channel, {"n": -1})
        merged[channel] = max(before, dict(entry), key=lambda e: (e["n"], _canon(e)))
    return merged


# -- reading one item ------------------------------------------------------------------------


def _listed(update: Mapping[str, Any], section: str) -> Sequence[Any]:
    items = update[section]
    if isinstance(items, (str, bytes)) or not isinstance(items, Sequence):
        raise InvalidTask(section, "a list of items", items)
    return items


def _item(
    section: str, number: int, raw: Any, *, by: str, clock: str, sequential: bool
) -> dict[str, Any]:
    path = f"{section}[{number}]"
    word = _WORD.get(section, "text")
    given: dict[str, Any] = {word: raw} if isinstance(raw, str) else raw
    if not isinstance(given, Mapping):
        raise InvalidTask(path, "a text or an object", raw)
    item = {str(key): _json(f"{path}.{key}", value) for key, value in given.items()}
    for key in ("id", "by", "at", "src", "needs", "why", "what", "where", "outcome", word):
        if not isinstance(item.get(key, ""), str):
            raise InvalidTask(f"{path}.{key}", "a string", item[key])
        if item.get(key):
            item[key] = _one_line(item[key])
    said = item.get(word, "")
    if not said and not (section in WORK and item.get("id")):
        raise InvalidTask(f"{path}.{word}", "a non-empty text", item.get(word))
    item.setdefault("id", new_id(section, said))
    if not item["id"]:
        raise InvalidTask(f"{path}.id", "a non-empty id", item["id"])
    if by and not item.get("by"):
        item["by"] = by
    if not item.get("at"):
        item["at"] = clock
        item["_raw"] = sequential
    return item


def _one_line(text: str) -> str:
    return _LINE_BREAKS.sub(" ", _UNSTORABLE.sub("\ufffd", text).strip())


def _optional_text(update: Mapping[str, Any], name: str) -> str:
    value = update.get(name) or ""
    if not isinstance(value, str):
        raise InvalidTask(name, "a string", value)
    return value


def _revision(update: Mapping[str, Any]) -> int:
    value = update.get("revision", 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidTask("revision", "a count", value)
    return value


def _json(path: str, value: Any) -> Any:
    """Only what JSON can hold comes in; what is unstorable in a text is replaced."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return _UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise InvalidTask(path, "a finite number", value)
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InvalidTask(path, "string keys", key)
        return {key: _json(f"{path}.{key}", inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(f"{path}[{n}]", inner) for n, inner in enumerate(value)]
    raise InvalidTask(path, "a JSON value", value)


def _age(section: str, item: Mapping[str, Any]) -> tuple[str, int, str]:
    rank = WORK.index(section) if section in WORK else 0
    return (str(item.get("at", "")), rank, _canon({k: v for k, v in item.items() if k != "_raw"}))


def item_order(item: Mapping[str, Any]) -> tuple[str, str]:
    """The order of items in a section: by time, then by id."""
    return (str(item.get("at", "")), str(item["id"]))


def _canon(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
