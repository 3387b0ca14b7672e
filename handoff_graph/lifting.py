"""Finds where a person lifts a constraint, in so many words. Pure.

A rule that is lifted by mistake is worse than one that binds too long: so the verb must stand
right at the rule's id or its quoted words, and a sentence that denies, asks, reports, or speaks
of another time lifts nothing. Whatever else may be meant is for a review.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage

from handoff_graph.binding import sentences
from handoff_graph.constraints import active, retire
from handoff_graph.schema import SECTIONS, Item
from handoff_graph.transcript import message_text, source_id

__all__ = ["lifted", "lifted_in"]

_DROPPED = (
    r"(?:retired|lifted|dropped|cancell?ed|revoked|rescinded|waived|withdrawn|removed"
    r"|no\s+longer\s+needed)"
)
_DROP = (
    r"(?:retires?|lifts?|drops?|cancels?|revokes?|rescinds?|waives?|withdraws?|withdrew|removes?"
    rf"|{_DROPPED})"
)
_ENDS = r"no\s+longer\s+(?:appl(?:y|ies)|binds?|holds?|needed)"
_LIFTS = re.compile(rf"\b(?:{_DROP}|{_ENDS})\b", re.IGNORECASE)

_IT, _OTHER = "\x01", "\x02"  # stand in a sentence for the rule in question, and for others
_GAP = r"[\s\"'“”„‘’`*_()\[\]:—–-]"
_WORD = r"(?:the|this|that|these|those|my|our|your|both|and|rules?|constraints?|restrictions?|ids?)"
_BETWEEN = rf"(?:{_GAP}|\b{_WORD}\b|{_OTHER}{_GAP}*,?)*"
_IS = r"(?:(?:is|are|was|were|be|been|has|have|can|may|now|hereby|all|both)\s+)+"
_LIFTS_IT = re.compile(
    rf"\b{_DROP}\b{_BETWEEN}{_IT}"
    rf"|{_IT}(?:,|{_GAP}|\b{_WORD}\b|{_OTHER})*\b(?:{_IS}{_DROPPED}\b|{_ENDS}\b|{_DROPPED}[.!]*$)",
    re.IGNORECASE,
)
_KEEPS = re.compile(
    r"[?？]|n['’ʼ]t\b|['’]ll\b|\b(?:not|never|cannot|cant|dont|didnt|wont|nobody|none|nor|neither"
    r"|no(?! longer\b| problem\b| worries\b)|without|unless|until|till|if|whether|before|after|when"
    r"|once|should|shall|would|could|might|will|going to|tomorrow|tonight|later|soon|maybe|perhaps"
    r"|suppose|consider|wonder|refuse|(?<!\bI )wants?|wanted|says?|said|asks|asked|told|tells"
    r"|writes|wrote|keeps?|kept|stays?|remains?|still|except|instead|rather)\b",
    re.IGNORECASE,
)


def lifted_in(text: str, state: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The active constraints that a person's message lifts: `(constraint id, sentence)`.

    Only one that the sentence names by its id or word for word.

    Example:
        >>> from handoff_graph import merge, task_update
        >>> state = merge({}, task_update(constraints=[{"id": "c1", "text": "No deploys."}]))
        >>> lifted_in("Good news. You can drop [c1], the freeze is over.", state)
        [('c1', 'You can drop [c1], the freeze is over.')]
        >>> lifted_in("Should we drop c1? Drop the tables, but mind c1.", state)
        []
    """
    found: list[tuple[str, str]] = []
    for sentence in sentences(text) if _LIFTS.search(text) else ():
        mentions = _mentions(sentence, state)
        for rule in active(state) if mentions else ():
            told = _marked(sentence, mentions, rule["id"])
            if _LIFTS_IT.search(told) and not _KEEPS.search(told):
                found.append((rule["id"], sentence))
    return found


def _mentions(sentence: str, state: Mapping[str, Any]) -> list[tuple[int, int, str]]:
    """Where constraints are named or quoted, in order: start, end, id.

    Of two that fit in one place the longer is meant: `c1-2`, and not `c1`.
    """
    rules = [c for c in state.get("constraints", ()) if c["text"] != sentence]
    # An id that is also another item's may mean that one.
    others = {
        i.get("id") for name in SECTIONS if name != "constraints" for i in state.get(name, ())
    }
    ways = {rule["id"]: rule["id"] for rule in rules if rule["id"] not in others}
    ways |= {rule["text"]: rule["id"] for rule in rules}
    words = sorted((w for w in ways if w in sentence), key=len, reverse=True)
    if not words:
        return []
    either = "|".join(map(re.escape, words))
    pattern = rf"(?<![\w-])(?:{either})(?![\w-]|[.:/]\w|['’]s\b)"
    return [(*m.span(), ways[m.group()]) for m in re.finditer(pattern, sentence)]


def _marked(sentence: str, mentions: Sequence[tuple[int, int, str]], rule: str) -> str:
    """The sentence with a mark for each constraint that it speaks of."""
    parts, done = [], 0
    for start, end, key in mentions:
        parts += [sentence[done:start], _IT if key == rule else _OTHER]
        done = end
    parts.append(sentence[done:])
    return "".join(p if p in (_IT, _OTHER) else re.sub(r"[\x01\x02]", " ", p) for p in parts)


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
