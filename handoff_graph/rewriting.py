"""What a node writes to a transcript's channel for a fold. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, RemoveMessage, SystemMessage

from handoff_graph.transcript import ORIGIN, is_briefing, source_id

__all__ = ["rewrite"]


def _moved(message: BaseMessage, id: str) -> BaseMessage:
    update: dict[str, Any] = {"id": id}
    if isinstance(message, (HumanMessage, SystemMessage)) and not is_briefing(message):
        origin = {ORIGIN: source_id(message)}
        update["additional_kwargs"] = {**message.additional_kwargs, **origin}
    return message.model_copy(update=update)


def rewrite(
    messages: Sequence[BaseMessage], briefing: SystemMessage, tail: Sequence[BaseMessage]
) -> list[BaseMessage]:
    """The reducer writes that turn `messages` into `[briefing, *tail]`.

    Message reducers can replace in place, delete and append, all by id; they cannot insert.
    So the briefing takes the place, and the id, of the first message; where that one is kept
    it moves into the place of the next, and so on until a folded message's place is free. The
    rest of the folded messages are deleted one by one, never all at once: that would take a
    message which another branch appends in the same superstep with it.

    Args:
        messages: the transcript as it stands in the channel, every message with an id.
        briefing: the briefing; its id is replaced.
        tail: what stays, in order, from `messages`.

    Returns:
        Replacements and `RemoveMessage`s for the channel.
    """
    tail_ids = {m.id for m in tail}
    writes: list[BaseMessage] = []
    carried: BaseMessage | None = briefing
    for message in messages:
        if carried is not None:
            writes.append(_moved(carried, str(message.id)))
            carried = message if message.id in tail_ids else None
        elif message.id not in tail_ids:
            writes.append(RemoveMessage(id=str(message.id)))
    if carried is not None:
        writes.append(carried)
    return writes
