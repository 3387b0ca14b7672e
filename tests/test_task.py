"""`merge`: idempotent, commutative, keyed, and unable to drop a constraint."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handoff_graph import InvalidTask, UnsupportedSchema, merge, task_update
from handoff_graph.schema import SCHEMA, SECTIONS, STATUSES, WORK, blank_state

WORD = {"artifacts": "uri", "secrets": "name", "sessions": "owner"}
TIMES = [f"2026-01-0{day}T00:00:00.000000Z" for day in range(1, 6)]
TEXTS = st.sampled_from(["audit", "copy", "verify", "Do not touch prod.", "Ask Dana first."])


@st.composite
def items(draw: st.DrawFn, section: str) -> dict[str, Any]:
    item: dict[str, Any] = {
        WORD.get(section, "text"): draw(TEXTS),
        "at": draw(st.sampled_from(TIMES)),
    }
    if draw(st.booleans()):
        item["id"] = draw(st.sampled_from(["x1", "x2", "x3"]))
    if draw(st.booleans()):
        item["by"] = draw(st.sampled_from(["human", "tool"]))
    if section == "sessions":
        item |= {"from": item["at"], "to": item["at"], "tool_calls": draw(st.integers(0, 9))}
    return item


@st.composite
def updates(draw: st.DrawFn, fold: bool = True) -> dict[str, Any]:
    update: dict[str, Any] = {}
    for section in draw(st.lists(st.sampled_from(SECTIONS), unique=True, max_size=4)):
        update[section] = draw(st.lists(items(section), max_size=3))
    for name in draw(st.lists(st.sampled_from(["objective", "next_action", "owner"]), unique=True)):
        update[name] = draw(TEXTS)
    if draw(st.booleans()):
        update["status"] = draw(st.sampled_from(STATUSES))
    if draw(st.booleans()):
        update["folds"] = {"messages": {"n": draw(st.integers(0, 3)), "anchor": draw(TEXTS)}}
    if fold and draw(st.booleans()):
        ids = draw(st.lists(st.sampled_from(["x1", "x2", "x3"]), unique=True))
        through = draw(st.sampled_from(TIMES))
        count = draw(st.integers(1, 5))
        update["rolled_up"] = {"done": {"count": count, "last": ids, "through": through}}
    return task_update(at=draw(st.sampled_from(TIMES)), **update)


@given(updates(), updates())
def test_the_same_update_twice_changes_nothing(base: Any, update: Any) -> None:
    once = merge(merge({}, base), update)
    assert merge(once, update) == once


@given(updates(fold=False), updates(), st.lists(updates(fold=False), min_size=1, max_size=2))
def test_the_order_of_parallel_branches_does_not_matter(
    base: Any, folding: Any, others: Any
) -> None:
    """Any branches, one of which may fold: a graph has one summarizer in a superstep."""
    start = merge({}, base)
    branches = [folding, *others]
    results = []
    for order in itertools.permutations(branches):
        state = start
        for update in order:
            state = merge(state, update)
        results.append(state)
    assert all(result == results[0] for result in results)


@given(st.lists(updates(), max_size=6))
def test_p3_constraints_never_shrink_and_never_change(sequence: Any) -> None:
    state: dict[str, Any] = {}
    recorded: set[str] = set()
    for update in sequence:
        state = merge(state, update)
        texts = [item["text"] for item in state["constraints"]]
        assert recorded <= set(texts)
        assert len(texts) == len(set(texts))
        recorded = set(texts)


@given(st.lists(updates(), max_size=5))
def test_work_items_are_never_in_two_places(sequence: Any) -> None:
    state = blank_state()
    for update in sequence:
        state = merge(state, update)
        ids = [item["id"] for section in WORK for item in state[section]]
        assert len(ids) == len(set(ids))
        for section in SECTIONS:
            keys = [item["id"] for item in state[section]]
            assert len(keys) == len(set(keys)), section


@given(updates(), updates())
def test_a_state_is_an_update_too_and_plain_json(base: Any, update: Any) -> None:
    state = merge(merge({}, base), update)
    assert json.loads(json.dumps(state)) == state
    assert merge(state, state) == state
    assert merge({}, state) == state


@given(updates(), updates())
def test_arguments_are_not_changed(base: Any, update: Any) -> None:
    state = merge({}, base)
    before = json.dumps([state, update])
    merge(state, update)
    assert json.dumps([state, update]) == before


def test_an_item_moves_without_leaving_a_copy() -> None:
    state = merge(
        {}, task_update(in_progress=[{"id": "p1", "text": "users_history", "by": "tool"}])
    )
    state = merge(state, task_update(blocked=[{"id": "p1", "needs": "manual review"}]))
    assert state["in_progress"] == []
    assert state["blocked"][0]["text"] == "users_history"
    assert state["blocked"][0]["needs"] == "manual review"
    state = merge(state, task_update(done=[{"id": "p1"}]))
    assert state["blocked"] == []
    assert state["done"][0] | {"at": ""} == {
        "id": "p1",
        "text": "users_history",
        "by": "tool",
        "at": "",
    }


def test_raw_updates_without_a_time_apply_one_after_the_other() -> None:
    state = merge({}, task_update(next_action="zebra", in_progress=[{"id": "p", "text": "t"}]))
    state = merge(state, {"next_action": "aardvark", "status": "blocked", "blocked": [{"id": "p"}]})
    assert (state["next_action"], state["status"]) == ("aardvark", "blocked")
    assert not state["in_progress"]
    state = merge(state, {"status": "in_progress", "in_progress": [{"id": "p"}]})
    assert state["status"] == "in_progress"
    assert state["in_progress"]
    assert not state["blocked"]


def test_two_texts_under_one_constraint_id_are_both_kept() -> None:
    one = task_update(at=TIMES[0], constraints=[{"id": "c1", "text": "No deploys."}])
    other = task_update(at=TIMES[1], constraints=[{"id": "c1", "text": "Ask Dana."}])
    state = merge(merge({}, one), other)
    assert state == merge(merge({}, other), one)
    assert state["constraints"][0]["id"] == "c1"
    assert [c["text"] for c in state["constraints"]] == ["No deploys.", "Ask Dana."]
    assert len({c["id"] for c in state["constraints"]}) == 2


def test_strings_are_items_and_get_stable_ids() -> None:
    first = merge({}, task_update(by="human", constraints=["No deploys."], done=["audit"]))
    second = merge({}, task_update(by="human", constraints=["No deploys."], in_progress=["audit"]))
    assert first["constraints"][0]["id"] == second["constraints"][0]["id"]
    assert first["done"][0]["id"] == second["in_progress"][0]["id"]
    assert first["constraints"][0]["by"] == "human"


def test_unknown_fields_survive() -> None:
    state = merge({}, task_update(ticket="OPS-7", done=[{"text": "audit", "cost": 3}]))
    state = merge(json.loads(json.dumps(state)), task_update(next_action="go on"))
    assert state["ticket"] == "OPS-7"
    assert state["done"][0]["cost"] == 3


def test_texts_are_kept_on_one_line_and_storable() -> None:
    state = merge({}, task_update(notes=["two\n   lines\u2028three \ud800 \x00end"]))
    assert state["notes"][0]["text"] == "two lines three \ufffd \ufffdend"


@pytest.mark.parametrize(
    ("update", "field"),
    [
        ({"status": "finished"}, "status"),
        ({"objective": 7}, "objective"),
        ({"done": "audit"}, "done"),
        ({"done": [{"text": ""}]}, "done[0].text"),
        ({"constraints": [{"id": "c1"}]}, "constraints[0].text"),
        ({"constraints": ["ok", 5]}, "constraints[1]"),
        ({"done": [{"id": "", "text": "x"}]}, "done[0].id"),
        ({"artifacts": [{"what": "created"}]}, "artifacts[0].uri"),
        ({"done": [{"text": "x", "cost": float("nan")}]}, "done[0].cost"),
        ({"extra": {1: 2}}, "extra"),
        ({"extra": object()}, "extra"),
        ({"revision": -1}, "revision"),
        ({"rolled_up": {"done": {}}}, "rolled_up.done.count"),
        ({"rolled_up": {"constraints": {"count": 1, "last": ["c1"]}}}, "rolled_up.constraints"),
        ({"folds": {"messages": 3}}, "folds.messages.n"),
        ({"at": 5}, "at"),
        ({"stamps": []}, "stamps"),
        ({"in_progress": [{"id": "unknown"}]}, "in_progress[unknown].text"),
        ({"revision": 2**70}, "revision"),
        ({"revision": 2**63 - 1}, "revision"),
        ({"revision": True}, "revision"),
        ({"ticket": 2**80}, "ticket"),
        ({"ticket": 10**5_000}, "ticket"),
        ({"ticket": {"deep": [1, {"er": -(2**64)}]}}, "ticket.deep[1].er"),
        ({"ticket": {"cost": float("inf")}}, "ticket.cost"),
        ({"done": [{"text": "x", "cost": [2**64]}]}, "done[0].cost[0]"),
        ({"done": [{"text": "x", 1: 2}]}, "done[0]"),
        ({"ticket": [{1: 2}]}, "ticket[0]"),
        ({"ticket": {"\ud800": 2}}, "ticket"),
        ({5: "x"}, "5"),
        ({"\x00": "x"}, "'\\x00'"),
        ({"sessions": [{"owner": "a", "tool_calls": "x"}]}, "sessions[0].tool_calls"),
        ({"sessions": [{"owner": "a", "tool_calls": 2**60}]}, "sessions[0].tool_calls"),
        ({"sessions": [{"owner": "a", "from": 5}]}, "sessions[0].from"),
        ({"rolled_up": {"done": {"count": True}}}, "rolled_up.done.count"),
        ({"rolled_up": {"done": {"count": -1}}}, "rolled_up.done.count"),
        ({"rolled_up": {"done": {"count": 1, "last": 5}}}, "rolled_up.done.last"),
        ({"rolled_up": {"done": {"count": 1, "last": "abc"}}}, "rolled_up.done.last"),
        ({"rolled_up": {"done": {"count": 1, "last": [5]}}}, "rolled_up.done.last[0]"),
        ({"rolled_up": {"done": {"count": 1, "through": 5}}}, "rolled_up.done.through"),
        ({"rolled_up": {"done": {"count": 1, "unlisted": "ab"}}}, "rolled_up.done.unlisted"),
        (
            {"rolled_up": {"done": {"count": 1, "unlisted": [{"text": "a"}]}}},
            "rolled_up.done.unlisted[0]",
        ),
        ({"rolled_up": {"done": {"count": 1, "x": 2**64}}}, "rolled_up.done.x"),
        ({"folds": {"messages": {"n": True}}}, "folds.messages.n"),
        ({"folds": {"messages": {"n": 2**53}}}, "folds.messages.n"),
        ({"folds": {"messages": {"n": 1, "calls": "x"}}}, "folds.messages.calls"),
        ({"folds": {"messages": {"n": 1, "anchor": 5}}}, "folds.messages.anchor"),
        ({"folds": {"messages": {"n": 1, "x": float("nan")}}}, "folds.messages.x"),
        ({"folds": {5: {"n": 1}}}, "folds"),
        ({"stamps": {"objective": 5}}, "stamps.objective"),
        ({"at": ["2026"]}, "at"),
    ],
)
def test_invalid_input_names_the_field(update: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        merge({}, update)
    assert caught.value.field == field
    assert field in str(caught.value) or repr(field) in str(caught.value)
    if update.keys() & {"in_progress", "revision", "at", 5}:
        return  # a state may name what an update may not, or Python refuses the keyword
    with pytest.raises(InvalidTask) as caught:
        task_update(**update)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"ticket": [2**80]}, "ticket[0]"),
        ({"rolled_up": {"done": {"count": 1, "last": 5}}}, "rolled_up.done.last"),
        ({"folds": {"messages": {"n": "x"}}}, "folds.messages.n"),
        ({"folds": 7}, "folds"),
        ({"revision": 2**70}, "revision"),
        ({"done": [{"id": "w1", "text": "x", "cost": 2**80}]}, "done[0].cost"),
        ({"status": "finished"}, "status"),
        ({"updated": 7}, "updated"),
        ({5: "x"}, "5"),
    ],
)
def test_a_state_that_could_not_be_stored_is_refused_too(fields: Any, field: str) -> None:
    """One that a graph has put there past the reducer."""
    state = {**merge({}, task_update(title="t")), **fields}
    for update in (None, {"title": "u"}):
        with pytest.raises(InvalidTask) as caught:
            merge(state, update)
        assert caught.value.field == field


def test_a_value_that_contains_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(InvalidTask, match="levels of nesting"):
        merge({}, {"ticket": circle})


@given(
    st.dictionaries(
        st.sampled_from(
            ["folds", "rolled_up", "stamps", "revision", "sessions", "ticket", "at", "done"]
        ),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(2**70), 2**70)
            | st.floats()
            | st.text(max_size=3),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(
                    st.sampled_from(["done", "n", "count", "last", "id", "text", "owner"])
                    | st.integers(0, 1),
                    inner,
                    max_size=3,
                )
            ),
            max_leaves=6,
        ),
        max_size=4,
    )
)
def test_what_a_merge_takes_can_be_stored_and_merged_again(update: dict[str, Any]) -> None:
    try:
        state = merge({}, update)
    except InvalidTask:
        return
    stored = json.dumps(state, ensure_ascii=False, allow_nan=False).encode()
    assert merge(json.loads(stored), None) == state
    assert merge(state, task_update(done=["audit"]))["done"]


def test_a_misspelt_field_is_refused_before_a_constraint_is_lost_in_it() -> None:
    with pytest.raises(InvalidTask, match="did you mean 'constraints'"):
        task_update(constraint=["Never deploy."])


def test_not_an_object_is_refused() -> None:
    with pytest.raises(InvalidTask):
        merge({}, ["done"])  # type: ignore[arg-type]
    with pytest.raises(InvalidTask):
        merge("task", {})  # type: ignore[arg-type]


def test_a_newer_schema_is_refused_by_version() -> None:
    with pytest.raises(UnsupportedSchema) as caught:
        merge({"handoff_task": SCHEMA + 1}, {})
    assert caught.value.found == SCHEMA + 1


def test_an_older_schema_is_lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The upcast path, on a version that never existed."""
    monkeypatch.setattr("handoff_graph.schema.SCHEMA", 2)
    monkeypatch.setattr(
        "handoff_graph.schema._UPCASTS", {1: lambda old: {**old, "title": old["name"]}}
    )
    assert merge({"handoff_task": 1, "name": "T"}, None)["title"] == "T"
