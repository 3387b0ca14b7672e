"""A person's review: the stop, its answers, its marks, and the command (P3, P4)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agents import RULE, build, config, raw_rows, request
from langchain_core.messages import HumanMessage
from langgraph.types import Command

from handoff_graph import (
    HandoffError,
    HandoffSaver,
    HandoffState,
    SummarizerNode,
    add_handoff,
    merge,
    task_update,
)
from handoff_graph.constraints import active, retire
from handoff_graph.ledger import read_front_matter
from handoff_graph.review import answered, folds_since, is_due, report, signed

RUBBISH: list[Any] = [
    "nope",
    "Approve",
    "",
    False,
    1,
    0,
    7,
    [],
    ["approve"],
    {},
    {"by": "dana"},
    {"approve": False},
    {"approve": None},
    {"approve": 1},
    {"reject": ""},
    {"reject": "  "},
    {"reject": None},
    {"reject": True},
    {"reject": ["x"]},
    {"approve": True, "reject": "no"},
    {"edit": None},
    {"edit": "status: done"},
    {"edit": [1]},
    {"edit": {"constraints": 5}},
    {"edit": {"status": "brilliant"}},
    {"edit": {"handoff_task": 99}},
    {"edit": {"done": [{"id": "nobody"}]}},
    {"edit": {7: "x"}},
    {"approve": True, "by": 7},
    {"approve": True, "note": 7},
]


def folded_state() -> dict[str, Any]:
    fold = {"messages": {"n": 3, "calls": 9, "at": "2026-01-02", "anchor": "x"}}
    made = task_update(
        at="2026-01-02",
        by="agent",
        objective="Migrate.",
        constraints=[RULE],
        in_progress=["audit"],
        done=["plan"],
    )
    return merge({}, {**made, "folds": fold})


@pytest.mark.parametrize("answer", RUBBISH, ids=repr)
def test_P4_an_answer_that_is_none_is_refused_and_never_taken_for_a_yes(answer: Any) -> None:
    with pytest.raises(HandoffError):
        answered(folded_state(), answer)


@pytest.mark.parametrize(
    ("answer", "verdict", "note", "by"),
    [
        ("approve", "approved", "Looked at and approved.", "human"),
        (True, "approved", "Looked at and approved.", "human"),
        ({"approve": True, "by": "dana"}, "approved", "Looked at and approved.", "dana"),
        ({"approve": "lag checked"}, "approved", "lag checked", "human"),
        ({"approve": True, "note": "lag checked"}, "approved", "lag checked", "human"),
        ({"reject": "users is missing", "by": "dana"}, "rejected", "users is missing", "dana"),
        ({"edit": {"notes": ["mind users"]}, "by": "dana"}, "approved", "Looked at", "dana"),
    ],
)
def test_an_answer_is_kept_with_who_gave_it(answer: Any, verdict: str, note: str, by: str) -> None:
    state = folded_state()
    after = answered(state, answer)
    (item,) = after["reviews"]
    assert (item["outcome"], item["by"]) == (verdict, by)
    assert note in item["text"]
    assert folds_since(after) == 0
    assert after["constraints"] == state["constraints"]
    if isinstance(answer, dict) and "edit" in answer:
        assert [(n["text"], n["by"]) for n in after["notes"]] == [("mind users", "dana")]


def test_P3_a_rejection_takes_nothing_for_done_and_loses_nothing() -> None:
    state = folded_state()
    after = answered(state, {"reject": "users is missing", "edit": {"open_questions": ["Why?"]}})
    assert after["done"] == []
    assert {(i["text"], i.get("outcome")) for i in after["in_progress"]} == {
        ("audit", None),
        ("plan", "claimed"),
    }
    assert "users is missing" in after["notes"][0]["text"]
    assert [q["text"] for q in after["open_questions"]] == ["Why?"]


def test_an_edit_cannot_drop_a_constraint() -> None:
    state = folded_state()
    after = answered(state, {"edit": {"constraints": [], "retirements": []}})
    assert [c["text"] for c in active(after)] == [RULE]


def test_a_review_is_due_after_some_folds_and_at_the_end_of_a_phase() -> None:
    state = folded_state()
    assert is_due(state, 3)
    assert not is_due(state, 4)
    seen = merge(state, signed(state, by="dana", at="2026-01-03"))
    assert not is_due(seen, 1)
    moved = merge(seen, task_update(at="2026-01-04", phase="copy"))
    assert not is_due(moved, 3)
    later = merge(moved, {"at": "2026-01-05", "folds": {"messages": {"n": 4}}})
    assert is_due(later, 3)
    assert report(later)["folds"] == 1


# -- the stop ----------------------------------------------------------------------------------


def wired(saver: Any, calls: int = 24, *, review: str = "interrupt", **options: Any) -> Any:
    builder = build(
        calls,
        state=HandoffState,
    )
    options = {"ledger": None, "every": 2, "review_every": 2, **options}
    add_handoff(builder, review=review, **options)
    return builder.compile(checkpointer=saver)


def asked(values: Any) -> dict[str, Any]:
    (stop,) = values["__interrupt__"]
    found: dict[str, Any] = stop.value["handoff_review"]
    return found


def test_a_run_stops_for_a_review_and_goes_on(tmp_path: Path) -> None:
    with HandoffSaver.from_conn_string(tmp_path / "h.db") as saver:
        graph = wired(saver, 12)
        values = graph.invoke(request(), config())
        answers: list[Any] = [
            "approve",
            {"reject": "k3 is wrong", "by": "dana"},
            {"edit": {"notes": ["mind k5"]}, "by": "dana"},
        ]
        stops = 0
        while "__interrupt__" in values:
            shown = asked(values)
            assert shown["folds"] == 2
            assert "done" in shown["changes"]
            assert graph.get_state(config()).next == ("summarize",)
            values = graph.invoke(Command(resume=answers[stops % 3]), config())
            stops += 1
        assert stops >= 2
        task = values["task"]
        assert [r["outcome"] for r in task["reviews"]][:2] == ["approved", "rejected"]
        assert [c["text"] for c in active(task)] == [RULE]
        assert values["messages"][-1].content == "All looked up."
        assert saver.task_state(config()) == graph.get_state(config()).values["task"]


async def test_a_run_stops_for_a_review_async(tmp_path: Path) -> None:
    async with HandoffSaver.from_conn_string(tmp_path / "h.db") as saver:
        graph = wired(saver, 8)
        values = await graph.ainvoke(request(), config())
        assert asked(values)["folds"] == 2
        values = await graph.ainvoke(Command(resume="nope"), config())
        assert "'nope'" in asked(values)["answer_refused"]
        while "__interrupt__" in values:
            values = await graph.ainvoke(Command(resume={"reject": "no", "by": "dana"}), config())
        assert {r["outcome"] for r in values["task"]["reviews"]} == {"rejected"}
        assert [c["text"] for c in active(values["task"])] == [RULE]


def test_the_end_of_a_phase_is_a_stop(tmp_path: Path) -> None:
    with HandoffSaver.from_conn_string(tmp_path / "h.db") as saver:
        graph = wired(saver, 12, review_every=99, every=3)
        graph.update_state(config(), {"task": task_update(phase="audit")})
        values = graph.invoke(request(), config())
        assert asked(values)["folds"] >= 1
        values = graph.invoke(Command(resume="approve"), config())
        assert "__interrupt__" not in values
        graph.update_state(config(), {"task": task_update(phase="copy")}, as_node="agent")
        values = graph.invoke({"messages": [HumanMessage("k0, and on.")]}, config())
        assert values["task"]["phase"] == "copy"


def test_P4_a_wrong_answer_is_asked_again_and_loses_nothing(tmp_path: Path) -> None:
    """LangGraph keeps an answer: one that raised would raise at every resume from there on."""
    path = tmp_path / "h.db"
    with HandoffSaver.from_conn_string(path) as saver:
        graph = wired(saver, 6)
        values = graph.invoke(request(), config())
        shown, before = asked(values), saver.task_state(config())
        for answer in RUBBISH:
            if answer in ("", [], {}):  # LangGraph's own business
                continue
            values = graph.invoke(Command(resume=answer), config())
            again = asked(values)
            assert again.pop("answer_refused")
            assert again == shown
            assert saver.task_state(config()) == before
    with HandoffSaver.from_conn_string(path) as saver:  # another process
        values = wired(saver, 6).invoke(Command(resume={"approve": "at last"}), config())
        assert values["task"]["reviews"][0]["text"] == "at last"
        assert [c["text"] for c in active(values["task"])] == [RULE]


def test_P5_a_change_beside_the_checkpoint_keeps_the_stop(tmp_path: Path) -> None:
    with HandoffSaver.from_conn_string(tmp_path / "h.db") as saver:
        graph = wired(saver, 6)
        graph.invoke(request(), config())
        before = graph.get_state(config())
        saver.update_task("t", task_update(by="dana", constraints=["Never touch prod."]))
        after = graph.get_state(config())
        assert (after.interrupts, after.next) == (before.interrupts, before.next)
        values = graph.invoke(Command(resume="approve"), config())
        while "__interrupt__" in values:
            values = graph.invoke(Command(resume="approve"), config())
        assert [c["text"] for c in active(values["task"])] == [RULE, "Never touch prod."]


def test_a_mark_never_stops_a_run(tmp_path: Path) -> None:
    with HandoffSaver.from_conn_string(tmp_path / "h.db") as saver:
        values = wired(saver, 24, review="mark").invoke(request(), config())
    assert "__interrupt__" not in values
    assert folds_since(values["task"]) >= 8


@pytest.mark.parametrize(
    ("options", "error"),
    [({"review": "ask"}, "review: one of"), ({"review_every": 0}, "review_every")],
)
def test_a_wrong_option_is_refused(options: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        SummarizerNode(**options)


# -- the command -------------------------------------------------------------------------------


def handoff(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "handoff_graph", *arguments],
        cwd=cwd,
        env={**os.environ, "HANDOFF_DB": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a database and a ledger, of a thread that was folded and a young one."""
    with HandoffSaver.from_conn_string(tmp_path / "handoff.db") as saver:
        graph = wired(saver, 12, review="mark", ledger=tmp_path / "ledger")
        graph.invoke(request(), config())
        build(3).compile(checkpointer=saver).invoke(request(), config("young"))
    return tmp_path


def task_in(folder: Path) -> dict[str, Any]:
    with HandoffSaver.from_conn_string(folder / "handoff.db") as saver:
        found = saver.task_state(config())
    assert found is not None
    return found


def in_step(folder: Path) -> bool:
    front = read_front_matter((folder / "ledger" / "t.md").read_text())
    assert front is not None
    return front.intact and front.revision == task_in(folder)["revision"]


def test_handoff_review_shows_signs_and_rejects(folder: Path) -> None:
    shown = handoff("review", "t", cwd=folder)
    assert shown.returncode == 0, shown.stderr
    assert "folds not reviewed" in shown.stdout
    assert f"] {RULE}" in shown.stdout
    before = task_in(folder)["revision"]
    done = handoff("review", "t", "--sign", "--by", "dana", "--note", "lag checked", cwd=folder)
    assert done.stdout == f"approved as of revision {before + 1}\n", done.stderr
    assert in_step(folder)
    assert "0 folds not reviewed since" in handoff("review", "t", cwd=folder).stdout
    done = handoff("review", "t", "--reject", "k3 is wrong", "--by", "dana", cwd=folder)
    assert done.stdout == f"rejected as of revision {before + 2}\n", done.stderr
    assert in_step(folder)
    reviews = task_in(folder)["reviews"]
    assert [(r["outcome"], r["by"]) for r in reviews] == [
        ("approved", "dana"),
        ("rejected", "dana"),
    ]
    assert [c["text"] for c in active(task_in(folder))] == [RULE]


def test_handoff_retire_is_on_record_and_in_the_ledger(folder: Path) -> None:
    rule = task_in(folder)["constraints"][0]
    done = handoff(
        "retire", "t", rule["id"], "--why", "the lag is gone", "--by", "dana", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    assert RULE in done.stdout
    task = task_in(folder)
    assert active(task) == []
    assert task["constraints"] == [rule]
    (item,) = task["retirements"]
    assert (item["by"], item["text"]) == ("dana", "the lag is gone")
    assert in_step(folder)
    assert "the lag is gone" in (folder / "ledger" / "t.md").read_text()


def test_handoff_retire_confirms_a_proposal(folder: Path) -> None:
    rule = task_in(folder)["constraints"][0]["id"]
    with HandoffSaver.from_conn_string(folder / "handoff.db") as saver:
        task = saver.task_state(config())
        saver.update_task(
            "t", retire(task, rule, why="seems over", by="model", standing="proposed")
        )
    assert f"proposed: retire [{rule}]: seems over" in handoff("review", "t", cwd=folder).stdout
    assert [c["id"] for c in active(task_in(folder))] == [rule]
    assert handoff("retire", "t", rule, "--why", "it is", cwd=folder).returncode == 0
    assert active(task_in(folder)) == []
    assert "proposed" not in handoff("review", "t", cwd=folder).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("retire", "t", "c-none", "--why", "over"), 1, "c-none"),
        (("retire", "t", "c-none"), 2, "--why"),
        (("retire", "t", "RULE", "--why", "  "), 2, "--why"),
        (("retire", "t", "RULE", "--why", ""), 2, "--why"),
        (("retire", "nobody", "c1", "--why", "over"), 1, "nobody"),
        (("retire", "young", "c1", "--why", "over"), 1, "no task yet"),
        (("review", "nobody"), 1, "nobody"),
        (("review", "young"), 1, "no task yet"),
        (("review", "young", "--sign"), 1, "no task yet"),
        (("review", "t", "--sign", "--reject", "no"), 2, "not both"),
        (("review", "t", "--reject", ""), 2, "--reject"),
        (("review", "t", "--reject", " "), 2, "--reject"),
        (("review", "t", "--note", "lag checked"), 2, "--note"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_command_says_what_is_wrong_and_changes_nothing(
    folder: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    rule = task_in(folder)["constraints"][0]["id"]
    before = raw_rows(folder / "handoff.db")
    done = handoff(*(rule if a == "RULE" else a for a in arguments), cwd=folder)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert raw_rows(folder / "handoff.db") == before
