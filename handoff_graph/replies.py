"""Reads what a model returned, whatever form its client gives it, and counts what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from handoff_graph.answers import checked
from handoff_graph.calling import Refused, is_refusal, salvaged
from handoff_graph.lenient import read_object
from handoff_graph.prompting import tokens
from handoff_graph.transcript import message_text

__all__ = ["Spent", "read_answer", "refusal_in", "text_of"]


class Spent:
    """What the calls for one summary have cost so far."""

    def __init__(self) -> None:
        self.calls = self.input = self.output = 0
        self.seconds = 0.0

    def add(self, messages: Sequence[BaseMessage], reply: Any, seconds: float) -> None:
        """Count a call.

        Args:
            messages: the prompt.
            reply: what came back, an exception included.
            seconds: how long it took.
        """
        self.calls += 1
        self.seconds += seconds
        if isinstance(reply, Exception) and salvaged(reply) is None:
            return  # nobody says what it cost
        usage = getattr(_raw(reply), "usage_metadata", None) or {}
        self.input += usage.get("input_tokens") or sum(tokens(message_text(m)) for m in messages)
        self.output += usage.get("output_tokens") or tokens(text_of(reply))

    def cost(self) -> dict[str, float]:
        """The sum, as `Summary` has it."""
        return {
            "calls": self.calls,
            "input_tokens": self.input,
            "output_tokens": self.output,
            "seconds": round(self.seconds, 3),
        }


def _raw(reply: Any) -> Any:
    """The message of a reply, if there is one; with a schema it comes in a wrapper."""
    if isinstance(reply, Mapping) and "raw" in reply and "parsed" in reply:
        return reply["raw"]
    return reply


def text_of(reply: Any) -> str:
    """The words of a reply, or what it says in a tool call."""
    raw = _raw(reply)
    if isinstance(raw, Exception):
        return salvaged(raw) or ""
    if not isinstance(raw, BaseMessage):
        return raw if isinstance(raw, str) else str(raw)
    text = message_text(raw)
    if isinstance(raw, AIMessage) and not text.strip():
        broken = [str(call["args"]) for call in raw.invalid_tool_calls if call["args"]]
        return "\n".join(broken) or str([call["args"] for call in raw.tool_calls] or "")
    return text


def read_answer(reply: Any) -> dict[str, Any]:
    """The checked answer in a reply.

    Raises:
        ValueError: there is none.
    """
    raw = _raw(reply)
    if raw is not reply and isinstance(reply["parsed"], Mapping):
        return checked(reply["parsed"])
    if isinstance(raw, AIMessage) and raw.tool_calls:
        return checked(raw.tool_calls[0]["args"])
    if isinstance(raw, Mapping):
        return checked(raw)
    return checked(read_object(text_of(reply)))


def refusal_in(reply: Any) -> Exception | None:
    """That the model has declined, as its provider says so."""
    error = reply.get("parsing_error") if _raw(reply) is not reply else None
    if isinstance(error, Exception) and is_refusal(error):
        return error
    raw = _raw(reply)
    if not isinstance(raw, AIMessage):
        return None
    declined = raw.additional_kwargs.get("refusal")
    if not declined and raw.response_metadata.get("stop_reason") != "refusal":
        return None
    return Refused(str(declined or message_text(raw) or "no reason given"))
