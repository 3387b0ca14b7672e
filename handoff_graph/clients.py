"""What is known of a model before it is called: its name, its size, what it can be asked for."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable
from langchain_core.runnables.base import RunnableBindingBase

from handoff_graph.errors import MissingPackage
from handoff_graph.prompting import SCHEMA

__all__ = ["LEAST_INPUT", "by_name", "is_async", "profiled_input", "quiet", "with_schema"]

LEAST_INPUT = 2_000
"""Tokens below which a prompt cannot be cut: its rules, a short record and one message."""

_DEFAULT_INPUT = 24_000  # where a model does not say what it takes
_SHARE = 0.5  # of what it takes: tokens are estimated, and models read the middle badly


def by_name(name: str) -> BaseChatModel:
    """The chat model of a name such as `openai:gpt-5-mini`.

    Raises:
        MissingPackage: langchain is not installed, or the provider's package.
    """
    try:
        from langchain.chat_models import init_chat_model
    except ImportError as error:
        raise MissingPackage(f"model {name!r}", "pip install langchain", str(error)) from error
    try:
        return init_chat_model(name)
    except ImportError as error:
        package = f"langchain-{name.partition(':')[0].replace('_', '-')}"
        command = f"pip install {package}" if ":" in name else "see the reason"
        raise MissingPackage(f"model {name!r}", command, str(error)) from error


def quiet(model: Runnable[Any, Any]) -> Runnable[Any, Any]:
    """The model without streaming, which is for an audience; also behind `bind` and such."""
    if isinstance(model, BaseChatModel):
        return model.model_copy(update={"disable_streaming": True})
    if isinstance(model, RunnableBindingBase):
        return model.model_copy(update={"bound": quiet(model.bound)})
    return model


def profiled_input(model: object) -> int:
    """How much of a prompt to send at once to this model."""
    profile = getattr(model, "profile", None) if isinstance(model, BaseChatModel) else None
    takes = (profile or {}).get("max_input_tokens")
    share = int(takes * _SHARE) if isinstance(takes, int) and takes else _DEFAULT_INPUT
    return max(LEAST_INPUT, share)


def with_schema(model: object) -> Runnable[Any, Any] | None:
    """The model made to answer by the schema; None where it is known that it cannot."""
    if not isinstance(model, BaseChatModel):
        return None
    profile = model.profile or {}
    if profile.get("tool_calling") is False and not profile.get("structured_output"):
        return None
    try:
        return model.with_structured_output(SCHEMA, include_raw=True)
    except (NotImplementedError, ValueError, TypeError):
        return None  # each says so in its own way


def is_async(model: object) -> bool:
    """Whether it can be awaited by itself, and not only in a pool's thread, for which the
    process would wait."""
    return not isinstance(model, BaseChatModel) or type(model)._agenerate is not _POOLED._agenerate


_POOLED = BaseChatModel
