"""What a summarizer of somebody else's is handed: copies, which it may do with as it likes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from langchain_core.messages import BaseMessage

from handoff_graph.fold import Folding

__all__ = ["spared"]


def spared(state: Mapping[str, Any], folding: Folding) -> tuple[Mapping[str, Any], Folding]:
    """Copies of a task state and of what is folded; a change to them changes nothing else.

    A callable is handed the very objects that the graph holds otherwise, and could take a
    constraint out of them before anything is looked at.
    """
    folded, tail = ([_copied(m) for m in part] for part in (folding.folded, folding.tail))
    return copy.deepcopy(dict(state)), replace(folding, folded=folded, tail=tail)


def _copied(message: BaseMessage) -> BaseMessage:
    try:
        return copy.deepcopy(message)
    except Exception:  # a tool may have attached anything to it, a lock or a connection
        return message.model_copy(update={"content": copy.deepcopy(message.content)})
