"""What the command prints: colours and tables on a terminal, plain lines into a pipe."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from handoff_graph.briefing import plain_line
from handoff_graph.constraints import active

if TYPE_CHECKING:
    from handoff_graph.catalog import Revision

__all__ = ["answer", "line", "on_terminal", "revision", "state", "table"]

JSON_VERSION = 1

_STATUS = {"done": "green", "blocked": "red", "in_progress": "cyan", "abandoned": "bright_black"}
_BAD = {"failed", "missing", "behind", "ahead", "edited", "foreign", "unreadable"}
_WORD = 11  # characters of a cell that a table never folds: as long as the longest status
_MARKS = {"done": ("+", "green"), "blocked": ("!", "red"), "constraints": ("§", "yellow")}


def on_terminal() -> bool:
    """Whether standard output is a terminal that wants colours."""
    if sys.stdout is None or not sys.stdout.isatty():
        return False
    return "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def line(text: str, *, err: bool = False, **style: Any) -> None:
    """Print one line. All that the command says comes through here or through `table`, since
    a thread id, a path or an argument may hold what would steer the terminal."""
    plain = plain_line(text)
    click.echo(_styled(plain, **style) if style else plain, err=err)


def answer(verb: str, data: Any) -> None:
    """Print the answer of a verb in JSON, in an envelope that names its version."""
    click.echo(json.dumps({"handoff": JSON_VERSION, "verb": verb, "data": data}, indent=2))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows as a table, or tab-separated where nobody looks at them."""
    rows = [[plain_line(cell) for cell in row] for row in rows]
    if not on_terminal():
        for row in (head, *rows):
            click.echo("\t".join(row))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = Console()
    first, *others = _widths(head, rows)
    needed = min(first, 2 * _WORD) + sum(min(width, _WORD) + 2 for width in others)
    if terminal.width < needed:
        _stacked(head, rows)
        return
    grid = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name, width in zip(head, _widths(head, rows), strict=True):
        grid.add_column(name, overflow="fold", no_wrap=width <= _WORD)
    for row in rows:
        grid.add_row(*(Text(cell, style=_style(cell)) for cell in row))
    terminal.print(grid)


def _widths(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(head, *rows, strict=True)]


def _stacked(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for first, *rest in rows:
        line(first, bold=True)
        for name, cell in zip(head[1:], rest, strict=True):
            if cell:
                click.echo(f"  {name}: " + _styled(cell, fg=_style(cell) or None))


def _style(cell: str) -> str:
    return "red" if cell in _BAD else _STATUS.get(cell, "")


def state(task: Mapping[str, Any], thread: str) -> None:
    """Print a task state, section by section, one item a line."""
    _heading(task["title"] or thread)
    for label, name in (("objective", "objective"), ("status", "status"), ("owner", "owner")):
        if task[name]:
            colour = _STATUS.get(task[name]) if name == "status" else None
            click.echo(f"{label}: " + _styled(plain_line(task[name]), fg=colour))
    line(f"revision: {task['revision']}, {task['updated'][:16].replace('T', ' ')} UTC")
    for section in (
        "constraints",
        "in_progress",
        "blocked",
        "done",
        "decisions",
        "open_questions",
        "artifacts",
        "secrets",
        "notes",
    ):
        items = active(task) if section == "constraints" else task[section]
        rolled = task["rolled_up"].get(section, {}).get("count", 0)
        if not items and not rolled:
            continue
        _heading(section.replace("_", " "))
        if rolled:
            line(f"  ({rolled} earlier ones: handoff log {thread})")
        for item in items:
            click.echo("  " + _line(section, item))
    if task["next_action"]:
        _heading("next action")
        line("  " + task["next_action"])


def revision(entry: Revision) -> None:
    """Print one revision of the journal and what it changed."""
    when = entry.at[:19].replace("T", " ")
    title = f"revision {entry.revision}  {when} UTC  {entry.owner}  {entry.reason}"
    line(title, bold=True)
    for name, value in entry.change.get("set", {}).items():
        if name in ("title", "objective", "status", "owner", "next_action", "phase"):
            line(f"    {name.replace('_', ' ')}: {value}")
    for section, items in entry.change.get("items", {}).items():
        for item in items if section != "sessions" else ():
            click.echo("  " + _line(section, item))
    for section, items in entry.change.get("unlisted", {}).items():
        for item in items:
            click.echo("  " + _line(section, item))
    for section, ids in entry.change.get("gone", {}).items():
        line(f"  - {section.replace('_', ' ')}: {', '.join(ids)} rolled up")


def _line(section: str, item: Mapping[str, Any]) -> str:
    mark, colour = _MARKS.get(section, ("*", None))
    said = item.get("text") or item.get("uri") or item.get("name") or ""
    extras = [f"{key}: {item[key]}" for key in ("needs", "why", "what", "where") if item.get(key)]
    by = f" — {item['by']}" if item.get("by") else ""
    rest = f" ({'; '.join(extras)})" if extras else ""
    return _styled(mark, fg=colour) + plain_line(f" [{item['id']}] {said}{rest}{by}")


def _heading(text: str) -> None:
    line(text, bold=True)


def _styled(text: str, **style: Any) -> str:
    return click.style(text, **style) if on_terminal() else text
