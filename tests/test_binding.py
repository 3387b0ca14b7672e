"""The detector of binding sentences against a labelled set, markdown and endless texts."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handoff_graph import HandoffError, HeuristicSummarizer, InvalidPattern, phrases
from handoff_graph.binding import binding_sentences, detector, scope_of, sentences


class Labelled(NamedTuple):
    label: str
    kind: str
    split: str
    scope: str
    sentence: str


def corpus() -> list[Labelled]:
    lines = Path(__file__).with_name("binding_corpus.tsv").read_text(encoding="utf-8").split("\n")
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    assert tuple(rows[0]) == Labelled._fields
    return [Labelled(*row) for row in rows[1:]]


CORPUS = corpus()

# -- the labelled set --------------------------------------------------------------------------


def test_the_set_is_what_its_head_says() -> None:
    assert len({row.sentence for row in CORPUS}) == len(CORPUS) >= 440
    labels = Counter(row.label for row in CORPUS)
    assert min(labels["+"], labels["-"]) >= 0.45 * len(CORPUS)
    assert sum(row.scope == "step" for row in CORPUS) >= 30
    for row in CORPUS:
        first = hashlib.sha256(row.sentence.encode()).digest()[0]
        assert row.split == ("dev" if first % 5 < 3 else "held"), row
        assert row.scope in ({"standing", "step"} if row.label == "+" else {""}), row


@pytest.mark.parametrize(
    ("split", "recall", "precision"),
    # What was measured, less a margin of one or two sentences.
    [("dev", 0.98, 0.97), ("held", 0.96, 0.96)],
)
def test_most_are_found_and_little_else(split: str, recall: float, precision: float) -> None:
    rows = [row for row in CORPUS if row.split == split]
    found = [row for row in rows if binding_sentences(row.sentence)]
    right = [row for row in found if row.label == "+"]
    bound = [row for row in rows if row.label == "+"]
    assert len(right) / len(bound) >= recall
    assert len(right) / len(found) >= precision


def test_the_whole_set_meets_its_goal() -> None:
    found = [row for row in CORPUS if binding_sentences(row.sentence)]
    right = [row for row in found if row.label == "+"]
    assert len(right) / sum(row.label == "+" for row in CORPUS) >= 0.95
    assert len(right) / len(found) >= 0.90


def test_every_kind_is_found() -> None:
    for kind in {row.kind for row in CORPUS if row.label == "+"}:
        rows = [row for row in CORPUS if row.kind == kind]
        assert sum(bool(binding_sentences(row.sentence)) for row in rows) >= 0.93 * len(rows), kind


def test_one_off_orders_are_not_standing() -> None:
    bound = [row for row in CORPUS if row.label == "+"]
    step = [scope_of(row.sentence) for row in bound if row.scope == "step"]
    assert step.count("standing") == 0
    assert step.count("step") >= 0.85 * len(step)
    assert not [
        row for row in bound if row.scope == "standing" and scope_of(row.sentence) == "step"
    ]


@pytest.mark.parametrize(
    ("sentence", "scope"),
    [
        ("For this step, don't restart the pod.", "step"),
        ("Just this once, skip the review.", "step"),
        ("In this nightly run, use at most 2 workers.", "step"),
        ("For this task only, don't follow redirects.", "step"),
        ("Right now nobody may log in.", "unclear"),
        ("Don’t deploy today.", "unclear"),
        ("Don't use the cache in this session.", "unclear"),
        ("Never restart more than once.", "standing"),
        ("Log in only this way.", "standing"),
        ("Don't run it in this protest.", "standing"),
        ("Only this table may be written to.", "standing"),
    ],
)
def test_scope(sentence: str, scope: str) -> None:
    assert scope_of(sentence) == scope


# -- sentences ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Never run `rm -rf /. Then` here. Ok.", ["Never run `rm -rf /. Then` here.", "Ok."]),
        ("Keep /srv/a.b/c.yaml as is. Go.", ["Keep /srv/a.b/c.yaml as is.", "Go."]),
        ("Pin v1.2.3. Use 10.0.0.1 only.", ["Pin v1.2.3.", "Use 10.0.0.1 only."]),
        ("Ask Dr. Wu, e.g. by mail. Wait.", ["Ask Dr. Wu, e.g. by mail.", "Wait."]),
        ("- a\n- b\n  and b\n* c", ["a", "b and b", "c"]),
        ("1. a\n2) b\n10. c", ["a", "b", "c"]),
        (
            "# Rules\nNever push.\n## More\nAsk first.",
            ["Rules", "Never push.", "More", "Ask first."],
        ),
        ("Rules\n=====\nNever push.\n***\nEnd.", ["Rules", "Never push.", "End."]),
        ("**Never push.** Then *stop*. Go.", ["**Never push.**", "Then *stop*.", "Go."]),
        (
            "| what | rule |\n|---|:-:|\n| prod | never touch |",
            ["what | rule", "prod | never touch"],
        ),
        (
            "See [the rules](https://a.b/c?d=e.f). Go.",
            ["See [the rules](https://a.b/c?d=e.f).", "Go."],
        ),
        ("> never push\n\nGo.\n> must\nStop.", ["Go.", "Stop."]),
        ("Well… Never push… Ok", ["Well…", "Never push…", "Ok"]),
        ("He said “Stop.” Never push.", ["He said “Stop.”", "Never push."]),
        ("Never\r\npush.\r\n\r\nGo.\r\n", ["Never push.", "Go."]),
        ("```py\nmust()\n```\nGo.", ["Go."]),
        ("~~~\nmust\n```\nmust\n~~~\nGo.", ["Go."]),
        ("- Look:\n  ```\n  must\n  ```\n- Go.", ["Look:", "Go."]),
        ("Look:\n\n    must\n\n\tmust\n\nGo.", ["Look:", "Go."]),
        (
            "- Rules:\n\n    - Never push.\n\n    Ask first.",
            ["Rules:", "Never push.", "Ask first."],
        ),
        ("A fence is ``` in markdown. Never push.", ["A fence is ``` in markdown.", "Never push."]),
        ("Use `a.b`. `C` next.", ["Use `a.b`.", "`C` next."]),
        ("```never``` is a word.", ["```never``` is a word."]),
        ("停。不要碰。", ["停。", "不要碰。"]),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@pytest.mark.parametrize(
    "sentence",
    [
        "Never drop a table, always ask first, and use at most 4 workers.",
        "We never touched prod, so don't start now.",
        "The log says 'must not be root', but do not run it as root.",
        "**Do not** use the `--force` flag (see [rules](https://a.b/c)).",
        "prod | never touch",
        "Don’t push… ever.",
        "Please don't touch prod, ok?",
        "The script must print the totals.",
        "Marta said not to touch the ledger.",
        "Legal says we can't ship before the review.",
        "Restart a follower (never the primary).",
    ],
)
def test_a_sentence_is_kept_whole(sentence: str) -> None:
    assert binding_sentences(f"Hi.\r\n\r\n- {sentence}\n- Bye.") == [sentence]


@pytest.mark.parametrize(
    "text",
    [
        "The log says 'must not be root'.",
        "It printed “do not run twice” and ended.",
        "The output was `you must never retry`.",
        "`must not` and `never` are keywords there.",
        "Here is the output:\n```\nERROR: you must not do this\nNever retry.\n```\nAny idea?",
        "> You must never deploy.\n> Ask first.\n\nThat is what the old mail was about.",
        "ERROR: you must not do this",
        "Are you sure it must never be restarted?",
    ],
)
def test_what_others_say_is_data(text: str) -> None:
    assert binding_sentences(text) == []


def test_a_chat_without_full_stops_is_read_line_by_line() -> None:
    assert binding_sentences("hi team\ndont touch prod\nthanks") == [
        "hi team dont touch prod thanks"
    ]


WORDS = st.sampled_from(
    re.split(
        " +",
        "never do not must don’t \"must not\" 'a' `never` `a. says only until a. b? … e.g. v1.2"
        " **x** | - > # 1. ``` 。 please, \n \r\n \n\n \t",
    )
)


@given(st.lists(WORDS | st.text(max_size=6), max_size=30), st.sampled_from(["", " ", "\n"]))
def test_what_is_found_is_a_piece_of_the_text(words: list[str], glue: str) -> None:
    text = glue.join(words)
    plain = " ".join(text.split())
    split = sentences(text)
    for sentence in split:
        assert " ".join(sentence.split()) in plain
    found = binding_sentences(text)
    assert len(set(found)) == len(found)
    assert [s for s in dict.fromkeys(split) if s in set(found)] == found
    assert detector()(text) == found


# -- detectors of one's own --------------------------------------------------------------------


def test_patterns_of_ones_own() -> None:
    text = "Cards are in PCI scope. Don’t push. The window is Tuesday. Is it pci?"
    assert detector()(text) == binding_sentences(text) == ["Don’t push."]
    own = detector(r"\bpci\b", re.compile("WINDOW"), "don't")
    assert own(text) == text.replace(". ", ".\n").splitlines()
    assert detector("’", builtin=False)(text) == ["Don’t push."]
    assert detector(builtin=False)(text) == []
    assert detector("pci", builtin=False)("```\npci\n```\n> pci") == []
    assert HeuristicSummarizer(binding=own).binding(text) == own(text)


@pytest.mark.parametrize(
    "pattern",
    ["(", "a{2,1}", "*", "", "x*", re.compile(b"x"), 7, None, "(?P<a", re.compile("x?")],
)
def test_a_bad_pattern_is_refused_by_name(pattern: object) -> None:
    with pytest.raises(InvalidPattern, match=r"^pattern ") as caught:
        detector("fine", pattern)  # type: ignore[arg-type]
    assert isinstance(caught.value, HandoffError)
    assert isinstance(caught.value, ValueError)
    shown = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    assert caught.value.pattern == shown
    assert repr(shown) in str(caught.value)


# -- endless texts -----------------------------------------------------------------------------

N = 100_000
HEADS = sorted(
    {
        word
        for table in (phrases._FIRM, phrases._LOOSE)
        for kind in table.values()
        for pattern in kind
        for word in re.findall(r"[a-z]{2,}(?: [a-z]{2,})*", re.sub(r"\\.", "", pattern))
    }
)
ENDLESS = {
    "every word of a pattern": (" ".join(HEADS) + " ") * (N // len(" ".join(HEADS))),
    "every word of a pattern and spaces": (" " * 100).join(HEADS) + " " * N + "x",
    "every word of a pattern and an endless word": f" {'a' * 200} ".join(HEADS) + "a" * N,
    **{
        f"{head} {name}": head + tail * (N // len(tail)) + "x"
        for head in ("no a", "must", "keep", "only", "do not", "says", "if", "the docs", "leave")
        for name, tail in {
            "spaces": " ",
            "again": f" {head}",
            "letters": " a",
            "a word": "a",
            "dashes": "-a",
            "ed": " ed",
            "line breaks": "\n",
            "quotes": ' "',
            "apostrophes": " 'a",
            "backticks": " `",
            "commas": ", ",
        }.items()
    },
    "please": "please " * (N // 7),
    "if, if": "if a, " * (N // 6),
    "pipes": "|" * N,
    "rules": "-=" * (N // 2),
    "fences": "```\n" * (N // 4),
    "fence marks": "`" * N,
    "quoted lines": "> a\n" * (N // 4),
    "bullets": "- must\n" * (N // 7),
    "slashes": "a/" * (N // 2),
    "it it says": "it it it says " * (N // 14),
    "says and one quote": "says " * (N // 5) + '"' + "a" * N,
}


def test_a_gap_without_bound_is_tried_from_one_place_only() -> None:
    for table in (phrases._FIRM, phrases._LOOSE):
        for pattern in (pattern for kind in table.values() for pattern in kind):
            for part in phrases._alternatives(pattern):
                gaps = len(re.findall(r"(?<!\(\?!)\.[*+]", part))
                assert gaps <= part.startswith("^"), part


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_text_is_read(name: str) -> None:
    """A pattern that is quadratic anywhere would not finish."""
    binding_sentences(ENDLESS[name])
    scope_of(ENDLESS[name])
