"""Keeping ledgers in step with the journal: the listener that a saver exports through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from handoff_graph import journal
from handoff_graph.export import LedgerExporter
from handoff_graph.sqlite import SqliteStore

__all__ = ["LedgerMirror", "Saved"]


@dataclass(frozen=True)
class Saved:
    """What a listener is told after a checkpoint with a new revision has been committed."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    state: dict[str, Any]
    at: str


class LedgerMirror:
    """Exports every new revision of a root graph's task, and notes in the database that it did.

    Args:
        store: the database of the journal.
        exporter: writes the files.
    """

    def __init__(self, store: SqliteStore, exporter: LedgerExporter) -> None:
        self._store = store
        self.exporter = exporter
        self._healed: set[str] = set()

    def __call__(self, saved: Saved) -> None:
        """Export one revision; a subgraph's task has no ledger of its own."""
        if saved.checkpoint_ns:
            return
        result = self.exporter.export(
            saved.state, thread=saved.thread_id, checkpoint=saved.checkpoint_id, at=saved.at
        )
        with self._store.writing():
            journal.record_ledger(
                self._store.conn,
                saved.thread_id,
                path=str(result.path),
                revision=None if result.error else saved.state["revision"],
                error=result.error,
            )

    def heal(self, thread_id: str) -> None:
        """Bring a ledger in step that an earlier process left behind; once per thread."""
        if thread_id in self._healed:
            return
        self._healed.add(thread_id)
        with self._store.reading():
            head = journal.head(self._store.conn, thread_id)
        if head is not None and not self.exporter.shows(thread_id, head.state["revision"]):
            self(Saved(thread_id, "", head.checkpoint_id, head.state, head.at))
