"""How the journal's text is stored: as it is, or as secret as the checkpoints are."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["ENCRYPTED", "PLAIN", "Codec", "dumps", "storable"]


class Codec(NamedTuple):
    """How the journal's text is stored, such as encrypted."""

    dumps: Callable[[str], str]
    loads: Callable[[str], str]


ENCRYPTED = "(encrypted)"
"""Stands in `handoff_threads` for a title that only the codec could show."""

PLAIN = Codec(str, str)
"""Text as it is."""


def dumps(value: Any) -> str:
    """A value as JSON that any database can store."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # Half a surrogate pair has no UTF-8; escaped, it is JSON that any database stores.
    return text if storable(text) == text else json.dumps(value, separators=(",", ":"))


def storable(text: str) -> str:
    """The text without what a database's text column cannot hold."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
