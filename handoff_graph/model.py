"""The summarizer that asks a model.

It shows the model the task state and the messages that are about to go, and has it report what
they change. Long stretches go in chunks, each of which sees what the one before it made of the
state; failures are tried again, and what fails for good is `SummarizerFailed`: never half a
summary.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs

from handoff_graph.answers import joined, update_from
from handoff_graph.calling import (
    Ask,
    Flow,
    Step,
    Wait,
    aabandonable,
    abandonable,
    adrive,
    awaited,
    backoff,
    drive,
    hint,
    is_overflow,
    is_transient,
    refuses_structure,
    salvaged,
)
from handoff_graph.clients import (
    LEAST_INPUT,
    by_name,
    is_async,
    profiled_input,
    quiet,
    with_schema,
)
from handoff_graph.errors import SummarizerFailed
from handoff_graph.prompting import prompt, repair, tokens
from handoff_graph.replies import Spent, read_answer, refusal_in, text_of
from handoff_graph.summarize import Folding, HeuristicSummarizer, Summary
from handoff_graph.task import TaskUpdate, extend, merge
from handoff_graph.transcript import is_briefing, message_text

__all__ = ["ModelFunction", "ModelSummarizer"]

ModelFunction = Callable[[list[BaseMessage]], Any]
"""A model as a plain function, sync or async: messages in; a text, an object or a message out."""

_MARKS: RunnableConfig = {
    # LangGraph's TAG_NOSTREAM: no token of a summary among those that a user is shown.
    "tags": ["nostream"],
    "metadata": {"lc_source": "summarization", "handoff": "summarizer"},
    "run_name": "handoff_summarizer",
}


class _Failed(Exception):
    """A prompt has no usable answer."""

    def __init__(self, error: Exception, messages: Sequence[BaseMessage]) -> None:
        self.error = error
        self.size = sum(tokens(message_text(m)) for m in messages)


class ModelSummarizer:
    """Has a model say what the folded messages change in the task state.

    Give it to a `SummarizerNode`, which does so itself for a model or the name of one. The
    model is called by its structured output where it has one, and else answers in text. Its
    calls are children of the graph's run, tagged so that no token of them is streamed.

    Args:
        model: a chat model; the name of one, such as `"openai:gpt-5-mini"`, for which
            `langchain` must be installed; any other Runnable that takes messages; or a plain
            function, sync or async, from a list of messages to a text, a message or an object.
        max_input_tokens: how much a prompt may have; longer stretches go in several. None:
            half of what the model's profile says it takes, or else 24,000.
        timeout: seconds for each call; None waits for ever.
        retries: how often a call is made again after a rate limit, a server error, a timeout
            or a lost connection.

    Example:
        >>> from types import SimpleNamespace
        >>> folding = SimpleNamespace(
        ...     folded=[HumanMessage("I have done the audit.", id="m1")],
        ...     tail=[], at="2026-01-01T00:00:00Z")
        >>> def model(messages):
        ...     return '{"done": [{"text": "Audit", "evidence": "m1"}], "next_action": "Cut over"}'
        >>> update, cost = ModelSummarizer(model)({}, folding)
        >>> update["done"][0]["text"], update["done"][0]["src"], update["next_action"]
        ('Audit', 'm1', 'Cut over')
        >>> cost["calls"]
        1
    """

    sleep: Callable[[float], None] = staticmethod(time.sleep)
    """How a sync call waits between tries."""

    asleep: Callable[[float], Awaitable[None]] = staticmethod(asyncio.sleep)
    """How an async call waits between tries."""

    def __init__(
        self,
        model: BaseChatModel | str | Runnable[Any, Any] | ModelFunction,
        *,
        max_input_tokens: int | None = None,
        timeout: float | None = 60.0,
        retries: int = 2,
    ) -> None:
        if isinstance(model, str):
            model = by_name(model)
        if not isinstance(model, Runnable) and not callable(model):
            raise TypeError(
                "model must be a chat model, the name of one, a Runnable or a function from "
                f"messages to a text, not {type(model).__name__}"
            )
        if max_input_tokens is not None and max_input_tokens < LEAST_INPUT:
            raise ValueError(f"max_input_tokens: at least {LEAST_INPUT}, not {max_input_tokens!r}")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout: seconds above 0 or None, not {timeout!r}")
        if retries < 0:
            raise ValueError(f"retries: 0 or more, not {retries!r}")
        self.model = quiet(model) if isinstance(model, Runnable) else model
        self.timeout, self.retries = timeout, retries
        self.max_input_tokens = max_input_tokens or profiled_input(model)
        self._with_schema = with_schema(self.model)
        self._structured = self._with_schema is not None

    def __repr__(self) -> str:
        return f"ModelSummarizer({type(self.model).__name__})"

    def __call__(
        self,
        state: Mapping[str, Any],
        folding: Folding,
        config: RunnableConfig | None = None,
    ) -> Summary:
        """Summarize; blocks until the model has answered.

        Args:
            state: the task state.
            folding: what is folded.
            config: the config of the surrounding run; found by itself on Python 3.11 and later.

        Raises:
            SummarizerFailed: there is no summary, whatever was tried.
        """
        config = _marked(config)

        def perform(step: Step) -> Any:
            if isinstance(step, Wait):
                return self.sleep(step.seconds)
            return abandonable(partial(self._call, step, config), self.timeout)

        return drive(self._flow(state, folding), perform)

    async def acall(
        self,
        state: Mapping[str, Any],
        folding: Folding,
        config: RunnableConfig | None = None,
    ) -> Summary:
        """The same without blocking; a cancellation goes through at once."""
        config = _marked(config)

        async def perform(step: Step) -> Any:
            if isinstance(step, Wait):
                return await self.asleep(step.seconds)
            try:
                return await asyncio.wait_for(self._acall(step, config), self.timeout)
            except asyncio.TimeoutError as error:
                raise TimeoutError(str(error) or f"no answer within {self.timeout}s") from error

        return await adrive(self._flow(state, folding), perform)

    # -- one call ------------------------------------------------------------------------------

    def _target(self, ask: Ask) -> Any:
        return self._with_schema if ask.structured else self.model

    def _call(self, ask: Ask, config: RunnableConfig) -> Any:
        target = self._target(ask)
        if isinstance(target, Runnable):
            return target.invoke(ask.messages, config)
        made = target(ask.messages)
        return awaited(made) if inspect.isawaitable(made) else made

    async def _acall(self, ask: Ask, config: RunnableConfig) -> Any:
        target = self._target(ask)
        if isinstance(target, Runnable) and is_async(self.model):
            return await target.ainvoke(ask.messages, config)
        if inspect.iscoroutinefunction(target):
            return await target(ask.messages)
        return await aabandonable(partial(self._call, ask, config))

    # -- the flow ------------------------------------------------------------------------------

    def _flow(self, state: Mapping[str, Any], folding: Folding) -> Flow[Summary]:
        spent = Spent()
        running = extend(merge(state, None), HeuristicSummarizer().captured(state, folding))
        todo: Sequence[BaseMessage] = [m for m in folding.folded if not is_briefing(m)]
        update: TaskUpdate = {"at": folding.at, "by": "model"}
        items, limit = 0, self.max_input_tokens
        while todo:
            try:
                answer, taken = yield from self._ask_about(running, todo, folding, limit, spent)
            except _Failed as failed:
                error, half = failed.error, min(limit, failed.size) // 2
                if not is_overflow(error) or half < LEAST_INPUT:
                    cost = spent.cost()
                    raise SummarizerFailed(spent.calls, error, hint(error), cost) from error
                limit = half
                continue
            part, count = update_from(answer, running, folding, items)
            running = extend(running, part)
            update = joined(update, part)
            items, todo = items + count, todo[taken:]
        self.max_input_tokens = min(limit, self.max_input_tokens)  # what it has taken
        return Summary(update, spent.cost())

    def _ask_about(
        self,
        state: Mapping[str, Any],
        messages: Sequence[BaseMessage],
        folding: Folding,
        limit: int,
        spent: Spent,
    ) -> Generator[Step, Any, tuple[dict[str, Any], int]]:
        """The answer about the first of these messages, and how many those are."""
        for structured in (True, False) if self._structured else (False,):
            asked = prompt(state, messages, folding.tail, limit=limit, structured=structured)
            try:
                answer = yield from self._answer(asked.messages, structured, spent)
            except _Failed as failed:
                overflow = is_overflow(failed.error)
                if not structured or overflow or not refuses_structure(failed.error):
                    raise
                continue
            self._structured = structured  # what works is asked for from now on
            return answer, asked.taken
        raise AssertionError("unreachable")

    def _answer(
        self, messages: list[BaseMessage], structured: bool, spent: Spent
    ) -> Generator[Step, Any, dict[str, Any]]:
        """The answer to a prompt, put right once by the model itself if need be."""
        reply = yield from self._reply(messages, structured, spent)
        try:
            return read_answer(reply)
        except ValueError as error:
            again = HumanMessage(repair(text_of(reply), str(error)))
        reply = yield from self._reply([*messages, again], structured, spent)
        try:
            return read_answer(reply)
        except ValueError as error:
            raise _Failed(error, messages) from error

    def _reply(
        self, messages: list[BaseMessage], structured: bool, spent: Spent
    ) -> Generator[Step, Any, Any]:
        """What the model returns, tried again where that may help."""
        for tries in range(self.retries + 1):
            started = time.monotonic()
            reply = yield Ask(messages, structured)
            spent.add(messages, reply, time.monotonic() - started)
            if not isinstance(reply, Exception):
                refusal = refusal_in(reply)
                if refusal is None:
                    return reply
                reply = refusal
            if (text := salvaged(reply)) is not None:
                return text
            if tries == self.retries or is_overflow(reply) or not is_transient(reply):
                break
            yield Wait(backoff(tries, reply))
        raise _Failed(reply, messages) from reply


def _marked(config: RunnableConfig | None) -> RunnableConfig:
    """The surrounding run's config, so that the call is its child, with our marks."""
    around = ensure_config(config)
    around.pop("run_id", None)
    around.pop("run_name", None)
    return merge_configs(around, _MARKS)
