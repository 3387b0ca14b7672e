"""When to look whether a transcript is due.

To look takes time that grows with the tail, and a transcript on a `DeltaChannel` has to be
rebuilt from the database for it. So the saver counts what is written, and looks when a fold
may be due.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.types import Overwrite

from handoff_graph.fold import Policy, tokens_left
from handoff_graph.transcript import approximate_tokens, completed_calls, has_open_call

__all__ = ["Watches"]

_SPACES = 4096  # transcripts watched at a time; any other is looked at once more


class _Noted(NamedTuple):
    """What a task has written: on which checkpoint, and the channel of each message."""

    behind: str
    channels: Sequence[str]
    calls: int
    tokens: int


class Watches:
    """How many tool results, and how many tokens, each transcript may grow by before a look.

    Args:
        policy: when to fold.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._lock = Lock()
        self._left: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()
        self._noted: dict[tuple[str, str], list[_Noted]] = {}
        self._seen: dict[tuple[str, str], Mapping[str, int]] = {}

    def note(
        self, thread_id: str, ns: str, checkpoint_id: str, writes: Iterable[tuple[str, Any]]
    ) -> None:
        """Count the messages in the writes of a task."""
        told = [(name, found) for name, value in writes if (found := _messages(value))]
        if not told:
            return
        messages = [m for _, found in told for m in found]
        tokens = 0 if self._policy.max_tokens is None else approximate_tokens(messages)
        calls = sum(isinstance(m, ToolMessage) for m in messages)
        channels = [name for name, found in told for _ in found]
        with self._lock:
            if (thread_id, ns) in self._left:
                noted = self._noted.setdefault((thread_id, ns), [])
                noted.append(_Noted(checkpoint_id, channels, calls, tokens))

    def is_due(self, thread_id: str, ns: str, checkpoint_id: str, sizes: Mapping[str, int]) -> bool:
        """Whether to look now: the counts have run out, or nothing has been counted yet.

        Args:
            thread_id: the thread.
            ns: the namespace.
            checkpoint_id: the checkpoint.
            sizes: how long the transcripts in it are, by channel. Where one has shrunk, or
                grown by more than was counted, somebody has not told of it.
        """
        with self._lock:
            left = self._left.get((thread_id, ns))
            seen = self._seen.get((thread_id, ns), {})
            noted = [n for n in self._noted.get((thread_id, ns), ()) if n.behind < checkpoint_id]
        if left is None or any(name not in seen or seen[name] > sizes[name] for name in sizes):
            return True
        told = Counter(name for n in noted for name in n.channels)
        untold = sum(max(0, sizes[name] - seen[name] - told[name]) for name in sizes)
        calls, tokens = sum(n.calls for n in noted), sum(n.tokens for n in noted)
        if untold and self._policy.max_tokens is not None:
            return True
        return left[0] <= calls + untold or left[1] < tokens

    def looked(
        self,
        thread_id: str,
        ns: str,
        checkpoint_id: str,
        transcripts: Mapping[str, Sequence[BaseMessage]],
        sizes: Mapping[str, int],
        folds: Mapping[str, Any],
    ) -> None:
        """Count anew from these transcripts, as they are stored.

        Args:
            thread_id: the thread.
            ns: the namespace.
            transcripts: the transcripts by channel.
            sizes: how long those in the checkpoint were before.
            folds: where each was folded last.
        """
        most = self._policy.max_tokens
        calls, tokens = self._policy.every, most or 0
        for name, messages in transcripts.items():
            last = folds.get(name, {})
            done = completed_calls(messages, last.get("anchor"))
            calls = min(calls, 0 if has_open_call(messages) else self._policy.every - done)
            left = tokens_left(messages, last, self._policy)
            tokens = tokens if left is None else min(tokens, left)
        with self._lock:
            self._left[thread_id, ns] = (calls, tokens)
            self._seen[thread_id, ns] = sizes
            # A run goes ahead: what it wrote behind this checkpoint is still to be looked at.
            noted = self._noted.pop((thread_id, ns), [])
            self._noted[thread_id, ns] = [n for n in noted if n.behind >= checkpoint_id]
            self._left.move_to_end((thread_id, ns))
            while len(self._left) > _SPACES:
                gone, _ = self._left.popitem(last=False)
                self._seen.pop(gone, None)
                self._noted.pop(gone, None)


def _messages(value: Any) -> list[BaseMessage]:
    inner = value.value if isinstance(value, Overwrite) else value
    parts = inner if isinstance(inner, list) else [inner]
    return [m for m in parts if isinstance(m, BaseMessage)]
