"""How a value from outside becomes part of a task state.

What comes in is checked here, value by value, and refused with the path of the field, so that
whatever a state holds can be stored, merged and shown later on. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from handoff_graph.errors import InvalidTask
from handoff_graph.schema import MARK, ROLLS_UP, SCALARS, SECTIONS, STATUSES, WORK, new_id

__all__ = [
    "BOOKKEEPING",
    "COSTS",
    "check_names",
    "check_state",
    "read_folds",
    "read_items",
    "read_json",
    "read_revision",
    "read_rolled_up",
    "read_scalar",
    "read_stamps",
    "read_text",
]

BOOKKEEPING = frozenset(
    {*SECTIONS, "rolled_up", "folds", "stamps", "revision", "updated", "at", "by", MARK}
)
"""The fields that are not settled by name and stamp alone."""

COSTS = ("calls", "input_tokens", "output_tokens", "seconds")
"""What is counted of the model calls that folds have made."""

_MAX_COUNT = 2**53  # what any JSON reader takes exactly, with room to count on
_MAX_DEPTH = 100  # what every JSON writer takes, with room for what goes around it
_WORD = {"artifacts": "uri", "secrets": "name", "sessions": "owner"}
_TEXTS = (
    *("id", "by", "at", "src", "needs", "why", "what", "where", "outcome", "from", "to"),
    *("evidence", "scope", "rule", "constraint", "standing"),
)
_LISTS = ("also", "covers")
# Begins where white space begins, or a long run without a break takes quadratic time.
_LINE_BREAKS = re.compile(r"(?<!\s)[^\S\r\n]*[\r\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029]\s*")
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")


def check_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a whole state as it is, if every field of it could have come in by a merge.

    Raises:
        InvalidTask: one could not; it names the field.
    """
    for section in SECTIONS:
        for number, item in enumerate(_list(section, state[section])):
            path = f"{section}[{number}]"
            if not isinstance(item, Mapping) or not item.get("id"):
                raise InvalidTask(path, "an object with an id", item)
            _check_item(section, path, read_json(path, item))
    read_rolled_up(state)
    read_folds(state)
    read_stamps(state)
    read_revision(state)
    read_text(state, "updated")
    for name in check_names(state):
        if name not in BOOKKEEPING:
            read_scalar(name, state[name])
    return state


def check_names(fields: Mapping[Any, Any], path: str = "") -> Mapping[str, Any]:
    """Return an object as it is, if all its keys are texts that can be stored.

    Raises:
        InvalidTask: one is not; it names the object, or the key of a task itself.
    """
    for name in fields:
        if not isinstance(name, str):
            raise InvalidTask(path or repr(name), "string keys", name)
        if _UNSTORABLE.search(name):
            raise InvalidTask(path or repr(name), "keys that can be stored", name)
    return fields


def read_items(
    update: Mapping[str, Any], section: str, *, by: str, clock: str, sequential: bool
) -> list[dict[str, Any]]:
    """The items of one section of an update, checked and complete.

    Args:
        update: a task update.
        section: the section to read.
        by: who says so, where an item does not.
        clock: the time of an item that has none.
        sequential: whether such an item is marked (`_raw`) to win over what stands there.

    Raises:
        InvalidTask: an item breaks the schema; it names the field.
    """
    items = update[section]
    if isinstance(items, (str, bytes)) or not isinstance(items, Sequence):
        raise InvalidTask(section, "a list of items", items)
    return [
        _read_item(section, number, raw, by=by, clock=clock, sequential=sequential)
        for number, raw in enumerate(items)
    ]


def _read_item(
    section: str, number: int, raw: Any, *, by: str, clock: str, sequential: bool
) -> dict[str, Any]:
    path = f"{section}[{number}]"
    word = _WORD.get(section, "text")
    given: dict[str, Any] = {word: raw} if isinstance(raw, str) else raw
    if not isinstance(given, Mapping):
        raise InvalidTask(path, "a text or an object", raw)
    item: dict[str, Any] = read_json(path, given)
    _check_item(section, path, item)
    item.update((key, _one_line(item[key])) for key in (*_TEXTS, word) if item.get(key))
    said = item.get(word, "")
    item.setdefault("id", new_id(section, said))
    if not item["id"]:
        raise InvalidTask(f"{path}.id", "a non-empty id", item["id"])
    if by and not item.get("by"):
        item["by"] = by
    if not item.get("at"):
        item["at"] = clock
        item["_raw"] = sequential
    return item


def _check_item(section: str, path: str, item: Mapping[str, Any]) -> None:
    word = _WORD.get(section, "text")
    for key in (*_TEXTS, word):
        if key in item and not isinstance(item[key], str):
            raise InvalidTask(f"{path}.{key}", "a string", item[key])
    for key in _LISTS:
        for number, said in enumerate(_list(f"{path}.{key}", item.get(key, []))):
            _string(f"{path}.{key}[{number}]", said)
    for key in ("tool_calls", "folds"):
        if key in item:
            _count(f"{path}.{key}", item[key])
    if not item.get(word, "").strip() and not (section in WORK and item.get("id")):
        raise InvalidTask(f"{path}.{word}", "a non-empty text", item.get(word))


def _one_line(text: str) -> str:
    return _LINE_BREAKS.sub(" ", _UNSTORABLE.sub("\ufffd", text).strip())


def read_scalar(name: str, value: Any) -> Any:
    """One top-level field; unknown ones may be any JSON value."""
    if name == "status" and value not in STATUSES:
        raise InvalidTask("status", "one of " + ", ".join(STATUSES), value)
    if name in SCALARS:
        if not isinstance(value, str):
            raise InvalidTask(name, "a string", value)
        return _one_line(value)
    return read_json(name, value)


def read_text(update: Mapping[str, Any], name: str) -> str:
    """An optional text of an update; empty if it is not there."""
    value = update.get(name) or ""
    if not isinstance(value, str):
        raise InvalidTask(name, "a string", value)
    return _one_line(value)


def read_revision(update: Mapping[str, Any]) -> int:
    """The revision an update speaks of; 0 if it names none."""
    return _count("revision", update.get("revision", 0))


def _count(path: str, value: Any, what: str = "a count") -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MAX_COUNT:
        raise InvalidTask(path, what, value)
    return value


def _string(path: str, value: Any) -> None:
    if not isinstance(value, str):
        raise InvalidTask(path, "a string", value)


def read_stamps(update: Mapping[str, Any]) -> dict[str, str]:
    """`{field: stamp}` of an update: when each of its scalars was settled."""
    stamps = _object(update, "stamps", "an object")
    for name, value in stamps.items():
        _string(f"stamps.{name}", value)
    return stamps


def read_folds(update: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """`{channel: {n, anchor, calls, at, phase, cost, drift}}` of an update; only `n` must be."""
    folds = _object(update, "folds", "an object of {channel: fold}")
    for channel, entry in folds.items():
        if not isinstance(entry, Mapping):
            raise InvalidTask(f"folds.{channel}.n", "a count of folds", entry)
        _count(f"folds.{channel}.n", entry.get("n"), "a count of folds")
        _count(f"folds.{channel}.calls", entry.get("calls", 0))
        for name in ("anchor", "at", "phase"):
            _string(f"folds.{channel}.{name}", entry.get(name, ""))
        _cost(f"folds.{channel}.cost", entry.get("cost", {}))
        _object(entry, "drift", "an object")
    return folds


def _cost(path: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise InvalidTask(path, "an object of counts", value)
    for name, spent in value.items():
        if name == "seconds":
            # A boolean is an int to Python.
            if isinstance(spent, bool) or not isinstance(spent, (int, float)) or spent < 0:
                raise InvalidTask(f"{path}.{name}", "a number of seconds", spent)
        elif name in COSTS:
            _count(f"{path}.{name}", spent)
        else:
            raise InvalidTask(f"{path}.{name}", "one of " + ", ".join(COSTS), spent)


def read_rolled_up(update: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """`{section: {count, last, through, at, unlisted}}` of an update: how many items are in the
    journal only, the ids that the newest roll-up took, the newest stamp among those, and those
    of them that the journal has yet to write down. Only `count` must be."""
    entries = _object(update, "rolled_up", "an object of {section: {count, last, through}}")
    for section, entry in entries.items():
        path = f"rolled_up.{section}"
        if section not in ROLLS_UP:
            raise InvalidTask(path, "one of " + ", ".join(ROLLS_UP), section)
        if not isinstance(entry, Mapping):
            raise InvalidTask(f"{path}.count", "a count", entry)
        _count(f"{path}.count", entry.get("count"))
        for name in ("through", "at"):
            _string(f"{path}.{name}", entry.get(name, ""))
        for number, gone in enumerate(_list(f"{path}.last", entry.get("last", []))):
            _string(f"{path}.last[{number}]", gone)
        for number, item in enumerate(_list(f"{path}.unlisted", entry.get("unlisted", []))):
            if not isinstance(item, Mapping) or not isinstance(item.get("id"), str):
                raise InvalidTask(f"{path}.unlisted[{number}]", "an item with an id", item)
    return entries


def _object(update: Mapping[str, Any], name: str, what: str) -> dict[str, Any]:
    value = {} if update.get(name) is None else update[name]
    if not isinstance(value, Mapping):
        raise InvalidTask(name, what, value)
    read: dict[str, Any] = read_json(name, value)
    return read


def _list(path: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidTask(path, "a list", value)
    return value


def read_json(path: str, value: Any, depth: int = 0) -> Any:
    """Only what JSON can hold comes in; what is unstorable in a text is replaced."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise InvalidTask(path, "an integer of at most 64 bits", value)
        return value
    if isinstance(value, str):
        return _UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise InvalidTask(path, "a finite number", value)
        return value
    if depth > _MAX_DEPTH:
        raise InvalidTask(path[:200], f"at most {_MAX_DEPTH} levels of nesting", value)
    if isinstance(value, Mapping):
        named = check_names(value, path).items()
        return {key: read_json(f"{path}.{key}", inner, depth + 1) for key, inner in named}
    if isinstance(value, (list, tuple)):
        return [read_json(f"{path}[{n}]", inner, depth + 1) for n, inner in enumerate(value)]
    raise InvalidTask(path, "a JSON value", value)
