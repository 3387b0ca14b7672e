"""The shape of a task state: its fields, ids and stamps.

A task state is a plain JSON object, so it can be a LangGraph channel, a row in the journal or
a line in a file, and no moved or renamed class can ever make an old thread unreadable. Pure,
but for the clock that `utc_now` reads.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any, Literal, TypedDict, cast, get_args

from handoff_graph.errors import InvalidTask, UnsupportedSchema

__all__ = [
    "MARK",
    "ROLLS_UP",
    "SCALARS",
    "SCHEMA",
    "SECTIONS",
    "STATUSES",
    "WORK",
    "Item",
    "Status",
    "TaskState",
    "TaskUpdate",
    "blank_state",
    "canonical",
    "is_task_state",
    "item_order",
    "new_id",
    "stamp",
    "upcast",
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
    "retirements",
    "unsourced",
    "reviews",
)
ROLLS_UP = ("done", "in_progress", "artifacts", "notes")
"""Sections whose old items may be counted and left to the journal. No other may shrink so."""

SCALARS = ("title", "objective", "status", "owner", "next_action", "phase")

_PREFIX = {
    "constraints": "c",
    "decisions": "k",
    "artifacts": "a",
    "open_questions": "q",
    "secrets": "s",
    "notes": "n",
    "sessions": "z",
    "retirements": "r",
    "unsourced": "u",
    "reviews": "v",
}


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
    outcome: str  # open work: "failed", "unknown", or "claimed": said to be done, no evidence
    evidence: str  # done: the call or the words that show it
    scope: str  # constraints: "step" if for one step only, "unclear" if that is for a review
    also: list[str]  # constraints: further messages that say the same
    rule: str  # retirements: the constraint, word for word
    constraint: str  # retirements: its id
    standing: str  # retirements: "confirmed", or "proposed" until a person confirms
    covers: list[str]  # retirements: the messages that had said it until then
    folds: int  # reviews: how many folds it covers


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
    retirements: list[Item]
    unsourced: list[Item]
    reviews: list[Item]
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
    state.update(dict.fromkeys(SCALARS, ""))
    state["status"] = "not_started"
    state.update({name: [] for name in SECTIONS})
    state.update(rolled_up={}, folds={}, stamps={})
    return cast(TaskState, state)


def is_task_state(value: object) -> bool:
    """Whether a channel's value is a task state (found by its mark, not by its channel)."""
    return isinstance(value, dict) and isinstance(value.get(MARK), int)


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


def item_order(item: Mapping[str, Any]) -> tuple[str, str]:
    """The order of items in a section: by time, then by id."""
    return (str(item.get("at", "")), str(item["id"]))


def canonical(value: Any) -> str:
    """One text per JSON value, whatever the order of its keys."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
