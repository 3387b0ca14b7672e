"""Which constraints bind now, and the one way in which one stops: a confirmed retirement.

A constraint is never removed from a task state. What people lift is recorded beside it, with
who, why and when, and names the messages in which the rule had been said up to then: said once
more later, it binds again. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from handoff_graph.binding import sentences
from handoff_graph.errors import UnknownConstraint
from handoff_graph.schema import Item, TaskUpdate, new_id, utc_now

__all__ = ["active", "is_step", "lifted_in", "proposals", "retire", "retired"]

CONFIRMED: Literal["confirmed"] = "confirmed"
PROPOSED: Literal["proposed"] = "proposed"

_LIFTS = re.compile(
    r"\b(?:retire[sd]?|lift(?:s|ed)?|drop(?:s|ped)?|cancel(?:s|l?ed)?|revoke[sd]?|rescind(?:s|ed)?"
    r"|waive[sd]?|withdraw[ns]?|remove[sd]?|no\s+longer\s+(?:applies|binds|holds|needed))\b",
    re.IGNORECASE,
)
_KEEPS = re.compile(r"\b(?:not|never|don't|dont|didn't)\b|\?\s*$", re.IGNORECASE)


def active(state: Mapping[str, Any]) -> list[Item]:
    """The constraints that bind, in their order.

    Args:
        state: a task state.

    Example:
        >>> from handoff_graph import merge, task_update
        >>> state = merge({}, task_update(by="human", constraints=["Never deploy on Fridays."]))
        >>> rule = active(state)[0]
        >>> state = merge(state, retire(state, rule["id"], why="The freeze is over.", by="dana"))
        >>> active(state), [item["text"] for item in retired(state)]
        ([], ['Never deploy on Fridays.'])
    """
    gone = _covered(state)
    return [
        c for c in state.get("constraints", ()) if not _said_in(c) <= gone.get(c["text"], set())
    ]


def retired(state: Mapping[str, Any]) -> list[Item]:
    """The constraints that do not bind any more."""
    gone = _covered(state)
    return [c for c in state.get("constraints", ()) if _said_in(c) <= gone.get(c["text"], set())]


def proposals(state: Mapping[str, Any]) -> dict[str, Item]:
    """The retirements that wait for a person, by the text of the constraint, which still binds."""
    binding = {c["text"] for c in active(state)}
    return {
        item["rule"]: item
        for item in state.get("retirements", ())
        if item.get("standing") != CONFIRMED and item.get("rule") in binding
    }


def is_step(constraint: Mapping[str, Any]) -> bool:
    """Whether a constraint was said for one step only, and is no standing rule."""
    return constraint.get("scope") == "step"


def retire(
    state: Mapping[str, Any],
    constraint: str,
    *,
    why: str,
    by: str,
    src: str = "",
    at: str | None = None,
    standing: Literal["confirmed", "proposed"] = "confirmed",
) -> TaskUpdate:
    """An update that retires a constraint, or proposes to.

    Args:
        state: the task state that holds it.
        constraint: its id.
        why: the reason, which is kept.
        by: who says so.
        src: the message in which they say it, if it was one.
        at: ISO 8601 time; now, if left out.
        standing: `proposed` where a person has yet to confirm: until then it binds.

    Raises:
        UnknownConstraint: no constraint has this id.
        ValueError: there is no reason.
    """
    known = {c["id"]: c for c in state.get("constraints", ())}
    if constraint not in known:
        raise UnknownConstraint(constraint, sorted(known))
    if not why.strip():
        raise ValueError("why must say why the constraint is retired; it is kept in the journal")
    rule = known[constraint]
    stamp = at or utc_now()
    item: Item = {
        "id": new_id("retirements", rule["text"], by, src or stamp, standing),
        "text": why,
        "rule": rule["text"],
        "constraint": constraint,
        "standing": standing,
        "covers": sorted(_said_in(rule)),
        "by": by,
        "src": src,
        "at": stamp,
    }
    return {"at": stamp, "retirements": [item]}


def lifted_in(text: str, state: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The active constraints that a person's message lifts: `(constraint id, sentence)`.

    Only one that the sentence names by its id or word for word; whatever else may be meant is
    for a review.

    Example:
        >>> from handoff_graph import merge, task_update
        >>> state = merge({}, task_update(constraints=[{"id": "c1", "text": "No deploys."}]))
        >>> lifted_in("Good news. You can drop [c1], the freeze is over.", state)
        [('c1', 'You can drop [c1], the freeze is over.')]
    """
    found: list[tuple[str, str]] = []
    for sentence in sentences(text) if _LIFTS.search(text) else ():
        for rule in active(state):
            named = re.search(rf"(?<![\w-]){re.escape(rule['id'])}(?![\w-])", sentence)
            quoted = rule["text"] in sentence
            rest = sentence.replace(rule["text"], " ")
            if (named or quoted) and _LIFTS.search(rest) and not _KEEPS.search(rest):
                found.append((rule["id"], sentence))
    return found


def _covered(state: Mapping[str, Any]) -> dict[str, set[str]]:
    """By the text of a rule, the messages that confirmed retirements had in view."""
    gone: dict[str, set[str]] = {}
    for item in state.get("retirements", ()):
        if item.get("standing") == CONFIRMED:
            gone.setdefault(str(item.get("rule")), set()).update(item.get("covers", ()))
    return gone


def _said_in(constraint: Mapping[str, Any]) -> set[str]:
    also: Sequence[str] = constraint.get("also", ())
    return {str(constraint.get("src", "")), *also}
