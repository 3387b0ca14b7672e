"""Splitting a transcript into the part to fold and a working tail that stands on its own.

A chat provider takes a transcript only if every tool result follows its call and every call
has all its results. So the atom here is the *exchange*: a model message with tool calls and
all results of them, however many ran in parallel and whatever came in between. A split never
cuts one in two. What is kept: the leading system messages, the newest human message word for
word, and the last exchanges; the newest tool results are thus never folded before a model has
seen them. Pure: langchain-core messages in, lists out.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeGuard, cast

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.utils import count_tokens_approximately

__all__ = [
    "CallPart",
    "Split",
    "approximate_tokens",
    "briefing_message",
    "briefing_revision",
    "call_parts",
    "calls_of",
    "completed_calls",
    "has_open_call",
    "invalid_reason",
    "is_briefing",
    "is_transcript",
    "message_keys",
    "message_text",
    "source_id",
    "split",
]

BRIEFING = "handoff_briefing"
"""The key in a briefing message's `additional_kwargs` that tells it from a person's words."""

ORIGIN = "handoff_origin"
"""The key in the `additional_kwargs` of a person's message that a fold has moved: its first id."""


def is_transcript(value: object) -> TypeGuard[list[BaseMessage]]:
    """Whether a channel's value is a transcript: a non-empty list of chat messages."""
    if not isinstance(value, list) or not value:
        return False
    # Of a long transcript only the few distinct types are looked at: this runs at every put.
    kinds = set(map(type, value))
    return all(issubclass(kind, BaseMessage) for kind in kinds) and RemoveMessage not in kinds


def approximate_tokens(messages: Iterable[BaseMessage]) -> int:
    """About how many tokens these messages are, as langchain-core counts them.

    That refuses removals, which are nothing to a model, and message classes of a user's own.
    """
    present = [m for m in messages if not isinstance(m, RemoveMessage)]
    try:
        return count_tokens_approximately(present)
    except ValueError:
        return sum(len(str(m.content)) // 4 for m in present)


# -- the briefing message --------------------------------------------------------------------


def briefing_message(text: str, *, revision: int, id: str) -> SystemMessage:
    """The message that stands for everything folded so far.

    A system message, because it is no person's order and must not be answered as one.
    """
    return SystemMessage(text, id=id, additional_kwargs={BRIEFING: {"revision": revision}})


def is_briefing(message: BaseMessage) -> bool:
    """Whether a message is a briefing of ours, of whatever revision."""
    return BRIEFING in message.additional_kwargs


def briefing_revision(messages: Iterable[BaseMessage]) -> int | None:
    """The newest revision that a briefing in this transcript speaks of, or None."""
    marks = (m.additional_kwargs[BRIEFING] for m in messages if is_briefing(m))
    return max((int(mark.get("revision", 0)) for mark in marks), default=None)


# -- reading messages ------------------------------------------------------------------------


def message_text(message: BaseMessage) -> str:
    """The words of a message: its text blocks, without thinking, images or tool calls."""
    if isinstance(message.content, str):
        return message.content
    parts = (
        block if isinstance(block, str) else block.get("text", "")
        for block in message.content
        if isinstance(block, str) or block.get("type") == "text"
    )
    return "\n".join(part for part in parts if isinstance(part, str) and part)


def message_keys(messages: Sequence[BaseMessage]) -> list[str]:
    """A key for each message: its id, or for one without an id its content and occurrence."""
    ids = [message.id for message in messages]
    if all(ids):
        return cast("list[str]", ids)
    seen: Counter[str] = Counter()
    keys: list[str] = []
    for message in messages:
        if message.id:
            keys.append(message.id)
            continue
        what = (message.type, message.content, getattr(message, "tool_calls", None))
        digest = hashlib.sha256(
            repr((*what, getattr(message, "tool_call_id", ""))).encode("utf-8", "replace")
        ).hexdigest()[:32]
        keys.append(f"{digest}#{seen[digest]}")
        seen[digest] += 1
    return keys


# -- calls and results -----------------------------------------------------------------------


class CallPart(NamedTuple):
    """What one message has to do with tool calls: a key for each it makes, in the order of
    `calls_of`, and the key of the one whose result it is."""

    makes: tuple[str, ...] = ()
    answers: str | None = None


def calls_of(message: BaseMessage) -> list[Mapping[str, Any]]:
    """The tool calls of a message, those with unreadable arguments last: agents answer these
    too, and providers are sent both kinds."""
    if not isinstance(message, AIMessage):
        return []
    return [*message.tool_calls, *message.invalid_tool_calls]


def call_parts(messages: Sequence[BaseMessage]) -> list[CallPart]:
    """Which message answers which call, one entry a message.

    Some models leave call ids out. Such calls have the results without an id that follow
    before the next calls, in their order.
    """
    unnamed: deque[str] = deque()
    parts: list[CallPart] = []
    for index, message in enumerate(messages):
        calls = {f"call {n} of message {index}": c for n, c in enumerate(calls_of(message))}
        if calls:
            unnamed = deque(key for key, call in calls.items() if not call["id"])
            parts.append(CallPart(tuple(call["id"] or key for key, call in calls.items())))
        elif isinstance(message, AIMessage) and (legacy := _legacy(message)):
            parts.append(CallPart((legacy,)))
        elif isinstance(message, (ToolMessage, FunctionMessage)):
            parts.append(CallPart(answers=_answered(message, unnamed)))
        else:
            parts.append(CallPart())
    return parts


def _answered(message: ToolMessage | FunctionMessage, unnamed: deque[str]) -> str:
    named = getattr(message, "tool_call_id", None)
    return unnamed.popleft() if named == "" and unnamed else named or str(message.name)


def _legacy(message: AIMessage) -> str:
    """The name in an old-style function call, which is answered by a `FunctionMessage`."""
    return str((message.additional_kwargs.get("function_call") or {}).get("name") or "")


# -- exchanges -------------------------------------------------------------------------------


@dataclass
class _Unit:
    """One or more messages that may only be folded, or kept, together."""

    at: list[int]  # indexes into the transcript
    open: set[str] = field(default_factory=set)  # call ids without a result
    answered: int = 0  # calls with a result
    orphan: bool = False  # a result whose call is gone

    @property
    def is_exchange(self) -> bool:
        return bool(self.open or self.answered)

    def mend(self) -> bool:
        """Whether it may not stay in a tail: a call without result, or the reverse."""
        return bool(self.open) or self.orphan


def _units(messages: Sequence[BaseMessage]) -> list[_Unit]:
    units: list[_Unit] = []
    waiting: dict[str, _Unit] = {}  # every call seen -> its exchange
    for index, part in enumerate(call_parts(messages)):
        owner = waiting.get(part.answers) if part.answers is not None else None
        if owner is not None:
            owner.at.append(index)
            owner.answered += part.answers in owner.open
            owner.open -= {part.answers}
            continue
        units.append(_Unit([index], open=set(part.makes), orphan=part.answers is not None))
        waiting.update(dict.fromkeys(part.makes, units[-1]))
    return _joined(units)


def _joined(units: list[_Unit]) -> list[_Unit]:
    """Join units that interleave (a message between a call and its result), so that each
    is one contiguous stretch of the transcript."""
    joined: list[_Unit] = []
    for unit in sorted(units, key=lambda unit: unit.at[0]):
        last = joined[-1] if joined else None
        if last is not None and last.at[-1] > unit.at[0]:
            last.at = sorted([*last.at, *unit.at])
            last.open |= unit.open
            last.answered += unit.answered
            last.orphan |= unit.orphan
        else:
            joined.append(unit)
    return joined


def has_open_call(messages: Sequence[BaseMessage]) -> bool:
    """Whether the newest exchange still waits for a result, so nothing may be folded yet."""
    exchanges = [unit for unit in _units(messages) if unit.is_exchange]
    return (
        bool(exchanges)
        and bool(exchanges[-1].open)
        and not any(isinstance(m, AIMessage) for m in messages[exchanges[-1].at[-1] + 1 :])
    )


def completed_calls(messages: Sequence[BaseMessage], since: str | None = None) -> int:
    """How many tool calls have their result, counted from behind the message `since`.

    Args:
        messages: the transcript.
        since: key of the last message that was counted before; unknown or None counts all.
    """
    keys = message_keys(messages)
    first = keys.index(since) + 1 if since in keys else 0
    return sum(unit.answered for unit in _units(messages) if unit.at[-1] >= first)


def invalid_reason(messages: Sequence[BaseMessage]) -> str | None:
    """Why a chat provider would refuse this transcript, or None.

    The one thing allowed is an open exchange at the very end, which is the ordinary state
    between a model's call and the tool's answer.
    """
    units = _units(messages)
    for position, unit in enumerate(units):
        first = messages[unit.at[0]]
        if unit.orphan:
            return f"message {unit.at[0]} is a tool result without its call"
        if unit.open and position + 1 < len(units):
            return f"message {unit.at[0]} has calls without results: {sorted(unit.open)}"
        between = [messages[i] for i in range(unit.at[0] + 1, unit.at[-1] + 1)]
        if any(not isinstance(m, (ToolMessage, FunctionMessage)) for m in between):
            return f"message {unit.at[0]} has other messages between its calls and results"
        if isinstance(first, SystemMessage) and not all(
            isinstance(m, SystemMessage) for m in messages[: unit.at[0]]
        ):
            return f"message {unit.at[0]} is a system message behind others"
    return None


# -- the split -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """A transcript in two: `folded` goes, `tail` stays; earlier briefings are in neither."""

    folded: list[BaseMessage]
    tail: list[BaseMessage]
    calls: int
    """Completed tool calls among the folded messages."""


def split(messages: Sequence[BaseMessage], keep: int = 1) -> Split:
    """Divide a transcript that has no open call.

    Args:
        messages: the transcript; briefings in it are left out of both parts.
        keep: how many of the newest exchanges (or single messages) stay word for word; at
            least one.

    Returns:
        The two parts, each in the transcript's own order. The tail is valid for a chat
        provider; exchanges that never could be (a call whose result never came, a result
        whose call is gone, a system message in mid-talk) are folded wherever they stand.
    """
    messages = [m for m in messages if not is_briefing(m)]
    units = _units(messages)
    leading = next(
        (i for i, m in enumerate(messages) if not isinstance(m, SystemMessage)), len(messages)
    )
    humans = [i for i, m in enumerate(messages) if isinstance(m, HumanMessage)]
    first_kept = max(0, len(units) - max(1, keep))
    kept: set[int] = set(range(leading))
    for position, unit in enumerate(units):
        stray = any(isinstance(messages[i], SystemMessage) and i >= leading for i in unit.at)
        if position >= first_kept and not unit.mend() and not stray and _tidy(messages, unit):
            kept.update(unit.at)
    if humans:
        kept.add(humans[-1])
        # Providers want the talk to begin with a human message: what stands before the first
        # one kept goes too, though it might have stayed by its age.
        first = min(kept.intersection(humans))
        kept -= set(range(leading, first))
    folded = [m for i, m in enumerate(messages) if i not in kept]
    tail = [m for i, m in enumerate(messages) if i in kept]
    calls = sum(u.answered for u in units if not kept.issuperset(u.at))
    return Split(folded, tail, calls)


def _tidy(messages: Sequence[BaseMessage], unit: _Unit) -> bool:
    """Nothing but results follows the call within an exchange."""
    rest = (messages[i] for i in unit.at[1:])
    return all(isinstance(m, (ToolMessage, FunctionMessage)) for m in rest)


def source_id(message: BaseMessage) -> str:
    """The id under which a message was first written, which a fold may have changed; or `""`."""
    return str(message.additional_kwargs.get(ORIGIN) or message.id or "")
