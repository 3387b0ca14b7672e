"""Keeping ledgers in step with the journal: the listener that a saver exports through."""

from __future__ import annotations

from handoff_graph import journal
from handoff_graph.codec import Codec
from handoff_graph.export import LedgerExporter
from handoff_graph.steps import Done, Steps
from handoff_graph.store import Store
from handoff_graph.superstep import Saved

__all__ = ["LedgerMirror"]


class LedgerMirror:
    """Exports every new revision of a root graph's task, and notes in the database that it did.

    Args:
        store: the database of the journal.
        exporter: writes the files.
        codec: how the journal's text is stored.
    """

    def __init__(self, store: Store, exporter: LedgerExporter, codec: Codec) -> None:
        self._store = store
        self._codec = codec
        self.exporter = exporter
        self._healed: set[str] = set()

    def __call__(self, saved: Saved) -> None:
        """Export one revision; a subgraph's task has no ledger of its own."""
        if saved.checkpoint_ns:
            return
        result = self.exporter.export(
            saved.state, thread=saved.thread_id, checkpoint=saved.checkpoint_id, at=saved.at
        )
        revision = None if result.error else saved.state["revision"]
        noted = _noted(saved.thread_id, str(result.path), revision, result.error)
        self._store.write(saved.thread_id, noted)

    def heal(self, thread_id: str) -> None:
        """Bring a ledger in step that an earlier process left behind; once per thread.

        Or only the note of it, where that process was killed between the file and the note.
        """
        if thread_id in self._healed:
            return
        self._healed.add(thread_id)
        head = self._store.read(journal.head(thread_id, self._codec))
        if head is None:
            return
        revision = head.state["revision"]
        if head.ledger_revision != revision or not self.exporter.shows(thread_id, revision):
            self(Saved(thread_id, "", head.checkpoint_id, head.state, head.at))


def _noted(thread_id: str, path: str, revision: int | None, error: str | None) -> Steps[Done]:
    yield from journal.record_ledger(thread_id, path=path, revision=revision, error=error)
    return Done(None)
