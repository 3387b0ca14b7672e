"""The graph node that mirrors the task into a ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig

from handoff_graph.errors import MissingChannel
from handoff_graph.export import LedgerExporter
from handoff_graph.saver import HandoffSaver
from handoff_graph.task import is_task_state

__all__ = ["LedgerExportNode", "fields_of", "saver_of"]


class LedgerExportNode(Runnable[Any, dict[str, Any]]):
    """A graph node that mirrors the task into a markdown ledger.

    A node runs before the checkpoint of its superstep is written. In a graph that is compiled
    with a `HandoffSaver` the node therefore has the saver export right after each commit, so
    that the ledger names the checkpoint it shows. With any other checkpointer, or none, it
    writes the state it is given, and names the checkpoint that the superstep started from.

    Args:
        folder: where the ledgers go, created when needed; or the exporter that writes them.
        task_key: the channel of the task state.
    """

    name: str = "export_ledger"

    def __init__(
        self, folder: str | Path | LedgerExporter = "ledger", *, task_key: str = "task"
    ) -> None:
        self.exporter = folder if isinstance(folder, LedgerExporter) else LedgerExporter(folder)
        self.task_key = task_key

    def __call__(self, state: Any, config: RunnableConfig | None = None) -> dict[str, Any]:
        """The same as `invoke`."""
        return self.invoke(state, config)

    def invoke(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Export, or see to it that the saver does; writes nothing to the state."""
        values = fields_of(input)
        if self.task_key not in values:
            raise MissingChannel(self.task_key, "LedgerExportNode")
        if not self.attach(config) and is_task_state(values[self.task_key]):
            state = values[self.task_key]
            where = (config or {}).get("configurable", {})
            self.exporter.export(
                state,
                thread=str(where.get("thread_id", "thread")),
                checkpoint=str(where.get("checkpoint_id") or ""),
                at=state["updated"],
            )
        return {}

    def attach(self, config: RunnableConfig | None) -> bool:
        """Have the running graph's saver export from now on; False if it is none of ours."""
        saver = saver_of(config)
        if saver is not None:
            saver.export_to(self.exporter)
        return saver is not None


def fields_of(state: Any) -> Mapping[str, Any]:
    """The channels of a state, whichever kind of object the graph uses for it."""
    if isinstance(state, Mapping):
        return state
    if is_dataclass(state):
        return {field.name: getattr(state, field.name) for field in fields(state)}
    return {name: getattr(state, name) for name in type(state).model_fields}


def saver_of(config: RunnableConfig | None) -> HandoffSaver | None:
    """The saver of the running graph, if it is one of ours."""
    saver = ((config or {}).get("configurable") or {}).get("__pregel_checkpointer")
    return saver if isinstance(saver, HandoffSaver) else None
