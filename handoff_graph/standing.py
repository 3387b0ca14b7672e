"""How a thread's ledger file stands to the database: in step, behind, edited, missing."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from handoff_graph.catalog import Thread
from handoff_graph.ledger import read_front_matter

__all__ = ["Standing", "ledger_path", "ledger_standing"]


class Standing(NamedTuple):
    """A verdict on a ledger."""

    word: str
    sentence: str
    out_of_step: bool


def ledger_path(ledger: str, database: str | Path) -> Path:
    """Where a ledger is that the database knows by this path, absolute or not."""
    path = Path(ledger)
    beside = path.exists() or path.is_absolute()
    return path if beside else Path(database).parent / path


def ledger_standing(thread: Thread, database: str | Path = "") -> Standing:
    """Compare the ledger that was last exported for a thread with the thread's head.

    Args:
        thread: the thread. A ledger with a relative path is looked for in the current folder,
            then beside the database: the agent may run in another folder than the reader.
        database: the database's file.

    Returns:
        A word for a table, a sentence for a person, and whether somebody should look.
    """
    if thread.ledger is None:
        return Standing("none", "no ledger is kept for this thread", False)
    if thread.ledger_error:
        return Standing("failed", f"ledger not written: {thread.ledger_error}", True)
    path = ledger_path(thread.ledger, database)
    try:
        front = read_front_matter(path.read_text("utf-8", "replace"))
    except OSError as error:
        reason = error.strerror or str(error)
        return Standing("missing", f"ledger {path} is not readable: {reason}", True)
    if front is None or front.revision is None:
        return Standing("unreadable", f"{path} has no front matter of a ledger", True)
    if front.thread != thread.thread_id:
        return Standing("foreign", f"{path} belongs to thread {front.thread!r}", True)
    at = f"reading {path} (revision {front.revision}"
    if not front.intact:
        return Standing("edited", f"{at}, edited by hand since its export)", True)
    if front.revision < thread.revision:
        return Standing("behind", f"{at}, behind the database's {thread.revision})", True)
    if front.revision > thread.revision:
        return Standing("ahead", f"{at}, ahead of the database's {thread.revision})", True)
    return Standing("in step", f"{at}, in step with the database)", False)
