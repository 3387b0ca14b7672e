"""The journal's form of a change: exact for any two states."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from test_task import updates

from handoff_graph import merge
from handoff_graph.diff import apply_change, diff


@given(updates(), st.lists(updates(), max_size=3))
def test_a_change_leads_exactly_to_the_later_state(first: Any, more: Any) -> None:
    old = merge({}, first)
    new = old
    for update in more:
        new = merge(new, update)
    change = json.loads(json.dumps(diff(old, new)))
    assert apply_change(old, change) == new
    assert apply_change(None, diff(None, new)) == new


@given(updates())
def test_nothing_changed_is_an_empty_change(update: Any) -> None:
    state = merge({}, update)
    assert diff(state, state) == {}
