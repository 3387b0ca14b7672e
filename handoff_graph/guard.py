"""What of a summary may reach the task state. Pure, and under every summarizer, however bad.

A summarizer proposes; this disposes. It may add what it can show: a rule with the person's own
words, a finished item with a tool call that succeeded or a person's message. It may not reword,
reopen, drop or renumber what is recorded, retire a rule, change the objective or touch the
bookkeeping. What it may not do is refused and listed, not raised: the rest of it still counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from handoff_graph.binding import sentences
from handoff_graph.constraints import PROPOSED, retire
from handoff_graph.schema import MARK, SECTIONS, WORK, new_id
from handoff_graph.task import TaskUpdate
from handoff_graph.transcript import call_parts, calls_of, is_briefing, message_text, source_id
from handoff_graph.values import check_names, read_items, read_json, read_text

__all__ = ["Guarded", "guard"]

_LONGEST = 500  # characters of a text that a summarizer may add,
_MOST = 40  # items that it may add to a section in one fold,
_LISTED = 20  # refusals that are listed, and
_SHOWN = 80  # characters of each
_LOOKED_AT = 20_000  # characters of a result that may show that an item is done

_OURS = frozenset({MARK, "revision", "updated", "rolled_up", "folds", "stamps", "at", "by"})
_SETTLED = frozenset({"objective", "title", "owner", "phase", "sessions", "reviews", "unsourced"})
_WORD = re.compile(r"[^\W_]+")
_STEM = 4  # letters by which two words are taken for the same


class _Window(Protocol):
    """What is being folded (as in `summarize.Folding`)."""

    @property
    def folded(self) -> Sequence[BaseMessage]: ...

    @property
    def tail(self) -> Sequence[BaseMessage]: ...

    @property
    def at(self) -> str: ...


class Guarded(NamedTuple):
    """What of a summary counts.

    Attributes:
        update: what may reach the task state.
        refused: what may not, each in a line.
        put_back: what a summary that gives the whole state has left out or reworded, and stays.
    """

    update: TaskUpdate
    refused: list[str]
    put_back: list[str]


class _Call(NamedTuple):
    outcome: str  # "ok", "failed" or "unknown"
    text: str


def guard(state: Mapping[str, Any], window: _Window, summary: Mapping[str, Any]) -> Guarded:
    """Let through what a summary may change.

    Args:
        state: the task state, with what people said in the window recorded in it.
        window: the messages that the summary is of.
        summary: what a summarizer returned.

    Raises:
        InvalidTask: a field of it breaks the schema.

    Returns:
        An update under the window's time, and what was refused.
    """
    return _Guard(state, window).run(summary)


class _Guard:
    def __init__(self, state: Mapping[str, Any], window: _Window) -> None:
        self.state = state
        self.at = window.at
        seen = [m for m in (*window.folded, *window.tail) if not is_briefing(m)]
        self.calls = _calls(seen)
        said = [m for m in seen if isinstance(m, (HumanMessage, SystemMessage))]
        self.said = [(source_id(m), m, _flat(message_text(m))) for m in said]
        self.people = {key: text for key, m, text in self.said if isinstance(m, HumanMessage)}
        self.work = {item["id"]: (name, item) for name in WORK for item in state[name]}
        self.refused: list[str] = []
        self.put_back: list[str] = []
        self.update: dict[str, Any] = {}

    def run(self, summary: Mapping[str, Any]) -> Guarded:
        check_names(summary)
        by = read_text(summary, "by")
        for name, value in summary.items():
            if name in _OURS or value in ("", None, []):
                continue
            if name in SECTIONS and name not in _SETTLED:
                items = read_items(summary, name, by=by, clock=self.at, sequential=False)
                self._section(name, items)
            else:
                self._scalar(name, read_json(name, value))
        if MARK in summary:
            self._left_out(summary)
        update = {name: value for name, value in self.update.items() if value}
        return Guarded(
            {**update, "at": self.at},  # type: ignore[typeddict-item]
            _some(self.refused),
            _some(self.put_back),
        )

    def _left_out(self, summary: Mapping[str, Any]) -> None:
        """A summary that gives a whole state says by omission that the rest is gone."""
        for name in ("constraints", "in_progress", "blocked"):
            named = {str(i.get("id")) for i in summary.get(name, ()) if isinstance(i, Mapping)}
            moved = {str(i.get("id")) for i in summary.get("done", ()) if isinstance(i, Mapping)}
            for item in self.state[name]:
                if item["id"] not in named | moved:
                    self._keep(name, item)

    def _keep(self, section: str, item: Mapping[str, Any]) -> None:
        self.put_back.append(f"{section} [{item['id']}] {_short(str(item['text']), _SHOWN)}")

    def _refuse(self, what: str, text: object) -> None:
        self.refused.append(f"{what}: {_short(str(text), _SHOWN)}")

    def _section(self, name: str, items: Sequence[Mapping[str, Any]]) -> None:
        rule: Callable[[str, dict[str, Any]], None]
        rule = self._work if name in WORK else getattr(self, f"_{name}", self._fact)
        for item in items[:_MOST]:
            given = {k: _short(v, _LONGEST) if isinstance(v, str) else v for k, v in item.items()}
            given.pop("_raw", None)
            rule(name, {**given, "at": self.at})
        if len(items) > _MOST:
            self._refuse(f"more than {_MOST} items in {name}", f"{len(items) - _MOST} left out")

    def _scalar(self, name: str, value: Any) -> None:
        if name == "next_action":
            self.update[name] = _short(str(value), _LONGEST)
        elif name == "status":
            self._status(value)
        elif name in _SETTLED:
            if value != self.state.get(name):
                self._refuse(f"{name} is not a summarizer's to change", value)
        else:
            self.update[name] = value

    def _status(self, value: Any) -> None:
        is_open = any(self.state[name] for name in ("in_progress", "blocked"))
        if value in ("done", "abandoned") and (value == "abandoned" or is_open):
            self._refuse("status without evidence", value)
        else:
            self.update["status"] = value

    # -- rules -----------------------------------------------------------------------------

    def _constraints(self, name: str, item: dict[str, Any]) -> None:
        known = {c["id"]: c for c in self.state["constraints"]}
        if item["text"] in {c["text"] for c in known.values()}:
            return
        if item["id"] in known:
            self._keep(name, known[item["id"]])
        quoted = self._quoted(item["text"])
        if not quoted:
            self._refuse("constraint without a source", item["text"])
            apart = {"text": item["text"], "id": new_id("unsourced", item["text"])}
            self._add("unsourced", {**apart, "by": "model", "at": self.at})
        for sentence, by, src in quoted:
            self._add(name, {"text": sentence, "by": by, "src": src, "at": self.at})

    def _quoted(self, text: str) -> list[tuple[str, str, str]]:
        """The whole sentences in which somebody said it: a part may say the opposite."""
        wanted = _flat(text)
        for src, message, whole in self.said:
            if wanted in whole:
                by = "human" if isinstance(message, HumanMessage) else "system"
                found = [s for s in sentences(message_text(message)) if _meet(_flat(s), wanted)]
                return [(sentence, by, src) for sentence in found]
        return []

    def _retirements(self, name: str, item: dict[str, Any]) -> None:
        known = {c["id"] for c in self.state["constraints"]}
        rule = str(item.get("constraint", ""))
        if rule not in known:
            self._refuse("retirement of an unknown constraint", rule or item["text"])
            return
        src = str(item.get("src", ""))
        proposal = retire(
            self.state, rule, why=item["text"], by="model", src=src, at=self.at, standing=PROPOSED
        )
        self.update.setdefault(name, []).extend(proposal["retirements"])

    def _work(self, section: str, item: dict[str, Any]) -> None:
        held = self.work.get(item["id"]) or self._same(item.get("text", ""))
        if held is None and not item.get("text"):
            self._refuse(f"{section} names an unknown item", item["id"])
        elif held is None:
            self._new_work(section, item)
        else:
            self._known_work(section, item, *held)

    def _new_work(self, section: str, item: dict[str, Any]) -> None:
        item = {**self._attributed(item), "id": new_id(section, item["text"])}
        if section == "done":
            proof, outcome = self._proof(item, item["text"])
            if proof:
                self._add("done", {**item, "evidence": proof})
                return
            self._refuse("done without evidence", item["text"])
            section, item = "in_progress", {**item, "outcome": outcome}
        self._add(section, item)

    def _known_work(
        self, section: str, item: dict[str, Any], was: str, before: Mapping[str, Any]
    ) -> None:
        kept = {"id": before["id"], "text": before["text"], "at": self.at}
        if section == was:
            return
        proof, outcome = self._proof(item, f"{before['text']} {item.get('text', '')}")
        if section == "in_progress" and was == "done" and outcome == "failed":
            proof = str(item.get("src"))  # what had worked fails now
        if section == "blocked" and was == "in_progress":
            needs = {"needs": item["needs"]} if item.get("needs") else {}
            self._add("blocked", {**before, **kept, **needs})
        elif proof:
            extra = {"evidence": proof} if section == "done" else {}
            rest = {k: v for k, v in before.items() if k not in ("needs", "outcome")}
            self._add(section, {**rest, **kept, **extra})
        else:
            self._refuse(f"{was} -> {section} without evidence", before["text"])
            if section == "done":
                self._add(was, {**before, **kept, "outcome": outcome})

    def _same(self, text: str) -> tuple[str, Mapping[str, Any]] | None:
        return next((held for held in self.work.values() if held[1]["text"] == text), None)

    def _proof(self, item: Mapping[str, Any], text: str) -> tuple[str, str]:
        """What shows that an item is done, and else what is to be said of it."""
        src = str(item.get("evidence") or item.get("src") or "")
        call = self.calls.get(src)
        if call is not None and call.outcome != "ok":
            return "", call.outcome
        said = call.text if call is not None else self.people.get(src, "")
        if said and _is_shown(text, said):
            return _short(said, _SHOWN), ""
        return "", "claimed"

    def _artifacts(self, name: str, item: dict[str, Any]) -> None:
        self._add(name, self._attributed(item))

    def _fact(self, name: str, item: dict[str, Any]) -> None:
        """Decisions, questions, notes, secrets: new ones come in, known ones stay as they are."""
        known = {entry["id"]: entry for entry in self.state[name]}
        word = "name" if name == "secrets" else "text"
        item = {**self._attributed(item), "id": new_id(name, item[word])}
        if item["id"] not in known:
            self._add(name, item)

    def _attributed(self, item: dict[str, Any]) -> dict[str, Any]:
        """The item as the summarizer's own: nobody else speaks through it."""
        shown = item.get("src") in self.calls
        return {**item, "by": "tool" if shown and item.get("by") == "tool" else "model"}

    def _add(self, section: str, item: Mapping[str, Any]) -> None:
        self.update.setdefault(section, []).append(dict(item))


def _calls(messages: Sequence[BaseMessage]) -> dict[str, _Call]:
    """Every tool call by its id: how it ended, its name, arguments and the start of its result."""
    found: dict[str, _Call] = {}
    ids: dict[str, str] = {}
    for message, part in zip(messages, call_parts(messages), strict=True):
        for call, key in zip(calls_of(message), part.makes, strict=False):
            ids[key] = str(call.get("id") or "")
            found[ids[key]] = _Call("unknown", f"{call.get('name')} {call.get('args')}")
        if part.answers is not None:
            key = ids.get(part.answers, str(getattr(message, "tool_call_id", "")))
            asked = found.get(key, _Call("", str(message.name or ""))).text
            outcome = "failed" if getattr(message, "status", "") == "error" else "ok"
            result = message_text(message)[:_LOOKED_AT]
            found[key] = _Call(outcome, _flat(f"{asked} -> {result}"))
    found.pop("", None)
    return found


def _some(lines: list[str]) -> list[str]:
    more = len(lines) - _LISTED
    return lines if more <= 0 else [*lines[:_LISTED], f"and {more} more"]


def _meet(sentence: str, wanted: str) -> bool:
    return sentence in wanted or wanted in sentence


def _is_shown(claim: str, evidence: str) -> bool:
    """Whether half the words of a claim, and all its numbers, are in what is to show it.

    No proof, but an invention seldom has either, and what is refused stays open and is told.
    """
    wanted, there = _words(claim), _words(evidence)
    numbers = {word for word in wanted if not word.isalpha() and len(word) > 1}
    return bool(wanted) and numbers <= there and 2 * len(wanted & there) >= len(wanted)


def _words(text: str) -> set[str]:
    """The stems of the longer words, and whatever has a digit in it."""
    words = [word.lower() for word in _WORD.findall(text)]
    return {w[:_STEM] for w in words if len(w) >= _STEM} | {w for w in words if not w.isalpha()}


def _flat(text: str) -> str:
    return " ".join(text.split())


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"
