"""Where the two databases differ, for the statements that are ours.

Both inner savers keep `checkpoints`. PostgreSQL keeps the values of channels apart, in
`checkpoint_blobs`, one row per channel and version, shared by all checkpoints between two
changes of the channel; SQLite keeps them in the checkpoint's own row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from handoff_graph.steps import Many, Query, Steps

__all__ = ["POSTGRES", "SQLITE", "Dialect"]


@dataclass(frozen=True)
class Dialect:
    """The names of an inner saver's tables.

    Attributes:
        writes: the table of pending writes.
        value: its column for a serialized value.
        blobs: the table of channel values, or `""` where checkpoints hold them.
        json: the type of a column of metadata.
        run_id: the id of the run that stored a checkpoint, as an expression on `checkpoints`.
        tables: every table with rows of a thread, with the columns to copy besides `thread_id`.
    """

    writes: str
    value: str
    blobs: str
    json: str
    run_id: str
    tables: Mapping[str, str]

    def delete(self, thread_id: str, ns: str, checkpoint_ids: Sequence[str]) -> Steps[None]:
        """Delete checkpoints with their writes; values that others may share stay."""
        keys = [(thread_id, ns, checkpoint_id) for checkpoint_id in checkpoint_ids]
        for table in ("checkpoints", self.writes):
            yield Many(
                f"DELETE FROM {table}"
                " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
                keys,
            )

    def delete_namespaces(self, thread_id: str, namespaces: Iterable[str]) -> Steps[None]:
        """Delete all that is stored under these namespaces of a thread."""
        keys = [(thread_id, ns) for ns in namespaces]
        for table in self.tables if keys else ():
            yield Many(f"DELETE FROM {table} WHERE thread_id = ? AND checkpoint_ns = ?", keys)

    def delete_values(
        self, thread_id: str, ns: str, versions: Iterable[tuple[str, str]]
    ) -> Steps[None]:
        """Delete channel values by channel and version, where they have rows of their own."""
        keys = [(thread_id, ns, channel, version) for channel, version in sorted(versions)]
        if self.blobs and keys:
            yield Many(
                f"DELETE FROM {self.blobs}"
                " WHERE thread_id = ? AND checkpoint_ns = ? AND channel = ? AND version = ?",
                keys,
            )

    def versions(
        self, thread_id: str, ns: str, checkpoint_ids: Sequence[str]
    ) -> Steps[dict[str, set[tuple[str, str]]]]:
        """Which channel values each checkpoint refers to, where they have rows of their own."""
        if not self.blobs or not checkpoint_ids:
            return {}
        rows = yield Query(
            "SELECT checkpoint_id, checkpoint -> 'channel_versions' FROM checkpoints"
            " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ANY(?)",
            (thread_id, ns, list(checkpoint_ids)),
        )
        return {key: {(name, str(v)) for name, v in (found or {}).items()} for key, found in rows}

    @staticmethod
    def metadata(value: Any) -> dict[str, Any]:
        """The metadata of a checkpoint, from its column."""
        return value if isinstance(value, dict) else json.loads(value or b"{}")


SQLITE = Dialect(
    writes="writes",
    value="value",
    blobs="",
    json="BLOB",
    # A bare saver stores NaN in metadata, which is no JSON.
    run_id="CASE WHEN json_valid(CAST(metadata AS TEXT))"
    " THEN json_extract(CAST(metadata AS TEXT), '$.run_id') END",
    tables={
        "checkpoints": "checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint,"
        " metadata",
        "writes": "checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, value",
    },
)

POSTGRES = Dialect(
    writes="checkpoint_writes",
    value="blob",
    blobs="checkpoint_blobs",
    json="jsonb",
    run_id="metadata ->> 'run_id'",
    tables={
        "checkpoints": "checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint,"
        " metadata",
        "checkpoint_blobs": "checkpoint_ns, channel, version, type, blob",
        "checkpoint_writes": "checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel,"
        " type, blob",
    },
)
