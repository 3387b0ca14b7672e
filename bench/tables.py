"""What the benchmarks print: aligned or markdown tables, ratios and medians."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

__all__ = ["middle", "ratio", "table"]


def ratio(value: float | None, base: float | None) -> str:
    """`value` as a multiple of `base`, a fraction where it is small; empty if one is missing."""
    if not value or not base:
        return ""
    times = value / base
    return f"1/{1 / times:,.0f}" if times < 0.1 else f"{times:,.{2 if times < 10 else 0}f}"


def middle(values: Sequence[float]) -> float:
    """The median, of at least one value."""
    return float(median(values))


def table(head: Sequence[str], rows: Sequence[Sequence[Any]], *, markdown: bool) -> str:
    """A table, its first column to the left and the others to the right."""
    cells = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left, gap, right = ("| ", " | ", " |") if markdown else ("", "  ", "")

    def line(row: Sequence[str]) -> str:
        first, *others = zip(row, widths, strict=True)
        padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        return (left + gap.join(padded) + right).rstrip()

    first, *others = widths
    end = ":" if markdown else "-"
    rule = ["-" * first, *("-" * (width - 1) + end for width in others)]
    return "\n".join([line(cells[0]), line(rule), *map(line, cells[1:])])
