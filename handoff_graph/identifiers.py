"""Names that must not get lost in a summary: paths, tables, hosts, ids, codes, quantities.

And whether two texts may speak of the same. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

__all__ = ["akin", "identifiers", "is_shown", "repeated"]

# Bounded on every side, so that each takes linear time on any text.
_KINDS = (
    r"[a-z][a-z0-9+.-]{1,15}://[^\s\"'<>|`]{3,200}",  # URLs
    r"(?:\.{0,2}/|~/)?[\w.@-]{1,80}(?:/[\w.@-]{1,80}){1,12}",  # paths
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",  # UUIDs
    r"[A-Za-z_]\w{0,60}(?:\.[A-Za-z_]\w{0,60}){1,8}",  # tables, modules, hosts, files
    r"[a-z0-9]{1,40}(?:[_-][a-z0-9]{1,40}){1,8}",  # snake_case, host-01
    r"[A-Z]{1,10}[-_]?\d{2,10}",  # ORA-01555, E1234, JIRA-12
    r"[A-Z][A-Z0-9]{1,40}(?:_[A-Z0-9]{1,40}){1,8}",  # DB_PASSWORD, CONNECTION_REFUSED
    r"\d{1,12}(?:[.,]\d{1,6})?\s?(?:ms|s|min|h|[KMGT]i?B|kB|%|rows|GB|MB)",  # quantities
    r"\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?",  # addresses
)
_IDENTIFIER = re.compile("|".join(rf"(?<![\w./@-])(?:{kind})(?![\w@]|[./-]\w)" for kind in _KINDS))
_WORD = re.compile(r"[^\W_]+")
_STEM = 4  # letters by which two words are taken for the same
_DIGITS = 3  # of a number that tells one thing from another
_COMMON = re.compile(  # stems of words that stand in any text
    "abou|afte|also|been|befo|done|from|have|into|just|like|more|most|only|othe|over|same|some"
    "|succ|such|than|that|thei|them|then|ther|thes|they|this|thos|unti|upon|very|want|were|what"
    "|when|wher|whic|will|with|woul|your"
)
_LONGEST = 20_000  # characters of one text that are looked at


def identifiers(text: str) -> list[str]:
    """The identifiers in a text, in order, with repetitions.

    Args:
        text: any text; its first 20,000 characters are looked at.

    Example:
        >>> identifiers("copied public.users to db-02 in 310 ms, see sql/fix.sql; ORA-01555")
        ['public.users', 'db-02', '310 ms', 'sql/fix.sql', 'ORA-01555']
    """
    return [found.group() for found in _IDENTIFIER.finditer(text[:_LONGEST])]


def repeated(texts: Iterable[str], known: str, most: int = 10) -> list[str]:
    """The identifiers that occur in more than one of the texts and nowhere in another.

    Args:
        texts: what was folded, message by message.
        known: what is known after it.
        most: how many to return at most, the most frequent first.
    """
    counts = Counter(name for text in texts for name in set(identifiers(text)))
    missing = [(n, name) for name, n in counts.items() if n > 1 and not _is_in(name, known)]
    return [name for _, name in sorted(missing, key=lambda pair: (-pair[0], pair[1]))[:most]]


def _is_in(name: str, text: str) -> bool:
    """Whether a text has this name, and not merely a longer one."""
    whole = rf"(?<![\w-]){re.escape(name)}(?![\w-])"
    return name in text and re.search(whole, text) is not None


def akin(text: str, other: str) -> bool:
    """Whether two texts may speak of the same thing: they share a word that tells something.

    Example:
        >>> akin("Copied the users table", "copy_table(name=users) -> ok"), akin("with it", "with")
        (True, False)
    """
    return bool(_words(text) & _words(other))


def is_shown(claim: str, evidence: str) -> bool:
    """Whether half the telling words of a claim, and all its numbers, are in its evidence.

    No proof, but an invention seldom has either, and what is refused stays open and is told.

    Example:
        >>> is_shown("Copied 120 rows of users", "copy_table(name=users) -> 120 rows copied")
        True
        >>> is_shown("Copied 120 rows of users", "copy_table(name=users) -> 12 rows copied")
        False
    """
    wanted = _words(claim)
    numbers = {w for w in _split(claim) if not w.isalpha() and len(w) > 1}
    shared = len(wanted & _words(evidence))
    return bool(wanted) and numbers <= set(_split(evidence)) and 2 * shared >= len(wanted)


def _words(text: str) -> set[str]:
    """The stems of the longer words, and what has a digit in it, but short numbers."""
    words = _split(text)
    stems = {w[:_STEM] for w in words if len(w) >= _STEM and not _COMMON.match(w)}
    named = {w for w in words if not w.isalpha() and not (w.isdigit() and len(w) < _DIGITS)}
    return stems | named


def _split(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]
