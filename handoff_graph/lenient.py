"""Reads the JSON object out of what a model wrote: pure, text in, object out.

Models that have no structured output put prose or a code fence around the object, leave a
comma too many, or are cut off in the middle. All of that can be read without a guess about
what they meant; anything else is a `ValueError` that can be shown to them.
"""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["read_object"]

_STARTS = 50  # braces that are tried as the object's beginning: text full of them stays cheap
_DEEPEST = 50  # levels that are mended
_DECODER = json.JSONDecoder(strict=False)  # takes line breaks within strings
_STOPS = re.compile(r'["{}\[\],]')
_STRING_ENDS = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def read_object(text: str) -> dict[str, Any]:
    """The JSON object in a text.

    Of several the longest is taken: the others are examples or remarks. An object that was cut
    off is read up to the last entry that is complete; an item is never read by half.

    Args:
        text: what the model wrote.

    Raises:
        ValueError: there is no object in it.

    Example:
        >>> read_object('Sure! ```json\\n{"done": [{"text": "a"},]}\\n``` Anything else?')
        {'done': [{'text': 'a'}]}
        >>> read_object('{"done": [{"text": "a"}, {"text": "b", "evid')
        {'done': [{'text': 'a'}]}
    """
    best: dict[str, Any] | None = None
    longest, at = 0, text.find("{")
    for _ in range(_STARTS):
        if at < 0:
            break
        found, end = _object_at(text, at)
        if found is not None and end - at > longest:
            best, longest = found, end - at
        at = text.find("{", at + 1 if found is None else end)
    if best is None:
        raise ValueError("there is no JSON object in it")
    return best


def _object_at(text: str, start: int) -> tuple[dict[str, Any] | None, int]:
    """The object that begins here and where it ends; None if none does."""
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        pass  # not as it stands
    mended, end = _mended(text, start)
    try:
        found = _DECODER.decode(mended)
    except (ValueError, RecursionError):
        return None, start
    return found, end


def _mended(text: str, start: int) -> tuple[str, int]:
    """The text of the object without superfluous commas, closed where it was cut off."""
    parts: list[str] = []
    closers: list[str] = []
    whole = (0, "")  # how many parts are complete, and what would close them
    at = start
    while stop := _STOPS.search(text, at):
        mark = stop.group()
        parts.append(text[at : stop.start()])
        at = stop.end()
        if mark in "{[":
            if len(closers) == _DEEPEST:
                break
            closers.append("}" if mark == "{" else "]")
        elif mark in "}]":
            if closers[-1] != mark:
                break  # what follows belongs to something else
            closers.pop()
            _drop_comma(parts)
        elif mark == '"':
            string = _STRING_ENDS.match(text, at)
            if string is None:
                break
            mark += string.group()
            at = string.end()
        if mark == "," and _between_entries(closers):
            whole = (len(parts), "".join(reversed(closers)))
        parts.append(mark)
        if not closers:
            return "".join(parts), at
        if mark in "}]" and _between_entries(closers):
            whole = (len(parts), "".join(reversed(closers)))
    return "".join(parts[: whole[0]]) + whole[1], len(text)


def _between_entries(closers: list[str]) -> bool:
    """Whether this is a place in the object itself, or in a list that is a field of it."""
    return closers in (["}"], ["}", "]"])


def _drop_comma(parts: list[str]) -> None:
    while len(parts) > 1 and not parts[-1].strip():
        parts.pop()
    if parts[-1] == ",":
        parts.pop()
