"""The verbs that change a database: `handoff prune` and `handoff copy`.

These need LangGraph, whose checkpoints they read and write; it is imported when one runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from handoff_graph import catalog, console
from handoff_graph.cli_options import database_option
from handoff_graph.reader import open_readonly

if TYPE_CHECKING:
    from handoff_graph.retention import History

__all__ = ["copy", "prune"]


@click.command()
@click.argument("threads", nargs=-1)
@click.option(
    "--history",
    type=click.Choice(["milestones", "latest"]),
    default="milestones",
    show_default=True,
    help="milestones: one small checkpoint per fold before the newest fold. latest: only the "
    "newest checkpoint of every branch, whole; also for threads that were never folded.",
)
@click.option("--dry-run", is_flag=True, help="Say what would go, change nothing.")
@click.option("--vacuum", is_flag=True, help="Give the space back to the disk afterwards.")
@database_option
def prune(threads: tuple[str, ...], history: History, dry_run: bool, vacuum: bool, db: str) -> None:
    """Remove superseded checkpoints of THREADS, or of every thread.

    The task, its journal and whatever a run can go on from stay. Works on a plain
    SqliteSaver's or PostgresSaver's database too. Without --vacuum the file keeps its size and
    the space is used again.

    \b
    Example:
      handoff prune --history latest --dry-run
      handoff prune --history latest --vacuum
    """
    names = _named(db, threads)
    from handoff_graph import upkeep

    removed = touched = 0
    with upkeep.opened(db) as store:
        before = upkeep.size(store, db)
        work = upkeep.pruned(store, names, history, dry_run=dry_run)
        with _progress(work, len(names), "pruning") as done:
            for _, count in done:
                removed += count
                touched += count > 0
        verb = "would go" if dry_run else "removed"
        console.line(f"{removed} checkpoints of {touched} of {len(names)} threads {verb}")
        if not removed and history == "milestones":
            console.line("nothing is older than a fold; --history latest also prunes the rest")
        if vacuum and not dry_run:
            upkeep.vacuum(store)
            after = upkeep.size(store, db)
            console.line(
                f"{_bytes(before - after)} given back: {_bytes(before)} -> {_bytes(after)}"
            )


@click.command()
@click.argument("threads", nargs=-1)
@click.option("--from", "source", required=True, metavar="FILE|URL", help="Where they are.")
@click.option("--to", "target", required=True, metavar="FILE|URL", help="Where they go.")
def copy(threads: tuple[str, ...], source: str, target: str) -> None:
    """Copy THREADS, or every thread, from one database to another, SQLite or PostgreSQL.

    Checkpoints, pending writes and the journal go along; the source stays as it is. A thread
    that the target has already is left alone, and ends the command.

    \b
    Example:
      handoff copy --from handoff.db --to postgresql://localhost/agents
    """
    names = _named(source, threads)
    from handoff_graph import upkeep

    with upkeep.opened(source) as old, upkeep.opened(target, create=True) as new:
        total = 0
        with _progress(upkeep.copied(old, new, names), len(names), "copying") as done:
            for _, count in done:
                total += count
    console.line(f"{len(names)} threads with {total} checkpoints copied")


def _named(db: str, threads: tuple[str, ...]) -> list[str]:
    """The threads that are meant; each that is named must exist."""
    with open_readonly(db) as reader:
        for name in threads:
            catalog.thread(reader, name)
        return list(threads) or list(catalog.thread_ids(reader))


@contextmanager
def _progress(
    work: Iterable[tuple[str, int]], length: int, label: str
) -> Iterator[Iterable[tuple[str, int]]]:
    """The work with a bar on standard error, where that is a terminal."""
    with click.progressbar(work, length, label, file=sys.stderr) as bar:
        yield bar


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
