"""What is known of a model before it is called: its name, its size, what it can be asked for."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable
from langchain_core.runnables.base import RunnableBindingBase

from handoff_graph.errors import MissingPackage
from handoff_graph.prompting import SCHEMA

__all__ = [
    "LEAST_INPUT",
    "by_name",
    "is_async",
    "profiled_input",
    "quiet",
    "share_of",
    "with_schema",
]

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
    takes = _takes(model)
    return max(LEAST_INPUT, int(takes * _SHARE) if takes else _DEFAULT_INPUT)


def _takes(model: object) -> int:
    """How many tokens a model takes, by its profile; 0 if that does not say."""
    profile = getattr(model, "profile", None) if isinstance(model, BaseChatModel) else None
    takes = (profile or {}).get("max_input_tokens")
    return takes if isinstance(takes, int) else 0


def share_of(max_tokens: float | None, context: object) -> int | None:
    """The number of tokens that a bound stands for.

    Args:
        max_tokens: a number of tokens, or a share of the context, such as 0.6; or None.
        context: the model whose context it is, or its size in tokens.

    Raises:
        ValueError: it is a share, and the size of the context is not known.
    """
    if max_tokens is None or isinstance(max_tokens, int):
        return max_tokens
    takes = context if isinstance(context, int) else _takes(context)
    if not 0 < max_tokens < 1 or not takes:
        raise ValueError(
            f"max_tokens={max_tokens!r} is a share of a model's context: it must be between 0 and "
            "1, and context= the agent's model, if its profile says how much it takes, or a "
            "number of tokens"
        )
    return max(1, int(takes * max_tokens))


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
