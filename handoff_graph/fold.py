"""One fold, decided and computed: the pure core that the saver and the node both drive.

`due` says whether, `prepare` says which messages, a summarizer turns them into an update, and
`complete` makes the new state, the briefing and the tail. Nothing here reads a clock, a
database or a graph, so the sync and async drivers share every line of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage

from handoff_graph.briefing import DEFAULT_BUDGET, fit, render_briefing
from handoff_graph.constraints import step_over
from handoff_graph.errors import HandoffWarning
from handoff_graph.guard import Guarded, guard
from handoff_graph.identifiers import repeated
from handoff_graph.schema import canonical
from handoff_graph.task import TaskUpdate, blank_state, content, extend, merge
from handoff_graph.transcript import (
    approximate_tokens,
    briefing_message,
    completed_calls,
    has_open_call,
    is_briefing,
    message_keys,
    message_text,
    split,
)

__all__ = [
    "Fold",
    "Folding",
    "Policy",
    "complete",
    "due",
    "may_be_due",
    "prepare",
    "tokens_left",
    "update_between",
]

FORCE = "handoff_force"
"""Set true in `config["configurable"]` to have that run fold whatever it can."""

_NEWS = 4  # a fold for length comes when at least a quarter of the bound is new


@dataclass(frozen=True)
class Policy:
    """When to fold and how much to keep.

    Attributes:
        every: fold when this many tool calls have completed since the last fold.
        keep: how many of the newest exchanges stay word for word (at least one: the newest
            results have not been seen by the model yet).
        max_tokens: fold too when the transcript passes this many approximate tokens and a good
            part of it is new. None: however large the tool outputs are, wait for `every`.
        budget: tokens that the briefing may take.
        owner: who is working, for the session's line in the ledger.
    """

    every: int = 10
    keep: int = 1
    max_tokens: int | None = 100_000
    budget: int = DEFAULT_BUDGET
    owner: str = ""

    def __post_init__(self) -> None:
        for name in ("every", "keep", "budget"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
        if not isinstance(self.owner, str):
            raise ValueError(f"owner must be a name, not {self.owner!r}")
        most = self.max_tokens
        if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
            raise ValueError(f"max_tokens must be at least 1 or None, not {self.max_tokens!r}")


@dataclass(frozen=True)
class Folding:
    """A fold in the making: what a summarizer is given."""

    channel: str
    folded: Sequence[BaseMessage]
    tail: Sequence[BaseMessage]
    calls: int
    anchor: str
    at: str


@dataclass(frozen=True)
class Fold:
    """A finished fold."""

    state: dict[str, Any]
    update: TaskUpdate
    briefing: SystemMessage
    folding: Folding = field(repr=False)


def due(
    state: Mapping[str, Any],
    channel: str,
    messages: Sequence[BaseMessage],
    policy: Policy,
    *,
    force: bool = False,
) -> bool:
    """Whether this transcript should be folded now.

    Args:
        state: the task state (may be empty).
        channel: the name of the transcript channel; each keeps its own count.
        messages: the transcript.
        policy: when to fold.
        force: the caller asks for it, whatever the counts say.

    Returns:
        False while a call is open, and False again until there is new work: the count starts
        behind the message at which the last fold was made.
    """
    last = state.get("folds", {}).get(channel, {})
    fresh = _fresh(messages, last)
    too_long = _is_too_long(messages, fresh, policy)
    if not too_long and not _may_be_due(state, last, fresh, policy, force):
        return False
    if not any(not is_briefing(m) for m in fresh) or has_open_call(messages):
        return False
    if too_long or force or state.get("phase", "") != last.get("phase", ""):
        return True
    return completed_calls(messages, last.get("anchor")) >= policy.every


def may_be_due(
    state: Mapping[str, Any],
    channel: str,
    messages: Sequence[BaseMessage],
    policy: Policy,
    *,
    force: bool = False,
) -> bool:
    """Whether a fold could be due once open calls have their results.

    Arguments as for `due`. This only counts: to pair calls and results takes much longer.
    """
    last = state.get("folds", {}).get(channel, {})
    fresh = _fresh(messages, last)
    return _may_be_due(state, last, fresh, policy, force) or _is_too_long(messages, fresh, policy)


def tokens_left(
    messages: Sequence[BaseMessage], last: Mapping[str, Any], policy: Policy
) -> int | None:
    """By how many tokens a transcript may still grow; None if by any number.

    What stays whatever happens, such as a long log that a person pasted, may be over the bound
    by itself: so a part of it must have come since the last fold, or every call would be one.

    Args:
        messages: the transcript.
        last: where it was folded last.
        policy: when to fold.
    """
    return _tokens_left(messages, _fresh(messages, last), policy)


def _tokens_left(
    messages: Sequence[BaseMessage], fresh: Sequence[BaseMessage], policy: Policy
) -> int | None:
    if policy.max_tokens is None:
        return None
    news = policy.max_tokens // _NEWS
    return max(
        policy.max_tokens - approximate_tokens(messages),
        news - approximate_tokens(fresh),
    )


def _is_too_long(
    messages: Sequence[BaseMessage], fresh: Sequence[BaseMessage], policy: Policy
) -> bool:
    left = _tokens_left(messages, fresh, policy)
    return left is not None and left < 0


def _may_be_due(
    state: Mapping[str, Any],
    last: Mapping[str, Any],
    fresh: Sequence[BaseMessage],
    policy: Policy,
    force: bool,
) -> bool:
    if force or state.get("phase", "") != last.get("phase", ""):
        return True
    results = sum(isinstance(m, ToolMessage) for m in fresh)
    calls = sum(
        len(m.tool_calls) + len(m.invalid_tool_calls) for m in fresh if isinstance(m, AIMessage)
    )
    return max(results, calls) >= policy.every


def _fresh(messages: Sequence[BaseMessage], last: Mapping[str, Any]) -> Sequence[BaseMessage]:
    """The messages behind the one at which the last fold was made."""
    keys = message_keys(messages)
    anchor = last.get("anchor")
    return messages[keys.index(anchor) + 1 :] if anchor in keys else messages


def prepare(
    channel: str, messages: Sequence[BaseMessage], policy: Policy, at: str
) -> Folding | None:
    """Choose what goes and what stays; None if nothing can go.

    Args:
        channel: the name of the transcript channel.
        messages: the transcript.
        policy: how much to keep.
        at: the stamp of this fold.
    """
    parts = split(messages, policy.keep)
    if not parts.folded:
        return None
    keys = message_keys(messages)
    return Folding(channel, parts.folded, parts.tail, parts.calls, keys[-1], at)


def complete(
    state: Mapping[str, Any],
    folding: Folding,
    summary: TaskUpdate,
    policy: Policy,
    id: str,
    captured: TaskUpdate | None = None,
    cost: Mapping[str, float] | None = None,
    *,
    trusted: bool = False,
) -> Fold:
    """Merge a summary into the state and render the briefing of the result.

    Args:
        state: the task state before the fold (may be empty).
        folding: what is folded.
        summary: what the summarizer made of it.
        policy: budget and owner.
        id: the message id for the briefing.
        captured: what is recorded of the messages whatever the summary says.
        cost: what the summary cost in calls of a model, tokens and seconds, if anything.
        trusted: whether it is the heuristic's, which records nothing without evidence.

    Raises:
        TypeError: the summary is no update.
        InvalidTask: it breaks the schema.

    Returns:
        The new state, the one update that leads to it, and the briefing message.
    """
    if not isinstance(summary, Mapping):
        raise TypeError(f"a summarizer returns a TaskUpdate, not {type(summary).__name__}")
    before = merge(state, None)
    merged = extend(before, captured)
    let = Guarded(summary, [], []) if trusted else guard(merged, folding, summary)
    merged = extend(merged, let.update)
    if merged["phase"] != before["folds"].get(folding.channel, {}).get("phase", ""):
        merged = extend(merged, step_over(before, folding.at))
    merged = extend(merged, _bookkeeping(merged, folding, policy, cost or {}))
    fitted = fit(merged, policy.budget, at=folding.at, before=before)
    if fitted.over:
        warnings.warn(
            f"the briefing is {fitted.over} tokens over its budget of {policy.budget}: "
            "constraints, decisions, blockers, open questions and written artifacts are never "
            "cut. Close some, or raise the budget.",
            HandoffWarning,
            stacklevel=2,
        )
    revision = int(before["revision"]) + 1
    drift = _drift(fitted.state, folding, let)
    kept = approximate_tokens(folding.tail)
    if policy.max_tokens is not None and kept > policy.max_tokens:
        drift["tail_tokens"] = kept
        _warn_of_tail(before["folds"].get(folding.channel, {}), kept, policy.max_tokens)
    fold = {**merged["folds"][folding.channel], "drift": drift}
    folds = {**merged["folds"], folding.channel: fold}
    after = {**fitted.state, "folds": folds, "revision": revision}
    briefing = briefing_message(render_briefing(after), revision=revision, id=id)
    return Fold(after, update_between(before, after), briefing, folding)


def _warn_of_tail(last: Mapping[str, Any], kept: int, most: int) -> None:
    """Say once that what a fold must keep is over the bound by itself."""
    if "tail_tokens" not in last.get("drift", {}):
        warnings.warn(
            f"what stays behind a fold is {kept} tokens long, over max_tokens={most} by itself: "
            "the newest exchanges and the newest human message are never folded. Have tools "
            "return less, or raise max_tokens.",
            HandoffWarning,
            stacklevel=3,
        )


def _drift(state: Mapping[str, Any], folding: Folding, let: Guarded) -> dict[str, Any]:
    """The report of a fold: what went, what the guard did, which names are known no more."""
    texts = [message_text(m) for m in folding.folded if not is_briefing(m)]
    # An earlier report names what is missing, and a roll-up only carries what is to go.
    record = {k: v for k, v in state.items() if k not in ("folds", "rolled_up")}
    known = "\n".join([canonical(record), *(message_text(m) for m in folding.tail)])
    report = {
        "put_back": let.put_back,
        "refused": let.refused,
        "missing": repeated(texts, known),
    }
    return {"folded": len(folding.folded), **{k: v for k, v in report.items() if v}}


def _bookkeeping(
    state: Mapping[str, Any],
    folding: Folding,
    policy: Policy,
    cost: Mapping[str, float],
) -> TaskUpdate:
    owner = policy.owner or state["owner"] or "agent"
    last = state["folds"].get(folding.channel, {})
    session: Mapping[str, Any] = next((s for s in state["sessions"] if s["owner"] == owner), {})
    fold: dict[str, Any] = {
        "n": int(last.get("n", 0)) + 1,
        "calls": int(last.get("calls", 0)) + folding.calls,
        "anchor": folding.anchor,
        "at": folding.at,
        "phase": state["phase"],
    }
    spent = _sum(last.get("cost", {}), cost)
    if spent:
        fold["cost"] = spent
    span = {
        "owner": owner,
        "from": session.get("from") or folding.at,
        "to": folding.at,
        "tool_calls": int(session.get("tool_calls", 0)) + folding.calls,
    }
    return {
        "at": folding.at,
        "owner": owner,
        "folds": {folding.channel: fold},
        "sessions": [span],
    }


def _sum(before: Mapping[str, float], cost: Mapping[str, float]) -> dict[str, float]:
    """What the folds of a channel have cost together; nothing where no model is in use."""
    names = [*before, *(name for name in cost if name not in before)]
    return {name: round(before.get(name, 0) + cost.get(name, 0), 3) for name in names}


def update_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> TaskUpdate:
    """The update that leads from one state to a later one, with nothing it need not say."""
    blank = blank_state()
    update = {
        key: _news(before.get(key), value) if isinstance(value, list) else value
        for key, value in content(after).items()
        if value != before.get(key, blank.get(key))
    }
    update["stamps"] = {
        name: at for name, at in after["stamps"].items() if before["stamps"].get(name) != at
    }
    update["revision"] = after["revision"]
    return update  # type: ignore[return-value]


def _news(before: Any, after: list[Any]) -> list[Any]:
    return [item for item in after if item not in (before or ())]
