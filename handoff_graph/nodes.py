"""The graph node that folds, and the state that it needs."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, NamedTuple, cast, get_args

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.graph.message import add_messages
from langgraph.types import interrupt
from typing_extensions import TypedDict

from handoff_graph import review
from handoff_graph.briefing import render_briefing
from handoff_graph.calling import awaited
from handoff_graph.channels import declare_task_key
from handoff_graph.clients import share_of
from handoff_graph.errors import HandoffError, HandoffWarning, MissingChannel, SummarizerFailed
from handoff_graph.export_node import fields_of, saver_of
from handoff_graph.fold import FORCE, Folding, Policy, complete, due, may_be_due, prepare
from handoff_graph.model import ModelSummarizer
from handoff_graph.rewriting import rewrite
from handoff_graph.sparing import spared
from handoff_graph.summarize import HeuristicSummarizer, Summarizer, Summary
from handoff_graph.task import TaskUpdate, is_task_state, merge, utc_now
from handoff_graph.transcript import (
    briefing_message,
    briefing_revision,
    has_open_call,
    is_briefing,
    is_transcript,
)

__all__ = ["HandoffState", "SummarizerNode"]

AsyncSummarizer = Callable[[Mapping[str, Any], Folding], Awaitable[TaskUpdate]]
Model = Summarizer | AsyncSummarizer | ModelSummarizer | Runnable[Any, Any] | str
OnError = Literal["fallback", "skip", "raise"]
Review = Literal["mark", "interrupt"]


class HandoffState(TypedDict):
    """A state to inherit from: a transcript, and the task that it is folded into."""

    messages: Annotated[list[Any], add_messages]
    task: Annotated[dict[str, Any], merge]


class _Job(NamedTuple):
    """One visit of the summarizer node: what it found in the state."""

    state: Mapping[str, Any]
    opening: TaskUpdate | None
    channel: str
    messages: Sequence[BaseMessage]
    folding: Folding | None
    fresh: Mapping[str, Any] = {}  # briefings that speak of a person's change, by channel


class SummarizerNode(Runnable[Any, dict[str, Any]]):
    """A graph node that folds messages into the task state every N tool calls.

    Put it between the tools and the agent. It does nothing unless a fold is due: `every`
    tool calls have completed since the last one, the transcript has passed `max_tokens`, a
    phase was completed (the task state's `phase` changed), or the run was invoked with
    `{"configurable": {"handoff_force": True}}`. It never folds while a call is open. On its
    first visit it also opens the task: objective and constraints are recorded at once.

    Args:
        every: tool calls between two folds; parallel calls count one each.
        model: a chat model, the name of one (`"openai:gpt-5-mini"`) or another Runnable, for a
            `ModelSummarizer`; or a `Summarizer`: a callable, sync or async, from task state and
            folding to a `TaskUpdate`. None: the heuristic one, without any model.
        keep: newest exchanges that stay word for word.
        max_tokens: fold too when a transcript passes this many approximate tokens, or this
            share of the context, such as 0.6; or None.
        context: what that is a share of: the agent's model, whose profile tells, or a number
            of tokens. If left out: `model`.
        budget: tokens that the briefing may take.
        owner: who is working, for the ledger.
        task_key: the channel of the task state.
        review: `"mark"`: ledger and `handoff list` say how many folds nobody has looked at.
            `"interrupt"`: the run stops for a person (`langgraph.types.interrupt`) with what is
            new since the last review; `Command(resume="approve")` goes on, as does an object
            of `approve`, `reject` or `edit` (see `handoff_graph.review.answered`).
        review_every: folds between two such stops; the end of a phase is one too.
        on_error: what to do when a summarizer fails or returns rubbish. `"fallback"`: fold
            with the heuristic one; `"skip"`: fold nothing this time, the messages stay. Both
            warn. `"raise"`: let the error end the run.

    Example:
        >>> node = SummarizerNode(every=5)
        >>> sorted(node.invoke({"messages": [("user", "hi")], "task": {}}))
        []
    """

    name: str = "summarize"

    def __init__(
        self,
        every: int = 10,
        model: Model | None = None,
        *,
        keep: int = 1,
        max_tokens: float | None = Policy.max_tokens,
        context: BaseChatModel | int | None = None,
        budget: int = Policy.budget,
        owner: str = "",
        task_key: str = "task",
        on_error: OnError = "fallback",
        review: Review = "mark",
        review_every: int = 10,
    ) -> None:
        most = share_of(max_tokens, model if context is None else context)
        if isinstance(model, (str, Runnable)):
            model = ModelSummarizer(model)
        if model is not None and not callable(model):
            raise TypeError(
                "model must be a chat model, the name of one, or a callable (state, folding) -> "
                f"TaskUpdate, not {type(model).__name__}; see handoff_graph.Summarizer"
            )
        if on_error not in get_args(OnError):
            raise ValueError(f"on_error: one of {get_args(OnError)}, not {on_error!r}")
        if review not in get_args(Review):
            raise ValueError(f"review: one of {get_args(Review)}, not {review!r}")
        if review_every < 1:
            raise ValueError(f"review_every must be at least 1, not {review_every!r}")
        self.policy = Policy(every, keep, most, budget, owner)
        declare_task_key(task_key)
        self.model = model
        self.on_error = on_error
        self.review_every = review_every if review == "interrupt" else None
        self.task_key = task_key
        self._heuristic = HeuristicSummarizer()

    def __call__(self, state: Any, config: RunnableConfig | None = None) -> dict[str, Any]:
        """The same as `invoke`."""
        return self.invoke(state, config)

    def invoke(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Fold if due; returns the writes to the transcript and the task, or nothing."""
        job = self._job(input, config)
        if job.folding is None:
            return self._opened(job)
        try:
            if isinstance(self.model, ModelSummarizer):
                made: Any = self.model(job.state, job.folding, config)
            else:
                made = self._summarizer(*self._given(job.state, job.folding))
            if inspect.isawaitable(made):
                made = awaited(made)
            return self._result(job, job.folding, made, trusted=self.model is None)
        except Exception as error:
            return self._failed(job, job.folding, error)

    async def ainvoke(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """`invoke`, awaiting an async summarizer."""
        job = self._job(input, config)
        if job.folding is None:
            return self._opened(job)
        try:
            if isinstance(self.model, ModelSummarizer):
                made: Any = await self.model.acall(job.state, job.folding, config)
            elif inspect.iscoroutinefunction(self._summarizer):
                made = await self._summarizer(*self._given(job.state, job.folding))
            else:
                given = self._given(job.state, job.folding)
                made = await asyncio.to_thread(self._summarizer, *given)
                if inspect.isawaitable(made):
                    made = await made
            return self._result(job, job.folding, made, trusted=self.model is None)
        except Exception as error:
            return self._failed(job, job.folding, error)

    @property
    def _summarizer(self) -> Callable[[Mapping[str, Any], Folding], Any]:
        return self._heuristic if self.model is None else cast(Summarizer, self.model)

    def _given(
        self, state: Mapping[str, Any], folding: Folding
    ) -> tuple[Mapping[str, Any], Folding]:
        return (state, folding) if self.model is None else spared(state, folding)

    def has_work(self, state: Any, config: RunnableConfig | None = None) -> bool:
        """Whether a visit with this state would open or fold, or cannot be judged yet.

        A tool that runs beside others sees their calls as open until the superstep ends; then
        the visit itself has to decide.
        """
        values = fields_of(state)
        task = values.get(self.task_key) or {}
        force = _forced(config)
        return (
            not is_task_state(task)
            or _edit(config) is not None
            or self._is_for_review(task)
            or any(
                has_open_call(messages) or due(task, name, messages, self.policy, force=force)
                for name, messages in values.items()
                if is_transcript(messages)
                and may_be_due(task, name, messages, self.policy, force=force)
            )
        )

    def _is_for_review(self, state: Mapping[str, Any]) -> bool:
        return (
            self.review_every is not None
            and is_task_state(state)
            and review.is_due(state, self.review_every)
        )

    def _job(self, input: Any, config: RunnableConfig | None) -> _Job:
        values = fields_of(input)
        if self.task_key not in values:
            raise MissingChannel(self.task_key, "SummarizerNode")
        transcripts = {name: value for name, value in values.items() if is_transcript(value)}
        state = values[self.task_key] or {}
        opening = None
        if not is_task_state(state):
            state, opening = self._open(state, transcripts, config)
        fresh: dict[str, Any] = {}
        if (edit := _edit(config)) is not None:
            state = merge(edit, state)
            opening, fresh = cast(TaskUpdate, state), _rebriefed(transcripts, state)
        if self._is_for_review(state):
            # Before a fold, and not after it: what runs before an interrupt runs again behind it.
            return _Job(state, cast(TaskUpdate, _reviewed(state)), "", (), None)
        for name, messages in transcripts.items():
            if due(state, name, messages, self.policy, force=_forced(config)):
                if not all(message.id for message in messages):
                    _warn_of_ids(name)
                    continue
                folding = prepare(name, messages, self.policy, utc_now())
                if folding is not None:
                    return _Job(state, opening, name, messages, folding)
        return _Job(state, opening, "", (), None, fresh)

    def _open(
        self,
        raw: Mapping[str, Any],
        transcripts: Mapping[str, Sequence[BaseMessage]],
        config: RunnableConfig | None,
    ) -> tuple[Mapping[str, Any], TaskUpdate | None]:
        """The first task state of a thread: what a saver knew before the node was put in, or
        else the objective and constraints that stand in the transcript."""
        saver = saver_of(config)
        messages = [m for value in transcripts.values() for m in value]
        if saver is not None and config is not None and briefing_revision(messages) is not None:
            known = saver.task_state(_checkpoint(config))
            if known is not None:
                return merge(known, raw), cast(TaskUpdate, known)
        if not messages:
            return raw, None
        at = utc_now()
        seen = Folding("", (), messages, 0, "", at)
        update = dict(self._heuristic(raw, seen))
        update.pop("next_action", None)  # left for the first fold, which knows more
        if self.policy.owner:
            update["owner"] = self.policy.owner
        update["revision"] = 1
        return merge(raw, update), cast(TaskUpdate, update)

    def _opened(self, job: _Job) -> dict[str, Any]:
        """What the node writes where nothing is folded."""
        return {self.task_key: dict(job.opening), **job.fresh} if job.opening else {}

    def _result(
        self, job: _Job, folding: Folding, summary: Any, *, trusted: bool
    ) -> dict[str, Any]:
        """What the node writes for a fold that has its summary."""
        captured = self._heuristic.captured(job.state, folding)
        first = str(job.messages[0].id)
        made, cost = summary if isinstance(summary, Summary) else (summary, None)
        fold = complete(
            job.state, folding, made, self.policy, first, captured, cost, trusted=trusted
        )
        update = merge(job.opening, fold.update) if job.opening else dict(fold.update)
        return {
            self.task_key: update,
            job.channel: rewrite(job.messages, fold.briefing, folding.tail),
        }

    def _failed(self, job: _Job, folding: Folding, error: Exception) -> dict[str, Any]:
        """What the node writes for a fold whose summary failed."""
        if self.on_error == "raise":
            raise error
        result, done = None, "changed nothing, the turn goes on"
        if self.on_error == "fallback" and self.model is not None:
            cost = error.cost if isinstance(error, SummarizerFailed) else {}
            summary = Summary(self._heuristic(job.state, folding), cost)
            with suppress(Exception):  # then it was not the summarizer's fault alone
                result = self._result(job, folding, summary, trusted=True)
                done = "was replaced by the heuristic one, the turn goes on"
        warnings.warn(
            f"the summarizer failed and {done}: {type(error).__name__}: {error}",
            HandoffWarning,
            stacklevel=3,
        )
        return self._opened(job) if result is None else result


def _reviewed(state: Mapping[str, Any]) -> dict[str, Any]:
    """The task state after a person's review, asked for until the answer is one.

    LangGraph keeps an answer with the checkpoint and gives it again: to raise for a wrong one
    would raise at every resume from there on.
    """
    told: dict[str, Any] = review.report(state)
    while True:
        answer = interrupt({"handoff_review": told})
        try:
            return review.answered(state, answer)
        except HandoffError as error:
            told = {**told, "answer_refused": str(error)}


def _warn_of_ids(channel: str) -> None:
    warnings.warn(
        f"channel {channel!r} holds messages without ids, so nothing in it can be folded: give "
        "it a message reducer, as in Annotated[list, add_messages]",
        HandoffWarning,
        stacklevel=4,
    )


def _edit(config: RunnableConfig | None) -> dict[str, Any] | None:
    """The task state with a person's change in it that this run has not seen."""
    saver = saver_of(config)
    where = (config or {}).get("configurable", {})
    return None if saver is None else saver.unseen(str(where.get("thread_id", "")))


def _rebriefed(
    transcripts: Mapping[str, Sequence[BaseMessage]], state: Mapping[str, Any]
) -> dict[str, Any]:
    text, revision = render_briefing(state), int(state["revision"])
    return {
        name: [briefing_message(text, revision=revision, id=str(found[0].id))]
        for name, found in transcripts.items()
        if is_briefing(found[0])
    }


def _forced(config: RunnableConfig | None) -> bool:
    return bool(((config or {}).get("configurable") or {}).get(FORCE))


def _checkpoint(config: RunnableConfig) -> RunnableConfig:
    where = config.get("configurable", {})
    named = {k: where[k] for k in ("thread_id", "checkpoint_id") if where.get(k)}
    return {"configurable": {**named, "checkpoint_ns": ""}}
