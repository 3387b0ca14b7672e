"""What changed between two task states: the form in which the journal keeps revisions.

A change is a small JSON object: `set` holds scalars and other whole values, `in` the entries of
an object that are new or different, `items` per section the items that are new or different,
`gone` the ids that left it. For any two task states, `apply_change(old, diff(old, new)) == new`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from handoff_graph.schema import SECTIONS, blank_state, item_order

__all__ = ["apply_change", "diff"]


def diff(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> dict[str, Any]:
    """Describe how to get from one task state to the next.

    Args:
        old: the earlier state, or None for a task that had none.
        new: the later state.

    Returns:
        `{"set": {...}, "in": {key: {...}}, "items": {section: [item]}, "gone": {section: [id]}}`;
        empty parts are left out.
    """
    before: Mapping[str, Any] = old or blank_state()
    keys = [key for key in {**before, **new} if key not in SECTIONS]
    changed = {key: new.get(key) for key in keys if before.get(key) != new.get(key)}
    grown = {k: _grown(before.get(k), value) for k, value in changed.items()}
    within = {key: entries for key, entries in grown.items() if entries is not None}
    changed = {key: value for key, value in changed.items() if key not in within}
    items: dict[str, list[Any]] = {}
    gone: dict[str, list[str]] = {}
    for section in SECTIONS:
        was = {item["id"]: item for item in before.get(section, ())}
        now = {item["id"]: item for item in new.get(section, ())}
        items[section] = [item for key, item in now.items() if was.get(key) != item]
        gone[section] = [key for key in was if key not in now]
    parts = (("set", changed), ("in", within), ("items", _filled(items)), ("gone", _filled(gone)))
    return {name: part for name, part in parts if part}


def _grown(old: Any, new: Any) -> dict[str, Any] | None:
    """The entries of an object that are new or different, if none has gone."""
    if not isinstance(old, dict) or not isinstance(new, dict) or not old or old.keys() - new.keys():
        return None
    return {key: value for key, value in new.items() if key not in old or old[key] != value}


def _filled(lists: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    return {section: entries for section, entries in lists.items() if entries}


def apply_change(old: Mapping[str, Any] | None, change: Mapping[str, Any]) -> dict[str, Any]:
    """Rebuild the later state from the earlier one and the change between them.

    Args:
        old: the state that `diff` was given as `old`.
        change: what `diff` returned.

    Returns:
        The state that `diff` was given as `new`.
    """
    state: dict[str, Any] = dict(old or blank_state())
    for key, value in change.get("set", {}).items():
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value
    for key, entries in change.get("in", {}).items():
        state[key] = {**state.get(key, {}), **entries}
    for section in SECTIONS:
        held = {item["id"]: item for item in state.get(section, ())}
        held.update((item["id"], item) for item in change.get("items", {}).get(section, ()))
        left = change.get("gone", {}).get(section, ())
        kept = (item for key, item in held.items() if key not in left)
        state[section] = sorted(kept, key=item_order)
    return state
