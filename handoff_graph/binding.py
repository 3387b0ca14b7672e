"""Finds the sentences in which a person binds what an agent may do next.

Prohibitions, preconditions, approvals, limits and obligations are recorded as constraints,
word for word, before anything else looks at a message. Quoted text and code are data and not
an order, so both are skipped. Pure: text in, sentences out.
"""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["BindingDetector", "binding_sentences", "sentences"]

BindingDetector = Callable[[str], list[str]]
"""Text of one message in, its binding sentences out, each a verbatim piece of the text."""

# Every pattern here must take linear time on any text, as a message may be of any length: a
# pasted table has runs of thousands of spaces.
_FENCE = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.DOTALL)
_BULLET = re.compile(r"^\s*(?:[-*+•]|\d{1,3}[.)]|#{1,6})\s+")
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|cf|approx|no|fig|mr|mrs|ms|dr|st|inc|ltd|dept|[a-z])\.)$", re.I
)
_LONGEST_ABBREVIATION = len(" approx.")
# Without the look-behind a run of marks is tried from each of them: quadratic.
_END = re.compile(
    r"(?<![.!?])[.!?]+[\"'”’)\]*_`]*(?=\s+[\"'“‘(\[*_`]*[A-Z0-9À-ÞЀ-Я]|\s*$)|[。！？]"
)

_APOSTROPHES = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "“": '"', "”": '"'})

_NOT = r"(?:n't|nt|\s*not)\b"
_CANNOT = r"ca(?:n't|nt|nnot|n\s+not)\b"
# "Don't ..." orders only where an order can begin, or where it says what "you" or "we" do.
_ORDER = r"(?:^|[,;:(\-–—*\"']\s*|\b(?:please|and|but|so|then|just|also|or|you|we|really)\s+)"
_IDLE = (
    r"(?!\s+(?:know|think|worry|understand|mind|believe|care|remember|recall|see|seem|look|work"
    r"|matter|have|need|fit|get|find|hear)\b)"
)

_BINDS = re.compile(
    "|".join(
        (
            # prohibitions
            rf"{_ORDER}do{_NOT}{_IDLE}|\bI\s+do{_NOT}\s+(?:want|wish|accept|agree|approve|allow)\b",
            r"\bnever\b(?!\s*mind\b|\s+(?:seen|heard|been|had|worked|saw|knew|thought)\b)",
            rf"\b(?:must|may|shall){_NOT}|(?<!\bI\s)\bshould{_NOT}",
            rf"\b(?:you|we|nobody|no\s+one)\s+{_CANNOT}(?!\s+(?:believe|remember|find|see|figure))",
            r"\b(?:refrain|abstain)\s+from\b|\bavoid\s+\w+ing\b|\bstay\s+(?:away\s+from|off)\b",
            r"\bhands\s+off\b|\bleave\s+.{1,60}\b(?:alone|untouched|as\s+(?:it\s+)?is)\b",
            r"\bunder\s+no\s+circumstances\b|\b(?:aren't|isn't|not)\s+allowed\b",
            r"\b(?:nothing|nobody|no\s+one)\s+(?:may|must|can|should)\b",
            r"\b(?:is|are)\s+(?:forbidden|prohibited|off[\s-]limits|read[\s-]only)\b",
            # preconditions
            r"\bno\s+\w+(?:\s+\w+){0,4}\s+(?:without|until|before|unless|after|during|on)\b",
            r"(?:\bnot|n't)\s+(?:\w+\s+){0,6}(?:until|unless|before)\b|\bunless\b",
            r"\bonly\s+(?:after|if|when|once|with|during|on|use|from)\b",
            r"\b(?:wait|hold(?:\s+off)?)\s+(?:for|until|till)\b|\bstop\s+(?:if|when|as\s+soon)\b",
            r"\bbefore\s+you\b(?!\s+(?:ask|know)\b)",
            # approvals
            r"\b(?:needs?|required?|requires|have|has)\s+(?:to\s+)?(?:be\s+)?(?:approv|sign)\w*",
            r"\b(?:ask|(?:check|confirm)\s+with|get\s+.{0,20}\bfrom)\s+\w+\s+(?:first|before)\b",
            r"\b(?:approval|permission|sign-?off|confirmation)\b.{0,40}"
            r"\b(?:required|needed|before|first|from)\b",
            r"\bobtain\s+.{0,40}\b(?:confirmation|approval|consent)\b",
            # obligations
            r"\bmust\b(?!n't|\s*not\b|\s+(?:be\s+(?:the|an?|some|that|because)|have\s+\w+(?:ed|en))\b)",
            r"\b(?:always|make\s+sure|ensure|be\s+sure\s+to)\b|\byou\s+(?:have|need)\s+to\b",
            # limits
            r"\bat\s+(?:most|least)\b|\bno\s+(?:more|less|fewer|later|earlier)\s+than\b",
            r"\b(?:keep\s+.{1,40}|stay)\s(?:under|below|above|within|between)\b|\bnot\s+exceed\b",
            r"\blimit\s+.{1,40}\bto\b|\bmaximum\s+of\b|\bmax\.?\s+\d",
        )
    ),
    re.IGNORECASE,
)
_NOT_BINDING = re.compile(
    r"^\s*never\s*mind\b|\bI\s+(?:heard|read|was\s+told|understand|thought)\b|\bshould\s+(?:see|get|find|notice|be\s+able|work|look)\b"
    r"|\bwhy\s+(?:it|this|that|the)\b.{0,40}(?:won't|doesn't|don't|isn't|didn't)\b",
    re.IGNORECASE,
)


def sentences(text: str) -> list[str]:
    """Split prose into sentences; bullets and lines of a list end one, code is left out.

    Args:
        text: one message, plain or markdown.

    Returns:
        Verbatim sentences. A sentence that the author wrapped over lines comes back with each
        line break as one space.
    """
    found: list[str] = []
    paragraph: list[str] = []

    def flush() -> None:
        if paragraph:
            found.extend(_cut(" ".join(paragraph)))
            paragraph.clear()

    for line in _FENCE.sub("\n\n", text).splitlines():
        bare = line.strip()
        if not bare or bare.startswith(">") or (line.startswith(("    ", "\t")) and not paragraph):
            flush()
            continue
        bullet = _BULLET.match(line)
        if bullet:
            flush()
            bare = line[bullet.end() :].strip()
        paragraph.append(bare)
    flush()
    return found


def _cut(paragraph: str) -> list[str]:
    pieces, start = [], 0
    for end in _END.finditer(paragraph):
        word = paragraph[max(start, end.start() + 1 - _LONGEST_ABBREVIATION) : end.start() + 1]
        if _ABBREVIATION.search(word) and end.end() < len(paragraph):
            continue
        pieces.append(paragraph[start : end.end()].strip())
        start = end.end()
    pieces.append(paragraph[start:].strip())
    return [piece for piece in pieces if piece]


def binding_sentences(text: str) -> list[str]:
    """The sentences of a message that bind future action.

    Args:
        text: the words of a human or system message.

    Returns:
        The binding sentences, verbatim, in order, each once.

    Example:
        >>> binding_sentences("Hi! Do NOT run cutover until lag is under 2s. Thanks.")
        ['Do NOT run cutover until lag is under 2s.']
    """
    found: dict[str, None] = {}
    for sentence in sentences(text):
        plain = sentence.translate(_APOSTROPHES)
        if plain.rstrip("\"')*_` ").endswith("?"):
            continue
        if _BINDS.search(plain) and not _NOT_BINDING.search(plain):
            found[sentence] = None
    return list(found)
