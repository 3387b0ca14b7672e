"""Measure the detector of binding sentences: what it finds, and how long it reads.

Recall is the share of the sentences labelled as binding that are found, precision the share of
the found ones that are labelled so. The labelled set is tests/binding_corpus.tsv; a kind of the
sentences that bind nothing is the trap that they set. Both splits were written by the same hand,
before the patterns; text of other hands has more ways to say things.

Example:
    python bench/binding.py --markdown
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tables import middle, table

from handoff_graph.binding import binding_sentences, sentences

CORPUS = Path(__file__).resolve().parent.parent / "tests" / "binding_corpus.tsv"
SIZE = 100_000
SPLITS = ("dev", "held")


class Row(NamedTuple):
    """A sentence of the labelled set, and whether the detector takes it."""

    binds: bool
    kind: str
    split: str
    sentence: str
    found: bool


def rows() -> list[Row]:
    """The labelled set."""
    lines = CORPUS.read_text(encoding="utf-8").split("\n")
    cells = [line.split("\t") for line in lines if line.startswith(("+", "-"))]
    return [
        Row(label == "+", kind, split, sentence, bool(binding_sentences(sentence)))
        for label, kind, split, _, sentence in cells
    ]


def share(part: int, of: int) -> str:
    """A share as a percentage with its counts."""
    return f"{100 * part / of:.1f} % of {of}" if of else ""


def recall(some: Sequence[Row]) -> str:
    """How many of the binding sentences are found."""
    return share(sum(row.found for row in some if row.binds), sum(row.binds for row in some))


def precision(some: Sequence[Row]) -> str:
    """How many of the sentences found are binding."""
    return share(sum(row.binds for row in some if row.found), sum(row.found for row in some))


def passed(some: Sequence[Row]) -> str:
    """How many sentences that bind nothing are left alone."""
    return share(sum(not row.found for row in some), len(some))


def by_kind(labelled: Sequence[Row], binds: bool) -> list[tuple[str, ...]]:
    """A line for each kind: both splits, then all."""
    told = recall if binds else passed
    kinds = sorted({row.kind for row in labelled if row.binds is binds})
    lines = []
    for kind in kinds:
        some = [row for row in labelled if row.kind == kind and row.binds is binds]
        parts = [[row for row in some if row.split == split] for split in SPLITS]
        lines.append((kind, *map(told, parts), told(some)))
    return lines


def milliseconds(read: Callable[[str], object], text: str, repeats: int) -> str:
    """The median time that a text takes."""
    took = []
    for _ in range(repeats):
        start = time.perf_counter()
        read(text)
        took.append(1000 * (time.perf_counter() - start))
    return f"{middle(took):.0f} ms"


def texts(labelled: Sequence[Row]) -> dict[str, str]:
    """Texts of 100 KB: prose, which is usual, and runs, which are the worst of their sort."""
    prose = " ".join(row.sentence for row in labelled if not row.binds) + "\n\n"
    orders = " ".join(row.sentence for row in labelled if row.binds) + "\n\n"
    parts = {
        "nothing binds": prose,
        "all binds": orders,
        "spaces after a word": "must" + " " * SIZE,
        "one word again": "must ",
        "one endless word": "a",
        "dashes": "-a",
    }
    return {name: (part * (SIZE // len(part) + 1))[:SIZE] for name, part in parts.items()}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--repeats", type=int, default=5, help="default: %(default)s")
    option("--markdown", action="store_true", help="print markdown tables")
    given = parser.parse_args()
    labelled = rows()
    parts = {split: [row for row in labelled if row.split == split] for split in SPLITS}
    whole = [(name, recall(some), precision(some)) for name, some in parts.items()]
    whole.append(("both", recall(labelled), precision(labelled)))
    read = [
        (name, *(milliseconds(r, text, given.repeats) for r in (sentences, binding_sentences)))
        for name, text in texts(labelled).items()
    ]
    shown = (
        (("split", "recall", "precision"), whole),
        (("binds: found", *SPLITS, "both"), by_kind(labelled, True)),
        (("does not: left alone", *SPLITS, "both"), by_kind(labelled, False)),
        (("100 KB", "split", "binding"), read),
    )
    print("\n\n".join(table(head, lines, markdown=given.markdown) for head, lines in shown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
