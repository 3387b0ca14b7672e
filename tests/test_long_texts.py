"""Texts long enough that a pattern which is quadratic anywhere would not finish."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from handoff_graph import (
    HeuristicSummarizer,
    binding,
    binding_sentences,
    merge,
    render_briefing,
    task_update,
)
from handoff_graph.ledger import ledger_name, read_front_matter, render_ledger

N = 200_000

LONG = {
    "marks": "!" * N + "a",
    "marks and closers": "!" * (N // 2) + "\"'" * (N // 4) + "x",
    "closers": "." + "\"'" * (N // 2) + "x",
    "marks with spaces": "! " * (N // 2) + "x",
    "spaces": "You must never x" + " " * N + "y.",
    "tabs": "must " + "\t " * (N // 2) + "x",
    "spaces before a break": "must " + " \r" * (N // 2) + "x",
    "abbreviations": "No. " * (N // 4),
    "letters": "Never a. " + "b. " * (N // 3),
    "dashes": "a-" * (N // 2),
    "dots": "." * N + " 5",
    "fences": "```" * (N // 3) + "must",
    "bullets": "- " * (N // 2),
    "digits": "1" * N + ".",
    "tags": "<" * N,
    "slashes": "a/" * (N // 4) + " " + "/" * (N // 2),
    "one word": "a" * N,
    **{
        f"{word} and spaces": f"{word}{' ' * N}x"
        for word in (
            "leave",
            "leave as",
            "limit",
            "keep",
            "no a",
            "not",
            "get",
            "get from",
            "obtain",
            "approval",
            "don't",
            "do",
            "must be",
            "must have",
            "only",
        )
    },
    **{
        f"many {word}": f"{word} " * (N // len(word))
        for word in (
            "leave as",
            "limit",
            "keep",
            "no a",
            "not a",
            "get a from",
            "obtain",
            "approval",
            "don't know",
            "must have",
            "why it",
            "no no",
            "avoid",
            "without",
        )
    },
    "an endless word": "avoid "
    + "a" * (N // 3)
    + " no "
    + "b" * (N // 3)
    + " must have "
    + "c" * (N // 3),
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_text_is_read_and_shown(name: str) -> None:
    text = LONG[name]
    binding_sentences(text)
    state = merge({}, task_update(by="human", objective=text, constraints=[text], notes=[text]))
    assert render_briefing(state)
    assert read_front_matter(render_ledger(state, thread=text, checkpoint=text, updated=""))
    assert ledger_name(text)


@pytest.mark.parametrize("name", [n for n in LONG if "many" not in n and "and spaces" not in n])
def test_a_transcript_of_long_texts_is_summarized(name: str) -> None:
    text = LONG[name]
    args = {"text": text, "parts": [text[at : at + 2_000] for at in range(0, 8_000, 2_000)]}
    call = {"name": text[:2_000], "args": args, "id": "c"}
    folded = [
        HumanMessage(text, id="h"),
        AIMessage(text, id="a", tool_calls=[call]),
        ToolMessage(text, id="t", tool_call_id="c"),
    ]
    folding = SimpleNamespace(folded=folded, tail=[], at="2026-01-01T00:00:00.000000Z")
    update = HeuristicSummarizer()({}, folding)
    assert len(update["done"]) == 1


# The patterns as they read best, each quadratic, and so for short texts only.
_END = re.compile(r"[.!?]+[\"'”’)\]*_`]*(?=\s+[\"'“‘(\[*_`]*[A-Z0-9À-ÞЀ-Я]|\s*$)|[。！？]")
_LINE_BREAKS = re.compile(r"[^\S\r\n]*[\r\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029]\s*")


@given(st.text(alphabet="aB1.!? \"'(*。", max_size=24))
def test_sentences_end_where_the_plain_pattern_ends_them(text: str) -> None:
    found = [match.group() for match in binding._END.finditer(text)]
    assert found == [match.group() for match in _END.finditer(text)]


@given(st.text(alphabet="ab \t\r\n\x0b\x1c\x1f\x85\u2028", max_size=16))
def test_line_breaks_become_spaces_where_the_plain_pattern_finds_them(text: str) -> None:
    state = merge({}, task_update(title=f"x{text}x"))
    assert state["title"] == _LINE_BREAKS.sub(" ", f"x{text}x")
