"""The ledger document: a task state as markdown that people and agents read. Pure.

One fact a line, stable ids and order: two renderings of one revision are the same bytes, and
`git diff` of a ledger reads as a change log. What a section holds is data; a text from a tool
or a person stays on its line and cannot start a heading, an item or front matter.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from handoff_graph.briefing import plain_line
from handoff_graph.constraints import active, proposals, retired

__all__ = ["FrontMatter", "ledger_name", "read_front_matter", "render_ledger"]

VERSION = 1

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]*\Z")
# What YAML would read as a number, a date or a truth value, and not as a text.
_NOT_TEXT = re.compile(
    r"(?i)(?:true|false|null|yes|no|on|off|y|n|[\d_.]+(?:e[-+]?\d+)?|0[xob][\da-f_]+"
    r"|\d{4}-\d\d?-\d\d?.*|\.?(?:inf|nan))\Z"
)


class FrontMatter(NamedTuple):
    """What a ledger file says of itself, as far as it could be read."""

    thread: str | None
    revision: int | None
    checkpoint: str | None
    intact: bool
    """Whether the file is still the one that was exported."""


def render_ledger(state: Mapping[str, Any], *, thread: str, checkpoint: str, updated: str) -> str:
    """Render a ledger.

    Args:
        state: the task state.
        thread: the thread id.
        checkpoint: the checkpoint id that this revision was written with.
        updated: the stamp of the revision.

    Returns:
        The whole document, front matter included.
    """
    body = "".join(f"{line}\n" for line in _body(state, thread)).rstrip("\n") + "\n"
    head = {
        "handoff_ledger": VERSION,
        "thread": thread,
        "status": state["status"],
        "owner": state["owner"],
        "revision": state["revision"],
        "checkpoint": checkpoint,
    }
    lines = "".join(f"{key}: {_yaml(value)}\n" for key, value in head.items())
    lines += f"updated: {plain_line(updated)}\n"
    return f"---\n{lines}digest: {_digest(lines, body)}\n---\n{body}"


def _digest(head: str, body: str) -> str:
    """A digest of all that a person could edit: front matter (but for the digest) and body."""
    return "sha256:" + hashlib.sha256(f"{head}---\n{body}".encode()).hexdigest()[:16]


def _yaml(value: object) -> str:
    text = str(value)
    if isinstance(value, int) or (_PLAIN.match(text) and not _NOT_TEXT.match(text)):
        return text
    return json.dumps(text)  # a JSON string is a YAML string


def read_front_matter(text: str) -> FrontMatter | None:
    """Read what a ledger says of itself; None if it has no front matter of a ledger."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    head, mark, body = text.removeprefix("---\n").partition("\n---\n")
    if not text.startswith("---\n") or not mark:
        return None
    fields = {}
    rest = "".join(f"{line}\n" for line in head.split("\n") if not line.startswith("digest:"))
    for line in head.split("\n"):
        key, colon, value = line.partition(":")
        if colon:
            fields[key.strip()] = _unquoted(value.strip())
    if "handoff_ledger" not in fields:
        return None
    revision = fields.get("revision", "")
    return FrontMatter(
        fields.get("thread"),
        int(revision) if revision.isdecimal() else None,
        fields.get("checkpoint"),
        fields.get("digest") == _digest(rest, body),
    )


def _unquoted(value: str) -> str:
    if value.startswith('"'):
        try:
            return str(json.loads(value))
        except ValueError:
            return value
    return value


# -- the body --------------------------------------------------------------------------------


def _body(state: Mapping[str, Any], thread: str) -> list[str]:
    lines = [f"# Task: {_data(state['title'] or thread)}", ""]
    if state["objective"]:
        lines += ["## Objective", _data(state["objective"]), ""]
    lines += _rules(state)
    for heading, section, render in _SECTIONS:
        items = state[section]
        rolled = int(state["rolled_up"].get(section, {}).get("count", 0))
        if not items and not rolled:
            continue
        lines.append(f"## {heading}")
        if rolled:
            lines.append(f"*{rolled} earlier ones are in the journal: `handoff log`.*")
            lines.append("")
        lines += [render(item) for item in items]
        lines.append("")
    if state["next_action"]:
        lines += ["## Next action", _data(state["next_action"]), ""]
    if state["sessions"]:
        lines += [
            "## Sessions",
            "| owner | from | to | tool calls | handed off because |",
            "| --- | --- | --- | ---: | --- |",
        ]
        lines += [_session(session) for session in state["sessions"]]
        lines.append("")
    return [*lines, *_drift(state)]


def _rules(state: Mapping[str, Any]) -> list[str]:
    """What binds, what somebody proposes to lift, and, folded away, what does not any more."""
    lines = [_rule(rule) for rule in active(state)]
    for item in proposals(state).values():
        rule = f"- retirement of [{_inline(item['constraint'])}] proposed{_by(item)}"
        lines.append(f"{rule}: {_inline(item['text'])} (it binds until a person confirms)")
    gone = retired(state)
    if gone:
        whys = {i["rule"]: i for i in state["retirements"] if i.get("standing") == "confirmed"}
        lines += ["", "<details><summary>Retired constraints</summary>", ""]
        for old in gone:
            item = whys[old["text"]]
            lines.append(f"{_said(old)}; retired{_by(item)}: {_inline(item['text'])}")
        lines += ["", "</details>"]
    return ["## Constraints", *lines, ""] if lines else []


def _drift(state: Mapping[str, Any]) -> list[str]:
    """What the guard did in the last fold of each transcript, if it did anything."""
    lines: list[str] = []
    for channel, entry in state["folds"].items():
        report = entry.get("drift", {})
        for name, said in _REPORTS.items():
            if report.get(name):
                listed = "; ".join(_inline(line) for line in report[name])
                lines.append(f"- {_inline(channel)}, fold {entry['n']}: {said}: {listed}")
    return ["## Last fold", *lines] if lines else []


_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_OPENS = re.compile(r"^(?=[#>|\-+*=~`<\[]|\d+[.)]\s)")


def _data(text: object) -> str:
    """A text as one line of data: no line of its own, no markup at its start, no tags."""
    return _OPENS.sub(r"\\", _inline(text))


def _inline(text: object) -> str:
    """A text within a line that has already begun."""
    return _TAG.sub("&lt;", plain_line(str(text)))


def _code(text: object) -> str:
    return "`" + plain_line(str(text)).replace("`", "'") + "`"


def _by(item: Mapping[str, Any]) -> str:
    if not item.get("by"):
        return ""
    day = f", {_inline(item['at'])[:10]}" if item.get("at") else ""
    return f" — {_inline(item['by'])}{day}"


def _done(item: Mapping[str, Any]) -> str:
    return f"- [x] [{_inline(item['id'])}] {_inline(item['text'])}"


def _open(item: Mapping[str, Any]) -> str:
    claim = " (claimed done, no evidence)" if item.get("outcome") == "claimed" else ""
    return f"- [ ] [{_inline(item['id'])}] {_inline(item['text'])}{claim}"


def _blocked(item: Mapping[str, Any]) -> str:
    needs = f": needs {_inline(item['needs'])}" if item.get("needs") else ""
    return f"- [{_inline(item['id'])}] {_inline(item['text'])}{needs}"


def _said(item: Mapping[str, Any]) -> str:
    return f"- [{_inline(item['id'])}] {_inline(item['text'])}{_by(item)}"


def _rule(item: Mapping[str, Any]) -> str:
    scope = _SCOPES.get(str(item.get("scope")), "")
    return f"- [{_inline(item['id'])}] {_inline(item['text'])}{scope}{_by(item)}"


_SCOPES = {
    "step": " (for the step only in which it was said)",
    "unclear": " (standing, or for one step only? please review)",
}


def _decision(item: Mapping[str, Any]) -> str:
    why = f"; because {_inline(item['why'])}" if item.get("why") else ""
    return f"- [{_inline(item['id'])}] {_inline(item['text'])}{why}{_by(item)}"


def _artifact(item: Mapping[str, Any]) -> str:
    return f"- {_code(item['uri'])}" + (f" — {_inline(item['what'])}" if item.get("what") else "")


def _secret(item: Mapping[str, Any]) -> str:
    where = f": {_inline(item['where'])}" if item.get("where") else ""
    return f"- {_inline(item['name'])}{where} (never in this file)"


def _session(item: Mapping[str, Any]) -> str:
    cells = (
        item["owner"],
        str(item.get("from", ""))[:16],
        str(item.get("to", ""))[:16],
        item.get("tool_calls", 0),
        item.get("why", ""),
    )
    return "| " + " | ".join(_inline(cell).replace("|", "\\|") for cell in cells) + " |"


_REPORTS = {
    "put_back": "put back",
    "refused": "refused",
    "missing": "named more than once, and not in the record",
}
_SECTIONS = (
    ("Done", "done", _done),
    ("In progress", "in_progress", _open),
    ("Blocked", "blocked", _blocked),
    ("Decisions", "decisions", _decision),
    ("Open questions", "open_questions", _said),
    ("Artifacts", "artifacts", _artifact),
    ("Secrets handling", "secrets", _secret),
    ("Notes", "notes", _said),
    ("Said by a model without a source (no rules)", "unsourced", _said),
    ("Reviews", "reviews", _said),
)


# -- file names ------------------------------------------------------------------------------

_SAFE = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}\Z")
_DERIVED = re.compile(r"-[0-9a-f]{12}\Z")
_DEVICES = {"con", "prn", "aux", "nul", *(f"{d}{n}" for d in ("com", "lpt") for n in range(10))}


def ledger_name(thread: str) -> str:
    """The file name of a thread's ledger: one name per thread, on every file system.

    A thread id that is a plain lower-case name is used as it is. Any other is slugged, and
    told apart by twelve digits of its SHA-256; plain ids that look so are slugged too, hence
    no two threads share a name, not even where file names ignore case.

    Example:
        >>> ledger_name("migration-postgres-west")
        'migration-postgres-west.md'
        >>> ledger_name("../../etc/passwd")
        'etc-passwd-3754d6cb3a38.md'
    """
    plain = _SAFE.match(thread) and not _DERIVED.search(thread) and not thread.endswith(".")
    if plain and thread.partition(".")[0] not in _DEVICES:
        return f"{thread}.md"
    digest = hashlib.sha256(thread.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    slug = re.sub(r"[^a-z0-9]+", "-", thread.lower())[:60].strip("-") or "thread"
    return f"{slug}-{digest}.md"
