"""Which constraints bind now, and the one way in which one stops: a confirmed retirement.

A constraint is never removed from a task state. What people lift is recorded beside it, with
who, why and when, and names the messages in which the rule had been said up to then: said once
more later, it binds again. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from handoff_graph.errors import UnknownConstraint
from handoff_graph.schema import Item, TaskUpdate, new_id, utc_now

__all__ = ["active", "is_step", "proposals", "retire", "retired", "step_over"]

CONFIRMED: Literal["confirmed"] = "confirmed"
PROPOSED: Literal["proposed"] = "proposed"


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


def step_over(state: Mapping[str, Any], at: str) -> TaskUpdate:
    """An update that retires what was said for one step only: a phase of the task has ended.

    What was said since then is for a step of the new phase.
    """
    ended_at = str(state.get("stamps", {}).get("phase", ""))
    ended = [
        item
        for rule in active(state)
        if is_step(rule) and str(rule.get("at", "")) <= ended_at
        for item in retire(
            state, rule["id"], why="Its step is over: the phase changed.", by="handoff", at=at
        )["retirements"]
    ]
    return {"at": at, "retirements": ended}


def proposals(state: Mapping[str, Any]) -> dict[str, Item]:
    """The retirements that wait for a person, by the text of the constraint, which still binds."""
    binding = {c["text"]: _said_in(c) for c in active(state)}
    return {
        item["rule"]: item
        for item in state.get("retirements", ())
        if item.get("standing") != CONFIRMED
        and item.get("rule") in binding
        and binding[item["rule"]] <= set(item.get("covers", ()))  # not said again since
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
    later: Collection[str] = (),
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
        later: messages behind that one; a constraint that they say again binds on.

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
        "covers": sorted(_said_in(rule) - set(later)),
        "by": by,
        "src": src,
        "at": stamp,
    }
    return {"at": stamp, "retirements": [item]}


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
