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
from handoff_graph.constraints import PROPOSED, active, proposals, retire
from handoff_graph.identifiers import akin, is_shown
from handoff_graph.schema import MARK, SECTIONS, WORK, Item, canonical, new_id
from handoff_graph.task import TaskUpdate
from handoff_graph.transcript import call_parts, calls_of, is_briefing, message_text, source_id
from handoff_graph.values import check_names, read_items, read_json, read_scalar, read_text

__all__ = ["Guarded", "guard"]

_LONGEST = 500  # characters of a text that a summarizer may add,
_MOST = 40  # items that it may add to a section in one fold,
_ROOM = 100  # items that a section may have for it to add another,
_LISTED = 20  # refusals that are listed, and
_SHOWN = 80  # characters of each
_LOOKED_AT = 20_000  # characters of a result that may show that an item is done

_OURS = frozenset({MARK, "revision", "updated", "rolled_up", "folds", "stamps", "at", "by"})
_SETTLED = frozenset({"objective", "title", "owner", "phase", "sessions", "reviews", "unsourced"})
_TEXTS = frozenset(Item.__annotations__) - {"also", "covers", "folds"}


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
        self.proposed = proposals(state)
        self.refused: list[str] = []
        self.put_back: list[str] = []
        self.update: dict[str, Any] = {}

    def run(self, summary: Mapping[str, Any]) -> Guarded:
        check_names(summary)
        by = read_text(summary, "by")
        for name, value in summary.items():
            if name in _OURS or name == "status" or value in ("", None, []):
                continue
            if name in SECTIONS and name not in _SETTLED:
                items = read_items(summary, name, by=by, clock=self.at, sequential=False)
                self._section(name, items)
            else:
                self._scalar(name, read_json(name, value))
        if summary.get("status") not in (None, "", "not_started"):  # which a blank state says
            self._status(read_scalar("status", summary["status"]))
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
            items = [*(summary.get(name) or ()), *(summary.get("done") or ())]
            named = {str(i.get("id")) for i in items if isinstance(i, Mapping)}
            for item in self.state[name]:
                if item["id"] not in named:
                    self._keep(name, item)

    def _keep(self, section: str, item: Mapping[str, Any]) -> None:
        self.put_back.append(f"{section} [{item['id']}] {_short(str(item['text']), _SHOWN)}")

    def _refuse(self, what: str, text: object) -> None:
        self.refused.append(f"{what}: {_short(str(text), _SHOWN)}")

    def _section(self, name: str, items: Sequence[Mapping[str, Any]]) -> None:
        rule: Callable[[str, dict[str, Any]], None]
        rule = self._work if name in WORK else getattr(self, f"_{name}", self._fact)
        for item in items[:_MOST]:
            texts = {k: v for k, v in item.items() if k in _TEXTS and isinstance(v, str)}
            rule(name, {**{k: _short(v, _LONGEST) for k, v in texts.items()}, "at": self.at})
        if len(items) > _MOST:
            self._refuse(f"more than {_MOST} items in {name}", f"{len(items) - _MOST} left out")

    def _scalar(self, name: str, value: Any) -> None:
        if name == "next_action":
            self.update[name] = _short(str(value), _LONGEST)
        elif name in _SETTLED:
            if value != self.state.get(name):
                self._refuse(f"{name} is not a summarizer's to change", value)
        elif len(name) + len(canonical(value)) > _LONGEST or (
            len({*self.state, *self.update}) >= _ROOM
        ):
            self._refuse("too much for a field", name)
        else:
            self.update[name] = value

    def _status(self, value: str) -> None:
        finished = {item["id"] for item in self.update.get("done", ())}
        is_open = any(
            item["id"] not in finished
            for name in ("in_progress", "blocked")
            for item in (*self.state[name], *self.update.get(name, ()))
        )
        nothing = not (finished or self.state["done"] or "done" in self.state["rolled_up"])
        if value == "abandoned" or (value == "done" and (is_open or nothing)):
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
            self._new("unsourced", {**apart, "by": "model", "at": self.at})
        for sentence, by, src in quoted:
            self._add(name, {"text": sentence, "by": by, "src": src, "at": self.at})

    def _quoted(self, text: str) -> list[tuple[str, str, str]]:
        """The whole sentences in which somebody said it: a part may say the opposite.

        Not those of code and quotes, which are nobody's words here, nor those that lift a rule.
        """
        wanted = _flat(text)
        lifting = {item["text"] for item in self.state["retirements"]}
        for src, message, whole in self.said:
            said = sentences(message_text(message)) if _has(whole, wanted) else ()
            found = [s for s in said if _meet(_flat(s), wanted) and s not in lifting]
            if found:
                by = "human" if isinstance(message, HumanMessage) else "system"
                return [(sentence, by, src) for sentence in found]
        return []

    def _retirements(self, name: str, item: dict[str, Any]) -> None:
        binding = {c["id"]: c["text"] for c in active(self.state)}
        rule = str(item.get("constraint", ""))
        if rule not in binding:
            self._refuse("retirement of an unknown constraint", rule or item["text"])
        if binding.get(rule) in {None, *self.proposed}:
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
                self._new("done", {**item, "evidence": proof})
                return
            self._refuse("done without evidence", item["text"])
            section, item = "in_progress", {**item, "outcome": outcome}
        self._new(section, item)

    def _known_work(
        self, section: str, item: dict[str, Any], was: str, before: Mapping[str, Any]
    ) -> None:
        kept = {"id": before["id"], "text": before["text"], "at": self.at}
        if section == was:
            return
        proof, outcome = self._proof(item, f"{before['text']} {item.get('text', '')}")
        if was == "done":  # open again only if what had worked fails now
            proof = str(item.get("src")) if self._fails(item, before["text"]) else ""
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
        if said and is_shown(text, said):
            return _short(said, _SHOWN), ""
        return "", "claimed"

    def _fails(self, item: Mapping[str, Any], text: str) -> bool:
        call = self.calls.get(str(item.get("src") or ""))
        return call is not None and call.outcome == "failed" and akin(text, call.text)

    def _artifacts(self, name: str, item: dict[str, Any]) -> None:
        """The newest story of a file counts, but where it is somebody else's."""
        item = self._attributed(item)
        held = next((a for a in self.state[name] if a["uri"] == item["uri"]), None)
        if held is None:
            self._new(name, {**item, "id": new_id(name, item["uri"])})
        elif held.get("by") in ("tool", "model") and held.get("what") != item.get("what"):
            self._add(name, {**item, "id": held["id"]})

    def _fact(self, name: str, item: dict[str, Any]) -> None:
        """Decisions, questions, notes, secrets: new ones come in, known ones stay as they are."""
        word = "name" if name == "secrets" else "text"
        known = {entry[key] for entry in self.state[name] for key in ("id", word)}
        item = {**self._attributed(item), "id": new_id(name, item[word])}
        if not known & {item["id"], item[word]}:
            self._new(name, item)

    def _attributed(self, item: dict[str, Any]) -> dict[str, Any]:
        """The item as the summarizer's own: nobody else speaks through it."""
        shown = item.get("src") in self.calls
        return {**item, "by": "tool" if shown and item.get("by") == "tool" else "model"}

    def _new(self, section: str, item: Mapping[str, Any]) -> None:
        if len(self.state[section]) + len(self.update.get(section, ())) < _ROOM:
            self._add(section, item)
        else:
            self._refuse(f"no room in {section}", item.get("text") or item.get("uri"))

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
    return _has(wanted, sentence) or _has(sentence, wanted)


def _has(text: str, part: str) -> bool:
    """Whether a text has this part, from the beginning of a word to the end of one."""
    return part in text and re.search(rf"(?<!\w){re.escape(part)}(?!\w)", text) is not None


def _flat(text: str) -> str:
    return " ".join(text.split())


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"
