"""A person's look at what the folds have made of a task, and their word on it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from handoff_graph.constraints import proposals
from handoff_graph.errors import InvalidTask
from handoff_graph.schema import SECTIONS, TaskUpdate, new_id, utc_now
from handoff_graph.task import merge

__all__ = ["Verdict", "answered", "folds_since", "is_due", "report", "signed"]

Verdict = Literal["approved", "rejected"]
_LEFT_OUT = ("reviews", "sessions", "notes")


def _last(state: Mapping[str, Any]) -> Mapping[str, Any]:
    reviews = state.get("reviews", ())
    return reviews[-1] if reviews else {}


def _folds(state: Mapping[str, Any]) -> int:
    return sum(int(entry["n"]) for entry in state.get("folds", {}).values())


def folds_since(state: Mapping[str, Any]) -> int:
    """How many folds no person has looked at yet."""
    return max(0, _folds(state) - int(_last(state).get("folds", 0)))


def is_due(state: Mapping[str, Any], every: int) -> bool:
    """Whether a review is due: after so many folds, or when a phase has ended with a fold."""
    since, last = folds_since(state), _last(state)
    phase_ended = bool(last.get("what") or state.get("phase")) and (
        state.get("phase", "") != last.get("what", "")
    )
    return since >= every or (since > 0 and phase_ended)


def report(state: Mapping[str, Any]) -> dict[str, Any]:
    """What a person is shown.

    Returns:
        Plain JSON: `folds` since the last review, when that was (`since`), `changes` by section
        (`[id, text]` of every item that is new or has changed), the `proposals` to retire a
        constraint, what the guard `refused` and which names are `missing`.
    """
    since = str(_last(state).get("at", ""))
    changes = {
        name: [
            [item["id"], str(item.get("text") or item.get("uri") or item.get("name") or "")]
            for item in state.get(name, ())
            if str(item.get("at", "")) > since
        ]
        for name in SECTIONS
        if name not in _LEFT_OUT
    }
    drift = [entry.get("drift", {}) for entry in state.get("folds", {}).values()]
    return {
        "folds": folds_since(state),
        "since": since,
        "changes": {name: items for name, items in changes.items() if items},
        "proposals": [[i["constraint"], i["text"]] for i in proposals(state).values()],
        "refused": [line for found in drift for line in found.get("refused", ())],
        "missing": [line for found in drift for line in found.get("missing", ())],
        "next_action": state.get("next_action", ""),
    }


def signed(
    state: Mapping[str, Any],
    *,
    by: str,
    note: str = "",
    verdict: Verdict = "approved",
    at: str | None = None,
) -> TaskUpdate:
    """An update that records a review.

    Args:
        state: the task state that was looked at.
        by: who did.
        note: what they say, which is kept.
        verdict: `rejected` takes what was done since the last review for merely claimed.
        at: ISO 8601 time; now, if left out.

    Raises:
        ValueError: a rejection says not why.
    """
    if verdict == "rejected" and not note.strip():
        raise ValueError("note must say why the review is rejected; the agent reads it")
    stamp, since = at or utc_now(), str(_last(state).get("at", ""))
    item: dict[str, Any] = {
        "id": new_id("reviews", by, stamp),
        "text": note.strip() or "Looked at and approved.",
        "by": by,
        "at": stamp,
        "outcome": verdict,
        "folds": _folds(state),
        "what": str(state.get("phase", "")),
    }
    update: dict[str, Any] = {"at": stamp, "reviews": [item]}
    if verdict == "rejected":
        update["notes"] = [{"text": f"Review rejected: {note.strip()}", "by": by}]
        update["in_progress"] = [
            {"id": done["id"], "text": done["text"], "by": done.get("by", ""), "outcome": "claimed"}
            for done in state["done"]
            if str(done.get("at", "")) > since
        ]
    return update  # type: ignore[return-value]


def answered(state: Mapping[str, Any], answer: Any) -> dict[str, Any]:
    """The task state after a person's answer to a review that an agent has stopped for.

    Args:
        state: the task state that was shown.
        answer: `"approve"`, or an object of `approve`: a note or true, `reject`: why, `edit`: a
            `TaskUpdate` that is merged first, and `by`: who answers.

    Raises:
        InvalidTask: the answer is neither, or its edit breaks the schema.
        UnsupportedSchema: its edit is of a newer version.
    """
    said: Any = {"approve": True} if answer == "approve" or answer is True else answer
    if not isinstance(said, Mapping) or not _is_answer(said):
        what = '"approve", {"approve": note}, {"reject": why} or {"edit": {...}}'
        raise InvalidTask("the answer to a review", what, answer)
    by = said.get("by") or "human"
    edit: Mapping[str, Any] | None = said.get("edit")
    if edit is not None:
        state = merge(state, {"by": by, "at": utc_now(), **edit})
    verdict: Verdict = "rejected" if "reject" in said else "approved"
    notes = (said.get(name) for name in ("reject", "approve", "note"))
    note = next((text for text in notes if text and isinstance(text, str)), "")
    return merge(state, signed(state, by=by, note=note, verdict=verdict))


def _is_answer(said: Mapping[str, Any]) -> bool:
    """Whether this says yes or no: what says neither, or both, must not pass for a yes."""
    yes, no = said.get("approve", True), said.get("reject", "no")
    return (
        bool(said.keys() & {"approve", "reject", "edit"})
        and not {"approve", "reject"} <= said.keys()
        and (yes is True or isinstance(yes, str))
        and isinstance(no, str)
        and bool(no.strip())
        and isinstance(said.get("edit", {}), Mapping)
        and isinstance(said.get("by", ""), str)
        and isinstance(said.get("note", ""), str)
    )
