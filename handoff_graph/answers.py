"""What becomes of a model's answer: checked, and turned into a `TaskUpdate`.

An answer is believed only as far as it can be checked against what the model was shown: an id,
a piece of evidence or a quote that does not stand there is not taken over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage, ToolMessage

from handoff_graph.binding import sentences
from handoff_graph.prompting import FIELDS, SCHEMA
from handoff_graph.schema import WORK
from handoff_graph.summarize import Folding, in_order
from handoff_graph.task import TaskUpdate
from handoff_graph.transcript import calls_of, is_briefing, message_text, source_id

__all__ = ["checked", "joined", "update_from"]

_KEY = {"artifacts": "uri", "constraints": "quote", "retire": "constraint"}


def checked(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer in the form that was asked for; small slips are put right.

    Raises:
        ValueError: it is something else; the text can be shown to the model.

    Example:
        >>> checked({"done": "audit", "next_action": None})
        {'done': [{'text': 'audit'}]}
    """
    known = {*FIELDS, "next_action"}
    if len(answer) == 1 and not known & answer.keys():
        (inner,) = answer.values()
        answer = inner if isinstance(inner, Mapping) else answer
    if not known & answer.keys():
        raise ValueError(f"it has none of the fields {', '.join(SCHEMA['required'])}")
    found: dict[str, Any] = {}
    for name in FIELDS:
        if value := answer.get(name):
            listed = value if isinstance(value, list) else [value]
            found[name] = [_checked_item(name, number, item) for number, item in enumerate(listed)]
    action = answer.get("next_action")
    if action is not None and not isinstance(action, str):
        raise ValueError("next_action is not a text")
    return {**found, "next_action": action} if action else found


def _checked_item(name: str, number: int, item: Any) -> dict[str, str]:
    key = _KEY.get(name, "text")
    item = {key: item} if isinstance(item, str) else item
    if not isinstance(item, Mapping):
        raise ValueError(f"{name}[{number}] is not an object")
    read: dict[str, str] = {}
    for field, _ in FIELDS[name][1]:
        value = item.get(field)
        if value is not None and not isinstance(value, (str, int)):
            raise ValueError(f"{name}[{number}].{field} is not a text")
        if value not in (None, ""):
            read[field] = str(value)
    if not read.get(key, "").strip() and not (name in WORK and read.get("id")):
        raise ValueError(f"{name}[{number}].{key} is missing")
    return read


def update_from(
    answer: Mapping[str, Any], state: Mapping[str, Any], folding: Folding, first: int
) -> tuple[TaskUpdate, int]:
    """The update that a checked answer stands for.

    Args:
        answer: what `checked` returned.
        state: the state that the model was shown.
        folding: the messages; evidence and quotes have to stand in them.
        first: how many items of this fold came before, which these are stamped behind.

    Returns:
        The update, and how many items it has.
    """
    seen = [m for m in (*folding.folded, *folding.tail) if not is_briefing(m)]
    known = {str(m.id): m for m in seen if m.id}
    sources = _sources(seen)
    update: dict[str, Any] = {}
    for name in (*WORK, "decisions", "artifacts", "open_questions"):
        update[name] = [_item(name, item, state, sources) for item in answer.get(name, ())]
        update[name] = [item for item in update[name] if item]
    quoted = (c for item in answer.get("constraints", ()) for c in _quoted(item, seen))
    update["constraints"] = list({c["text"]: c for c in quoted}.values())
    count = first
    for name, items in update.items():
        update[name] = in_order(items, folding.at, count)
        count += len(items)
    update["retirements"] = [
        {"constraint": item["constraint"], "why": item.get("why", ""), "src": item["message"]}
        for item in answer.get("retire", ())
        if item["constraint"] in {c["id"] for c in state.get("constraints", ())}
        # What a tool or the agent itself says lifts nothing.
        and isinstance(known.get(item.get("message", "")), HumanMessage)
    ]
    update["next_action"] = answer.get("next_action", "")
    if state.get("status", "not_started") == "not_started":
        update["status"] = "in_progress"
    said = {name: value for name, value in update.items() if value}
    return cast(TaskUpdate, {**said, "at": folding.at, "by": "model"}), count - first


def _sources(seen: Sequence[BaseMessage]) -> dict[str, str]:
    """What may be given as evidence, and the id it is recorded under. The agent's own words
    are none: they are what the evidence is for."""
    calls = {str(call["id"]): str(call["id"]) for m in seen for call in calls_of(m) if call["id"]}
    answered = {str(m.id): str(m.tool_call_id) for m in seen if isinstance(m, ToolMessage)}
    people = {str(m.id): str(m.id) for m in seen if isinstance(m, HumanMessage) and m.id}
    return {**answered, **calls, **people}


def _item(
    name: str, item: Mapping[str, str], state: Mapping[str, Any], sources: Mapping[str, str]
) -> dict[str, str]:
    """One item as the schema has it; empty if it says nothing."""
    made = {key: value for key, value in item.items() if key not in ("id", "evidence")}
    sections = WORK if name in WORK else (name,)
    held = {i["id"]: i for section in sections for i in state.get(section, ())}
    # An id of the model's own making could be that of another item one day.
    if before := held.get(item.get("id", "")):
        made = {"id": before["id"], "text": before["text"], **made}
    if source := sources.get(item.get("evidence", "")):
        made["src"] = source
    return {**made, "by": "model"} if made.get(_KEY.get(name, "text")) else {}


def _quoted(item: Mapping[str, str], seen: Sequence[BaseMessage]) -> list[dict[str, str]]:
    """The sentences that a quote stands for, whole and as they were written: a part of one may
    say the opposite. None if nobody who may bind the agent has written it."""
    quote = _flat(item["quote"]).strip("\"'“”")
    named = sorted(seen, key=lambda m: str(m.id) != item.get("message", ""))
    for message in named:
        if not quote or not isinstance(message, (HumanMessage, SystemMessage)):
            continue
        text = message_text(message)
        if quote in _flat(text):
            by = "human" if isinstance(message, HumanMessage) else "system"
            said = {"by": by, "src": source_id(message)}
            written = sentences(text)
            around = [sentence for sentence in written if quote in _flat(sentence)][:1]
            within = (sentence for sentence in written if _flat(sentence) in quote)
            return [{"text": sentence, **said} for sentence in around or within]
    return []


def _flat(text: str) -> str:
    return " ".join(text.split())


def joined(one: Mapping[str, Any], other: Mapping[str, Any]) -> TaskUpdate:
    """Two updates of one fold as one, the later last."""
    both = {
        name: [*one[name], *value] if isinstance(value, list) and name in one else value
        for name, value in other.items()
    }
    return cast(TaskUpdate, {**one, **both})
