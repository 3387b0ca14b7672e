"""From messages to a `TaskUpdate`, without a model.

A summarizer is any callable that takes the task state and the messages to fold and returns a
`TaskUpdate`: a *change*, never the whole state again, so nothing is ever summarised twice.
`HeuristicSummarizer` is the one that needs no model, no network and no configuration; it also
stands in when another summarizer fails.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
)

from handoff_graph.binding import BindingDetector, binding_sentences, scope_of, sentences
from handoff_graph.lifting import lifted
from handoff_graph.schema import new_id, stamp
from handoff_graph.task import TaskUpdate, extend, merge
from handoff_graph.transcript import call_parts, calls_of, is_briefing, message_text, source_id

__all__ = ["Folding", "HeuristicSummarizer", "Summarizer", "Summary", "in_order"]


class Folding(Protocol):
    """What is being folded, as handed to a summarizer."""

    @property
    def folded(self) -> Sequence[BaseMessage]:
        """The messages that are about to go, oldest first."""

    @property
    def tail(self) -> Sequence[BaseMessage]:
        """The messages that stay word for word behind the briefing."""

    @property
    def at(self) -> str:
        """The time of this fold, ISO 8601 UTC: the stamp for all it records."""


class Summary(NamedTuple):
    """An update, and what it cost to make.

    Attributes:
        update: what the folded messages change in the task state.
        cost: `calls` of a model, `input_tokens`, `output_tokens`, `seconds`; empty if none.
    """

    update: TaskUpdate
    cost: dict[str, float]


@runtime_checkable
class Summarizer(Protocol):
    """The seam for other summarizers, model-backed ones included."""

    def __call__(self, state: Mapping[str, Any], folding: Folding, /) -> TaskUpdate:
        """Return what the folded messages change in the task state; change nothing else."""


MAX_RULES = 8
"""A system message with more binding sentences than this is recorded as one policy."""

_CALL = 80  # characters that are quoted of a call,
_RESULT = 60  # of the first line of its result,
_QUOTE = 400  # of what people and the model last said,
_OBJECTIVE = 2_000  # and of the task as a person gave it
_URL = re.compile(r"\b[a-z][a-z0-9+.-]{1,15}://[^\s\"'<>|]{3,200}")
_SUFFIX = "sql|py|md|ya?ml|json|toml|txt|sh|tf|csv|log|html?|js|ts|go|rs|c|h|cfg|conf|ini"
_PATH = re.compile(
    rf"(?<![\w:/.-])(?:\.{{0,2}}/|~/)?[\w.-]+(?:/[\w.@-]+)+/?|\b[\w-]+\.(?:{_SUFFIX})\b"
)
_WRITES = re.compile(
    "write|creat|edit|sav|upload|patch|fix|apply|insert|append|mov|renam|generat|put|updat|remov",
    re.IGNORECASE,
)


# System prompts and requests are read again at every fold.
_remembering = lru_cache(64)(binding_sentences)


# A person who says no more than this means what stands there already.
_SAYS_GO = re.compile(
    r"\W*(?:(?:ok(?:ay)?|yes|please|now|and|so|then|just|you\s+can)\W+)*(?:go\s+(?:on|ahead)|continue"
    r"|proceed|carry\s+on|resume|keep\s+going|ok(?:ay)?|yes|thanks?(?:\s+you)?)"
    r"(?:\W+(?:please|now|then|thanks?|with\s+(?:it|this|that)))*\W*\Z",
    re.IGNORECASE,
)


class HeuristicSummarizer:
    """Reads the task off the messages: no model, deterministic, a few milliseconds.

    Objective from the first human message; constraints from binding sentences of people and
    system messages; a finished tool call is done, one that returned an error or never
    returned is not; artifacts from paths and URLs in arguments; the next action from the last
    words of the model, or else the request that is still open.

    Args:
        binding: finds the binding sentences in a person's message.

    Example:
        >>> from types import SimpleNamespace
        >>> folding = SimpleNamespace(
        ...     folded=[HumanMessage("Audit the schema. Never touch prod.", id="m1")],
        ...     tail=[], at="2026-01-01T00:00:00Z")
        >>> update = HeuristicSummarizer()({}, folding)
        >>> update["objective"], update["constraints"][0]["text"]
        ('Audit the schema. Never touch prod.', 'Never touch prod.')
    """

    def __init__(self, binding: BindingDetector = binding_sentences) -> None:
        self.binding = binding
        self._binding = _remembering if binding is binding_sentences else lru_cache(64)(binding)

    def __call__(self, state: Mapping[str, Any], folding: Folding, /) -> TaskUpdate:
        seen = [m for m in (*folding.folded, *folding.tail) if not is_briefing(m)]
        work = {name: in_order(i, folding.at) for name, i in _calls(folding.folded).items()}
        update: dict[str, Any] = {
            **self.captured(state, folding),
            **work,
            "next_action": "" if _has_plan(state) else _next_action(seen),
        }
        if state.get("status", "not_started") == "not_started":
            update["status"] = "in_progress"
        return _stamped(update, folding.at)

    def constraints(self, message: BaseMessage) -> list[dict[str, str]]:
        """What a message binds: its sentences word for word, if a person or the system says
        them; a long system message counts as one policy."""
        if not isinstance(message, (HumanMessage, SystemMessage)):
            return []
        by = "human" if isinstance(message, HumanMessage) else "system"
        said = {"by": by, "src": source_id(message)}
        text = message_text(message)
        found = self._binding(text)
        if by == "system" and len(found) > MAX_RULES:
            digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
            rule = f"Follow the system policy: {len(found)} rules, sha256 {digest}."
            return [{"text": rule, **said}]
        scopes = {sentence: scope_of(sentence) for sentence in found}
        return [
            {"text": sentence, **said, **({} if scope == "standing" else {"scope": scope})}
            for sentence, scope in scopes.items()
        ]

    def captured(self, state: Mapping[str, Any], folding: Folding) -> TaskUpdate:
        """What is recorded under every other summarizer, before it looks at anything:
        the objective, the constraints, and which of them people have lifted."""
        seen = [m for m in (*folding.folded, *folding.tail) if not is_briefing(m)]
        found = [c for m in seen for c in self.constraints(m)]
        update: dict[str, Any] = _objective(state, seen)
        update["constraints"] = in_order(found, folding.at)
        update["notes"] = self._notes(state, folding, update)
        update["retirements"] = lifted(extend(merge(state, None), update), seen, folding.at)
        lifting = {item["text"] for item in update["retirements"]}
        update["constraints"] = [c for c in update["constraints"] if c["text"] not in lifting]
        return _stamped(update, folding.at)

    def _notes(
        self, state: Mapping[str, Any], folding: Folding, opening: Mapping[str, Any]
    ) -> list[dict[str, str]]:
        objective = opening.get("objective") or state.get("objective", "")
        found = [_note(m) for m in folding.folded if self._is_note(m, objective)]
        return in_order(found, folding.at)

    @staticmethod
    def _is_last_word(message: BaseMessage) -> bool:
        """Whether this is how an agent ended a run: what it leaves to the next one."""
        return (
            isinstance(message, AIMessage)
            and not calls_of(message)
            and bool(message_text(message).strip())
        )

    def _is_note(self, message: BaseMessage, objective: str) -> bool:
        """Whether these are words that no other field quotes in full: a person's, or an agent's
        at the end of its run."""
        text = message_text(message)
        return self._is_last_word(message) or (
            isinstance(message, HumanMessage)
            and not is_briefing(message)
            and bool(text.strip())
            and " ".join(text.split()) != objective
            and self._binding(text) != sentences(text)
        )


def _stamped(update: Mapping[str, Any], at: str) -> TaskUpdate:
    """What an update says, under its time; whoever merges it checks it."""
    return cast(TaskUpdate, {**{k: v for k, v in update.items() if v}, "at": at})


def _objective(state: Mapping[str, Any], seen: Sequence[BaseMessage]) -> dict[str, str]:
    if state.get("objective"):
        return {}
    first = next((message_text(m) for m in seen if isinstance(m, HumanMessage)), "")
    lines = sentences(first) or [first]
    return (
        {"objective": _shorten(first, _OBJECTIVE), "title": _shorten(lines[0], 80)} if first else {}
    )


def _note(message: BaseMessage) -> dict[str, str]:
    text = _shorten(message_text(message), _QUOTE)
    return {
        "id": new_id("notes", source_id(message), text),
        "text": text,
        "by": "human" if isinstance(message, HumanMessage) else "agent",
        "src": source_id(message),
    }


def _has_plan(state: Mapping[str, Any]) -> bool:
    """Whether somebody has recorded a next action on purpose since the last fold."""
    folded = max((f.get("at", "") for f in state.get("folds", {}).values()), default="")
    return bool(state.get("next_action")) and state["stamps"].get("next_action", "") > folded


def _next_action(seen: Sequence[BaseMessage]) -> str:
    for message in reversed(seen):
        text = message_text(message).strip()
        if text and isinstance(message, HumanMessage) and not _SAYS_GO.match(text):
            return "Open request: " + _shorten(text, _QUOTE)
        if text and isinstance(message, AIMessage):
            return _shorten(text, _QUOTE)
    return ""


# -- tool calls ------------------------------------------------------------------------------


def _calls(messages: Sequence[BaseMessage]) -> dict[str, list[dict[str, str]]]:
    work: dict[str, tuple[str, dict[str, str]]] = {}
    artifacts: dict[str, dict[str, str]] = {}
    for call, result in _paired(messages):
        section, item = _work_item(call, result)
        work.pop(item["id"], None)
        work[item["id"]] = (section, item)
        if section == "done":
            artifacts.update((a["uri"], a) for a in _artifacts(call))
    return {
        "done": [item for section, item in work.values() if section == "done"],
        "in_progress": [item for section, item in work.values() if section == "in_progress"],
        "artifacts": list(artifacts.values()),
    }


def in_order(items: Sequence[dict[str, str]], at: str, first: int = 0) -> list[dict[str, str]]:
    """Stamp the items of one fold a microsecond apart, so that they keep their order.

    Args:
        items: items of one section.
        at: the time of the fold.
        first: how many items of this fold came before.
    """
    start = datetime.fromisoformat(at.replace("Z", "+00:00"))
    return [
        {**item, "at": stamp(start + timedelta(microseconds=number))}
        for number, item in enumerate(items, first)
    ]


def _paired(messages: Sequence[BaseMessage]) -> list[tuple[dict[str, Any], BaseMessage | None]]:
    """Every tool call with its result, in the order of the calls; None: it never came."""
    pairs: list[tuple[dict[str, Any], BaseMessage | None]] = []
    open_at: dict[str, int] = {}
    for message, part in zip(messages, call_parts(messages), strict=True):
        # An old-style function call has a key but is no tool call: its result speaks for it.
        for call, key in zip(calls_of(message), part.makes, strict=False):
            open_at[key] = len(pairs)
            pairs.append((dict(call), None))
        index = open_at.pop(part.answers, None) if part.answers is not None else None
        if index is not None:
            pairs[index] = (pairs[index][0], message)
        elif part.answers is not None:
            src = getattr(message, "tool_call_id", "")
            pairs.append(({"name": message.name, "id": src}, message))
    return pairs


def _work_item(call: Mapping[str, Any], result: BaseMessage | None) -> tuple[str, dict[str, str]]:
    name = str(call.get("name") or "tool")
    args = call.get("args") or {}
    said = _shorten(f"{name}({_arguments(args)})", _CALL)
    item = {
        "id": new_id("done", name, json.dumps(args, sort_keys=True, default=str)),
        "by": "tool",
        "src": str(call.get("id") or ""),
    }
    if result is None:
        return "in_progress", {
            **item,
            "text": f"{said}: no result, outcome unknown",
            "outcome": "unknown",
        }
    answer = _shorten(_first_line(message_text(result)), _RESULT)
    if getattr(result, "status", "success") == "error":
        return "in_progress", {**item, "text": f"{said}: failed: {answer}", "outcome": "failed"}
    return "done", {**item, "text": f"{said} -> {answer}" if answer else said}


def _arguments(args: Any) -> str:
    """The arguments of a call; a plain text where the model got them wrong."""
    if not isinstance(args, Mapping):
        return _plain(args)
    return ", ".join(f"{name}={_plain(value)}" for name, value in args.items())


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _shorten(text: str, limit: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1].rstrip() + "…"


def _artifacts(call: Mapping[str, Any]) -> list[dict[str, str]]:
    name = str(call.get("name") or "")
    what = f"{'written' if _WRITES.search(name) else 'read'} by {name}"
    src = str(call.get("id") or "")
    return [
        {"uri": uri, "what": what, "by": "tool", "src": src}
        for uri in dict.fromkeys(_uris(call.get("args") or {}))
    ]


def _uris(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [uri for inner in value.values() for uri in _uris(inner)]
    if isinstance(value, (list, tuple)):
        return [uri for inner in value for uri in _uris(inner)]
    if not isinstance(value, str) or len(value) > 2000:
        return []
    urls = _URL.findall(value)
    rest = _URL.sub(" ", value)
    return [uri.rstrip(".,;:)") for uri in (*urls, *_PATH.findall(rest))]
