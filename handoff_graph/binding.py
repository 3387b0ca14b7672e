"""Finds the sentences in which a person binds what an agent may do next.

Prohibitions, preconditions, approvals, limits and obligations are recorded as constraints,
word for word, before anything else looks at a message. Quoted text and code are data and not
an order, so both are skipped. Pure: text in, sentences out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Literal

from handoff_graph.errors import InvalidPattern
from handoff_graph.phrases import binds

__all__ = ["BindingDetector", "Scope", "binding_sentences", "detector", "scope_of", "sentences"]

BindingDetector = Callable[[str], list[str]]
"""Text of one message in, its binding sentences out, each a verbatim piece of the text."""

Scope = Literal["standing", "step", "unclear"]
"""How long a binding sentence holds; whoever acts on `unclear` treats it as standing."""

_BULLET = re.compile(r"\s*(?:[-*+•]|\d{1,3}[.)]|(?P<heading>#{1,6}))\s+")
_RULE = re.compile(r"[-=*_|:\s]{3,}")
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|cf|approx|no|fig|mr|mrs|ms|dr|st|inc|ltd|dept|[a-z])\.)$", re.I
)
_LONGEST_ABBREVIATION = len(" approx.")
# Without the look-behind a run of marks is tried from each of them: quadratic.
_END = re.compile(
    r"(?<![.!?…])[.!?…]+[\"'”’)\]*_`]*(?=\s+[\"'“‘(\[*_`]*[A-Z0-9À-ÞЀ-Я]|\s*$)|[。！？]"
)

_QUOTES = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "“": '"', "”": '"', "„": '"', "…": "."})
_CODE = re.compile(r"`(?! )[^`\n]*`")
_MARKS = re.compile(r"[.!?…。！？]")
_SPELLING = tuple(
    (re.compile(pattern), full)
    for pattern, full in (
        (r"[*]|__", ""),
        (r"\bwon'?t\b", "will not"),
        (r"\b(?:can ?not|can'?t)\b", "can not"),
        (r"\b(do|does|did|is|are|was|were|must|should|could|would|has|need)n'?t\b", r"\1 not"),
        (r"'re\b", " are"),
        (r"\bi'm\b", "i am"),
        (r"\b(it|that)'s\b", r"\1 is"),
        (r"\b(?:pls|plz)\b", "please"),
        (r"\bu\b", "you"),
        (r"\bb4\b", "before"),
        (r"\b(?:ok|o\.k\.)(?!\w)", "okay"),
    )
)

_DATA = re.compile(  # a line of a log or of code that nobody fenced
    r"(?:\d{4}-\d\d-\d\d[tT ]\d|\[?(?:DEBUG|INFO|WARN|WARNING|ERROR|FATAL|CRITICAL|PANIC)\b\]?[ :]"
    r"|\[(?:error|warn|info|debug)|(?:npm|pip) ERR|E   |[\w/.-]*/[\w.-]+ \d/\d |Traceback\b"
    r"|[\w.]*(?:Error|Exception): |(?:if|while|for) ?\(|(?:raise|assert|return|const|let"
    r"|SELECT) \S+[(=<*]|if [\w.]+(?: \w+\.\w+)?\(|[{$] ?\S)"
)
_SOURCE = (
    r"(?:docs?|documentation|manual|logs?|errors?|messages?|readme|wiki|tutorials?|book|website"
    r"|page|site|linter|compiler|comment|exception|output|tools?|spec|specification|form|text|blog"
    r"|article|notes|forum|trace|sign|alert|warning|contract|mail|e-mail|server|console|terminal"
    r"|script|caller|colleague|friend|aunt|uncle|neighbou?r|someone|somebody|vendor|he|she|they|it)"
)
_SAYS = (
    r"(?:says?|said|reads|claims?|claimed|states?|stated|mentions?|mentioned|prints|printed|tells"
    r"|told|complains?|complained|warns?|warned|contains?|insisted|asked|wrote|writes|suggests"
    r"|suggested|recommends|recommended|reports|reported|shows|threw|throws)"
)
_QUOTED = re.compile(
    rf"\b(?:{_SAYS}|was|were|with|line|text)\b[^\"']{{0,40}}(?:\"[^\"]*\"|(?<!\w)'[^']*'(?!\w))"
)
_REPORTED = re.compile(
    rf"\b(?:{_SOURCE}(?: (?!must|should|shall|may|can|never|not|to|only)\w+){{0,3}} {_SAYS}"
    r"|i (?:heard|read|was told|understand|thought)|^according to)\b"
    r".*?(?=; | but |,? so |, (?:and )?(?:please|do not|never|only|you) |$)"
)
_FRESH = re.compile(r"[.,;:]?\n(?=(?:please|do not|never|make sure|always) )")


_UNIT = (
    r"(?:step|run|call|query|pass|attempt|batch|ticket|deploy(?:ment)?|migration|test|iteration"
    r"|pull request|experiment|job|command|request|turn|round|release|commit|restart|build)"
)
_STEP = re.compile(
    r"\b(?:for|in|on|during|with|at) (?:just |only )?(?:this|the (?:next|current|coming|following))"
    rf"(?: (?:one|single|very))?(?: [\w-]+)? {_UNIT}\b|\b(?:just|only) (?:this )?once\b"
    r"|\bthis (?:one )?(?:time|once)\b|\bthis \w+ only\b|\bjust for (?:this )?once\b"
    r"|\bone[- ](?:off|time) only\b"
)
_DOUBTFUL = re.compile(
    r"\bfor (?:now|the moment|the time being|today)\b|\bat the moment\b|\b(?:today|tonight"
    r"|currently|temporarily|meanwhile)\b|\bright now\b|\bthis (?:morning|afternoon|evening|week"
    r"|session|task|job)\b"
)


def sentences(text: str) -> list[str]:
    """Split prose into sentences; bullets and lines of a list end one, code is left out.

    Headings and rows of a table stand for themselves. Block quotes, fenced and indented code are
    left out, as they are data.

    Args:
        text: one message, plain or markdown.

    Returns:
        Verbatim sentences. A sentence that the author wrapped over lines comes back with each
        line break as one space.

    Example:
        >>> sentences("# Rules\\n- Never touch prod.\\n\\n> old mail\\n\\nThanks, e.g. for v1.2.")
        ['Rules', 'Never touch prod.', 'Thanks, e.g. for v1.2.']
    """
    return [piece.replace("\n", " ") for piece in _pieces(text)]


def _pieces(text: str) -> Iterator[str]:
    """The sentences with their line breaks."""
    paragraph: list[str] = []
    fence, in_list = "", False
    for line in [*text.splitlines(), ""]:
        bullet = _BULLET.match(line)
        bare = line[bullet.end() if bullet else 0 :].strip()
        if fence:
            fence = "" if bare.startswith(fence) and not bare.strip(fence[0]) else fence
            continue
        opened = re.match(r"(`{3,}|~{3,})[^`]*$", bare)
        indented = line.startswith(("    ", "\t")) and not paragraph and not in_list
        row = bare.startswith("|")
        if opened or indented or bullet or row or not bare or bare.startswith(">") or _ruled(bare):
            yield from _cut("\n".join(paragraph))
            paragraph.clear()
        if opened:
            fence = opened.group(1)
        elif bare and not (indented or bare.startswith(">") or _ruled(bare)):
            paragraph.append(bare.strip("| ") if row else bare)
            if row or (bullet and bullet["heading"]):
                yield from _cut("\n".join(paragraph))
                paragraph.clear()
        in_list = bool(bullet) or (in_list and (not bare or line[0].isspace()))
    yield from _cut("\n".join(paragraph))


def _ruled(line: str) -> bool:
    return _RULE.fullmatch(line) is not None


def _cut(paragraph: str) -> Iterator[str]:
    start = 0
    for end in _END.finditer(_CODE.sub(_without_marks, paragraph)):
        word = paragraph[max(start, end.start() + 1 - _LONGEST_ABBREVIATION) : end.start() + 1]
        if _ABBREVIATION.search(word) and end.end() < len(paragraph):
            continue
        if piece := paragraph[start : end.end()].strip():
            yield piece
        start = end.end()
    if piece := paragraph[start:].strip():
        yield piece


def _straight(text: str) -> str:
    """The text with straight quotes, each character where it was."""
    return text.translate(_QUOTES)


def _without_marks(code: re.Match[str]) -> str:
    return _MARKS.sub("x", code.group())


def _plain(piece: str) -> str:
    """A sentence as the patterns read it."""
    text = _CODE.sub("x", _straight(piece)).lower()
    text = "\n".join(" ".join(line.split()) for line in text.split("\n"))
    for spelling, full in _SPELLING:
        text = spelling.sub(full, text)
    text = _FRESH.sub(". ", text).replace("\n", " ")
    return _REPORTED.sub("", _QUOTED.sub("", text)).replace('"', "")


def _binds(piece: str) -> bool:
    return not _DATA.match(piece) and binds(_plain(piece))


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
    return list(dict.fromkeys(p.replace("\n", " ") for p in _pieces(text) if _binds(p)))


def scope_of(sentence: str) -> Scope:
    """How long a binding sentence holds, as far as its words tell.

    Args:
        sentence: a binding sentence.

    Returns:
        `step` for a one-off instruction, `unclear` where a word such as "for now" leaves it open,
        else `standing`.

    Example:
        >>> scope_of("Never touch prod."), scope_of("For this step, don't restart the pod.")
        ('standing', 'step')
        >>> scope_of("For now, leave the exporter alone.")
        'unclear'
    """
    words = _plain(sentence)
    if _STEP.search(words):
        return "step"
    return "unclear" if _DOUBTFUL.search(words) else "standing"


def detector(*patterns: str | re.Pattern[str], builtin: bool = True) -> BindingDetector:
    """A detector that also takes the sentences in which a pattern of yours is found.

    Args:
        *patterns: regular expressions, looked for anywhere in a sentence, in any case. They may
            take whatever time they take; those of this module are linear.
        builtin: whether the sentences of `binding_sentences` are taken too.

    Returns:
        A detector, as `HeuristicSummarizer(binding=...)` takes one.

    Raises:
        InvalidPattern: a pattern is no regular expression for text, or it matches empty text
            and so would take every sentence.

    Example:
        >>> find = detector(r"\\bPCI\\b", "break-glass")
        >>> find("Cards are in pci scope. Break-glass is for Ana. Never touch prod. Thanks.")
        ['Cards are in pci scope.', 'Break-glass is for Ana.', 'Never touch prod.']
        >>> detector("freeze", builtin=False)("Mind the freeze. Never touch prod.")
        ['Mind the freeze.']
    """
    own = [_compiled(pattern) for pattern in patterns]

    def find(text: str) -> list[str]:
        found: dict[str, None] = {}
        for piece in _pieces(text):
            sentence = piece.replace("\n", " ")
            typed = (sentence, _straight(sentence))
            if any(p.search(t) for p in own for t in typed) or (builtin and _binds(piece)):
                found[sentence] = None
        return list(found)

    return find


def _compiled(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    source = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    if not isinstance(source, str):
        raise InvalidPattern(source, "expected a regular expression for text")
    flags = pattern.flags if isinstance(pattern, re.Pattern) else 0
    try:
        compiled = re.compile(source, flags | re.IGNORECASE)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidPattern(source, str(error)) from error
    if compiled.search(""):
        raise InvalidPattern(source, "it matches empty text, and so every sentence")
    return compiled
