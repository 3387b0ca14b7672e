"""Checkpoint the task, not the conversation: LangGraph persistence for long jobs.

    from handoff_graph import HandoffSaver, add_handoff

    add_handoff(builder)                                  # fold into a task state, keep a ledger
    with HandoffSaver.from_conn_string("handoff.db") as saver:
        graph = builder.compile(checkpointer=saver)

Names are imported when they are first used, so that importing the package stays fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from handoff_graph.binding import binding_sentences
    from handoff_graph.briefing import render_briefing
    from handoff_graph.constraints import retire
    from handoff_graph.errors import (
        CannotWire,
        CheckpointRemoved,
        EmptyThreadId,
        HandoffError,
        HandoffWarning,
        InvalidPattern,
        InvalidTask,
        LedgerError,
        MissingChannel,
        MissingPackage,
        NotAHandoffDatabase,
        StorageError,
        SummarizerFailed,
        ThreadDeleted,
        ThreadExists,
        UnknownConstraint,
        UnknownThread,
        UnstorableValue,
        UnsupportedSchema,
    )
    from handoff_graph.export import LedgerExporter
    from handoff_graph.export_node import LedgerExportNode
    from handoff_graph.model import ModelSummarizer
    from handoff_graph.nodes import HandoffState, SummarizerNode
    from handoff_graph.saver import HandoffSaver
    from handoff_graph.summarize import Folding, HeuristicSummarizer, Summarizer, Summary
    from handoff_graph.superstep import Saved
    from handoff_graph.task import TaskState, TaskUpdate, merge, task_update
    from handoff_graph.tools import task_tools
    from handoff_graph.wiring import add_handoff

__all__ = [
    "CannotWire",
    "CheckpointRemoved",
    "EmptyThreadId",
    "Folding",
    "HandoffError",
    "HandoffSaver",
    "HandoffState",
    "HandoffWarning",
    "HeuristicSummarizer",
    "InvalidPattern",
    "InvalidTask",
    "LedgerError",
    "LedgerExportNode",
    "LedgerExporter",
    "MissingChannel",
    "MissingPackage",
    "ModelSummarizer",
    "NotAHandoffDatabase",
    "Saved",
    "StorageError",
    "Summarizer",
    "SummarizerFailed",
    "SummarizerNode",
    "Summary",
    "TaskState",
    "TaskUpdate",
    "ThreadDeleted",
    "ThreadExists",
    "UnknownConstraint",
    "UnknownThread",
    "UnstorableValue",
    "UnsupportedSchema",
    "add_handoff",
    "binding_sentences",
    "merge",
    "render_briefing",
    "retire",
    "task_tools",
    "task_update",
]

__version__ = "0.1.0"

_HOMES = {
    "binding": ("binding_sentences",),
    "briefing": ("render_briefing",),
    "constraints": ("retire",),
    "errors": (
        "CannotWire",
        "CheckpointRemoved",
        "EmptyThreadId",
        "HandoffError",
        "HandoffWarning",
        "InvalidPattern",
        "InvalidTask",
        "LedgerError",
        "MissingChannel",
        "MissingPackage",
        "NotAHandoffDatabase",
        "StorageError",
        "SummarizerFailed",
        "ThreadDeleted",
        "ThreadExists",
        "UnknownConstraint",
        "UnknownThread",
        "UnstorableValue",
        "UnsupportedSchema",
    ),
    "export": ("LedgerExporter",),
    "model": ("ModelSummarizer",),
    "export_node": ("LedgerExportNode",),
    "nodes": ("HandoffState", "SummarizerNode"),
    "saver": ("HandoffSaver",),
    "summarize": ("Folding", "HeuristicSummarizer", "Summarizer", "Summary"),
    "superstep": ("Saved",),
    "task": ("TaskState", "TaskUpdate", "merge", "task_update"),
    "tools": ("task_tools",),
    "wiring": ("add_handoff",),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
