"""What the channels of somebody else's graph can do, found by trying them out.

A fold is written by message id: replacements and removals. A reducer that does not honour
these would keep what was folded, and a channel without one would lose all the rest. No name
or type says so; a message that is put into a fresh copy of the channel and removed does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, MutableSequence, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from langchain_core.messages import BaseMessage, HumanMessage, RemoveMessage
from langgraph._internal._typing import MISSING
from langgraph.channels.base import BaseChannel
from typing_extensions import NotRequired, Required

from handoff_graph.errors import CannotWire
from handoff_graph.task import merge, task_update

__all__ = ["check_task_channel", "foldable"]

_LISTS = (list, Any, object, Sequence, MutableSequence, Collection, Iterable)

Channels = Mapping[str, BaseChannel[Any, Any, Any]]


def foldable(channels: Channels, hints: Mapping[str, Any]) -> set[str]:
    """The channels whose transcripts the nodes can fold.

    Args:
        channels: the channels of a graph.
        hints: the types of its state's fields, with extras.

    Raises:
        CannotWire: a channel that is declared as a transcript cannot be folded, or there is
            none that can.
    """
    lists = {name: kind for name, kind in hints.items() if name in channels and _is_list(kind)}
    found = {name for name in lists if _removes_messages(channels[name])}
    for name, kind in lists.items():
        if name not in found and (name == "messages" or _is_list(kind, of=BaseMessage)):
            raise CannotWire(
                f"channel {name!r} cannot be folded: a message that is removed from it stays. "
                "Give it a reducer that honours RemoveMessage, as in Annotated[list[AnyMessage], "
                "add_messages], or inherit the state from MessagesState or HandoffState."
            )
    if not found:
        raise CannotWire(
            "no channel of this graph takes messages, so there is nothing to fold (channels: "
            f"{', '.join(sorted(channels)) or 'none'}). Inherit the state from MessagesState or "
            "HandoffState."
        )
    return found


def _removes_messages(channel: BaseChannel[Any, Any, Any]) -> bool:
    message = HumanMessage("probe", id="probe")
    held, left = _written(channel, [message], [RemoveMessage(id="probe")])
    return bool(held == [message] and left == [])


def check_task_channel(channels: Channels, task_key: str) -> None:
    """See to it that the task's channel, if the graph has one already, merges updates.

    Raises:
        CannotWire: it holds something else.
    """
    if task_key not in channels:
        return
    updates = task_update(title="probe"), task_update(constraints=["Probe."])
    expected = merge(merge({}, updates[0]), updates[1])
    if _written(channels[task_key], *updates)[-1] != expected:
        raise CannotWire(
            f"this graph's state has a channel {task_key!r} of its own, which does not merge task "
            f"updates. Choose another name for the task with task_key=, or declare it as "
            f"{task_key}: Annotated[dict[str, Any], handoff_graph.merge]."
        )


def _written(channel: BaseChannel[Any, Any, Any], *writes: Any) -> list[Any]:
    """What a fresh channel holds after each write; Nones where it does not take them."""
    try:
        fresh = channel.from_checkpoint(MISSING)
        held = []
        for write in writes:
            fresh.update([write])
            value = fresh.get()
            held.append(list(value) if isinstance(value, list) else value)
    except Exception:  # whatever somebody's reducer raises at what it was not made for
        return [None] * len(writes)
    return held


def _is_list(kind: Any, of: type | None = None) -> bool:
    """Whether a field of this type may hold a list (of such items, if they are given)."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Annotated, Required, NotRequired):
        return _is_list(arguments[0], of)
    if origin in (Union, UnionType):
        return any(_is_list(part, of) for part in arguments)
    if of is not None and not any(_names(part, of) for part in arguments):
        return False
    base = origin or kind
    return base in _LISTS or (isinstance(base, type) and issubclass(base, list))


def _names(kind: Any, item: type) -> bool:
    if isinstance(kind, type) and get_origin(kind) is None:
        return issubclass(kind, item)
    return any(_names(part, item) for part in get_args(kind))
