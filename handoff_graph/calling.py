"""How a model is called: steps of a flow, what an error means, and a limit to the wait.

A flow is a generator that yields steps and is sent what came of each, an error included. It is
driven by a sync or an async driver, so that chunking, repair and retries stand once.
"""

from __future__ import annotations

import asyncio
import queue
import random
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, NamedTuple, TypeVar

from langchain_core.messages import BaseMessage

__all__ = [
    "Ask",
    "Flow",
    "Refused",
    "Wait",
    "aabandonable",
    "abandonable",
    "adrive",
    "awaited",
    "backoff",
    "drive",
    "hint",
    "is_overflow",
    "is_refusal",
    "is_transient",
    "refuses_structure",
    "salvaged",
]

T = TypeVar("T")


class Ask(NamedTuple):
    """One call of the model. Answered with what it returned, or the exception it raised.

    Attributes:
        messages: the prompt.
        structured: whether the schema goes with it, as a tool or as a response format.
    """

    messages: list[BaseMessage]
    structured: bool


class Refused(Exception):
    """The model declined to answer. langchain-core has a class for it from 1.7.5 on."""


class Wait(NamedTuple):
    """A pause before the next try. Answered with None."""

    seconds: float


Step = Ask | Wait
Flow = Generator[Step, Any, T]


def drive(flow: Flow[T], perform: Callable[[Step], Any]) -> T:
    """Run a flow to its end, each step by `perform`."""
    try:
        step = next(flow)
        while True:
            answer: Any
            try:
                answer = perform(step)
            except Exception as error:
                answer = error
            step = flow.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        flow.close()


async def adrive(flow: Flow[T], perform: Callable[[Step], Awaitable[Any]]) -> T:
    """`drive`, awaiting each step. A cancellation is no answer: it goes through."""
    try:
        step = next(flow)
        while True:
            answer: Any
            try:
                answer = await perform(step)
            except Exception as error:
                answer = error
            step = flow.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        flow.close()


# -- what an error means ---------------------------------------------------------------------

# Clients are recognised by what their errors say and not by their classes: no client package
# is imported here, and langchain-core has names for most of these only since 1.7.
_OVERFLOWS = (
    "context_length_exceeded",
    "maximum context length",
    "prompt is too long",
    "exceeds the context window",
    "exceed context limit",
    "input is too long",
    "input tokens exceed",
    "contextwindowexceeded",
    "input token count",
)
_STRUCTURE = ("tool", "function", "response_format", "json_schema", "schema", "structured")
_NETWORK = frozenset(
    {
        "APIConnectionError",
        "APITimeoutError",
        "JSONDecodeError",  # a gateway's page, or nothing, in the place of an answer
        "ModelConnectionError",
        "ModelTimeoutError",
        "TransportError",
    }
)


def is_overflow(error: BaseException) -> bool:
    """Whether the prompt was longer than the model takes."""
    if "ContextOverflowError" in _names(error):
        return True
    said = _said(error)
    return _status(error) in (None, 400, 413, 422) and any(text in said for text in _OVERFLOWS)


def is_refusal(error: BaseException) -> bool:
    """Whether the model declined to answer: asking again would not help."""
    return isinstance(error, Refused) or "ModelRefusalError" in _names(error)


def refuses_structure(error: BaseException) -> bool:
    """Whether it is the schema that the client or the provider does not take."""
    if isinstance(error, NotImplementedError):
        return True
    said = _said(error)
    return _status(error) in (400, 404, 422, 501) and any(text in said for text in _STRUCTURE)


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed a little later."""
    if _is_out_of_quota(error):
        return False
    status = _status(error)
    if status is not None:
        return status in (408, 409, 425, 429) or (status >= 500 and status != 501)
    if isinstance(error, (TimeoutError, asyncio.TimeoutError, ConnectionError)):
        return True
    return getattr(error, "is_retryable", False) is True or bool(_names(error) & _NETWORK)


def backoff(tries: int, error: BaseException) -> float:
    """Seconds until the next try: doubled each time, scattered, or as the provider asks.

    Args:
        tries: how many have failed.
        error: the last failure.
    """
    scattered: float = min(30.0, 0.5 * 2**tries) * random.uniform(0.5, 1.5)
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        asked = float(headers.get("retry-after", 0))
    except (TypeError, ValueError):
        asked = 0.0  # a date, which few send
    return max(scattered, min(asked, 60.0))


def hint(error: BaseException) -> str:
    """What to do about a call that failed for good."""
    if is_overflow(error):
        return "Give ModelSummarizer a smaller max_input_tokens, or a model that reads more."
    if is_refusal(error):
        return "The model declined to summarize these messages: use another one for it."
    if _is_out_of_quota(error):
        return "The account of the summarizer's model has no quota left."
    if _status(error) in (401, 403):
        return "Check the api key of the summarizer's model, and what it is allowed to do."
    if is_transient(error):
        return "The provider or the network is at fault: raise timeout or retries if it lasts."
    return "See the error; handoff_graph.HeuristicSummarizer needs no model."


def salvaged(error: BaseException) -> str | None:
    """The text of an answer that its client threw away because it was cut off."""
    try:
        text = error.completion.choices[0].message.content  # type: ignore[attr-defined]
    except (AttributeError, IndexError, TypeError):
        return None
    return text if isinstance(text, str) and text else None


def _is_out_of_quota(error: BaseException) -> bool:
    """Sent with the status of a rate limit, but it stays until somebody pays."""
    return "insufficient_quota" in _said(error)


def _said(error: BaseException) -> str:
    """All that an error says, its code and body included: some texts leave those out."""
    more = (getattr(error, name, None) for name in ("code", "body"))
    return " ".join(map(str, (error, *more))).lower()


def _names(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error speaks of, wherever its client keeps it."""
    response = getattr(error, "response", None)
    found = (
        getattr(error, "status_code", None),
        getattr(response, "status_code", None),
        getattr(error, "code", None),
    )
    return next((code for code in found if isinstance(code, int) and 400 <= code < 600), None)


# -- a limit to the wait ---------------------------------------------------------------------


def abandonable(call: Callable[[], T], seconds: float | None) -> T:
    """Call in a thread that is left to itself when the time is up.

    Python cannot stop a thread. This one is a daemon, so a call that never returns does not
    keep the process from ending; it sees the context of its caller, callbacks and all.

    Args:
        call: what to call.
        seconds: how long to wait; None waits for ever.

    Raises:
        TimeoutError: the time is up.
    """
    box: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
    _start(call, lambda value, error: box.put((value, error)))
    try:
        value, error = box.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} seconds") from None
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


async def aabandonable(call: Callable[[], T]) -> T:
    """The same for a coroutine, which is left at its cancellation: no pool waits for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if future.done():
            return  # cancelled meanwhile
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def deliver(value: Any, error: BaseException | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, error)

    _start(call, deliver)
    return await future


def _start(call: Callable[[], Any], deliver: Callable[[Any, BaseException | None], None]) -> None:
    context = copy_context()

    def work() -> None:
        value, failure = None, None
        try:
            value = context.run(call)
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # the loop was closed in this moment: nobody waits
            deliver(value, failure)

    threading.Thread(target=work, name="handoff-summarizer", daemon=True).start()


def awaited(pending: Awaitable[Any]) -> Any:
    """The result of an awaitable, for a caller that cannot await.

    A notebook or a web handler that calls `invoke` has an event loop running in its thread; a
    second one needs another thread, which takes the context along.
    """

    async def wait() -> Any:
        return await pending

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    with ThreadPoolExecutor(1) as worker:
        return worker.submit(copy_context().run, asyncio.run, wait()).result()
