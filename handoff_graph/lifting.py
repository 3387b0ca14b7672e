"""Finds where a person lifts a constraint, in so many words. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage

from handoff_graph.binding import sentences
from handoff_graph.constraints import active, retire
from handoff_graph.schema import Item
from handoff_graph.transcript import message_text, source_id

__all__ = ["lifted", "lifted_in"]

_LIFTS = re.compile(
    r"\b(?:retire[sd]?|lift(?:s|ed)?|drop(?:s|ped)?|cancel(?:s|l?ed)?|revoke[sd]?|rescind(?:s|ed)?"
    r"|waive[sd]?|withdraw[ns]?|remove[sd]?|no\s+longer\s+(?:applies|binds|holds|needed))\b",
    re.IGNORECASE,
)
_KEEPS = re.compile(r"\b(?:not|never|don't|dont|didn't)\b|\?\s*$", re.IGNORECASE)


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


def lifted(state: Mapping[str, Any], seen: Sequence[BaseMessage], at: str) -> list[Item]:
    """The retirements of constraints that people lift in these messages."""
    found: list[Item] = []
    for number, message in enumerate(seen):
        if not isinstance(message, HumanMessage):
            continue
        later = [source_id(m) for m in seen[number + 1 :]]
        for rule, why in lifted_in(message_text(message), state):
            said = {"by": "human", "src": source_id(message), "at": at, "later": later}
            found += retire(state, rule, why=why, **said)["retirements"]  # type: ignore[arg-type]
    return found
