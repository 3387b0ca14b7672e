"""Which channel holds what a database cannot store, for an error that says so."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import get_serializable_checkpoint_metadata
from langgraph.checkpoint.serde.base import SerializerProtocol

from handoff_graph.codec import dumps
from handoff_graph.errors import UnstorableValue
from handoff_graph.steps import Inner

__all__ = ["check_metadata", "check_task", "refusal"]


def check_metadata(config: RunnableConfig, metadata: Any) -> None:
    """Refuse numbers that JSON has no form for.

    PostgreSQL refuses them too. SQLite would store them, and then fail every query that looks
    into the metadata of any thread.

    Raises:
        UnstorableValue: there is one.
    """
    # LangGraph takes over the plain values of the config, so numbers at its top level only.
    taken = (config.get("metadata") or {}, config["configurable"])
    if not any(v and not isinstance(v, (str, int)) for v in metadata.values()) and not any(
        isinstance(v, float) for values in taken for v in values.values()
    ):
        return
    flaw = _flaw(get_serializable_checkpoint_metadata(config, metadata))
    if flaw is not None and flaw.startswith("the number"):
        raise _error(config, f"{flaw} in the metadata")


def check_task(config: RunnableConfig, state: Mapping[str, Any]) -> None:
    """Refuse a task state that is no JSON.

    Raises:
        UnstorableValue: it is not.
    """
    try:
        dumps(state)
    except (TypeError, ValueError) as error:
        raise _error(config, f"the task ({error})") from error


def refusal(step: Inner, error: Exception, serde: SerializerProtocol) -> UnstorableValue | None:
    """The error to raise for a value that could not be stored.

    Args:
        step: the call of the inner saver that failed.
        error: why.
        serde: the inner saver's serializer.

    Returns:
        An error that names the thread and the channel; None if no value is to blame.
    """
    if step.method not in ("put", "put_writes"):
        return None
    config = step.args[0]
    # A value that the serializer refuses is named by it; any other is the database's to refuse.
    serializing = isinstance(error, (TypeError, ValueError))
    for where, value in _parts(step):
        if serializing:
            reason = _unserializable(value, serde)
            if reason is not None:
                return _error(config, f"the value of {where} ({reason})")
        elif (flaw := _flaw(value)) is not None:
            return _error(config, f"{flaw} in {where}")
    return None


def _parts(step: Inner) -> Iterator[tuple[str, Any]]:
    """What a call stores that PostgreSQL keeps as text or JSON, or that is serialized."""
    if step.method == "put":
        config, checkpoint, metadata, _ = step.args
        named = checkpoint["channel_values"].items()
        yield "the metadata", get_serializable_checkpoint_metadata(config, metadata)
    else:
        named = step.args[1]
    for name, value in named:
        yield f"the name of channel {name!r}", name
        yield f"channel {name!r}", value


def _unserializable(value: Any, serde: SerializerProtocol) -> str | None:
    try:
        serde.dumps_typed(value)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _flaw(value: Any) -> str | None:
    """What PostgreSQL's JSON has no form for, in a value of plain types."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"the number {value}"
    if isinstance(value, str):
        if "\0" in value:
            return "a NUL character"
        return "half a surrogate pair" if _is_halved(value) else None
    inner: list[Any] = []
    if isinstance(value, Mapping):
        inner = [*value, *value.values()]
    elif isinstance(value, (list, tuple)):
        inner = [*value]
    return next((flaw for flaw in map(_flaw, inner) if flaw is not None), None)


def _is_halved(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text) if not text.isascii() else False


def _error(config: RunnableConfig, what: str) -> UnstorableValue:
    thread = str(config["configurable"]["thread_id"])
    return UnstorableValue(
        thread, f"it cannot store {what}", "Replace it, then run the step again."
    )
