"""Everything this package raises, one tree under `HandoffError`.

HandoffError
├── InvalidTask          a task state or update that breaks the schema (also a ValueError)
├── InvalidPattern       a pattern for binding sentences is none (also a ValueError)
├── UnsupportedSchema    stored by a newer version of handoff_graph
├── StorageError         the database refused or failed; nothing of the operation is stored
│   └── UnstorableValue  a value in it has no form there (also a ValueError, a TypeError)
├── EmptyThreadId        a config or call without a thread id (also a ValueError)
├── ThreadExists         a thread would be overwritten by a copy
├── ThreadDeleted        a run goes on with a thread that was deleted meanwhile
├── CheckpointRemoved    a fold has removed the checkpoint asked for (also a LookupError)
├── MissingChannel       a node was put into a graph that lacks the channel it needs
├── CannotWire           add_handoff found no place for the nodes
├── NotAHandoffDatabase  the file is missing, or is something else
├── UnknownConstraint    a task holds no constraint of this id (also a LookupError)
├── UnknownThread        the database holds no such thread (also a LookupError)
├── UnreadableRow        what the database holds of a thread is damaged
├── SummarizerFailed     a model made no summary, whatever was tried
├── MissingPackage       something asked for needs a package to be installed (also an ImportError)
└── LedgerError          the ledger could not be written where it should be

HandoffWarning           something was reported instead of raised, so the run could go on
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = [
    "CannotWire",
    "CheckpointRemoved",
    "EmptyThreadId",
    "HandoffError",
    "HandoffWarning",
    "InvalidPattern",
    "InvalidTask",
    "LedgerError",
    "MissingChannel",
    "MissingPackage",
    "NotAHandoffDatabase",
    "StorageError",
    "SummarizerFailed",
    "ThreadDeleted",
    "ThreadExists",
    "UnknownConstraint",
    "UnknownThread",
    "UnreadableRow",
    "UnstorableValue",
    "UnsupportedSchema",
]


class HandoffError(Exception):
    """Base of every error this package raises on purpose."""


class HandoffWarning(UserWarning):
    """Something went wrong that must not stop the agent: read it, then act."""


class InvalidTask(HandoffError, ValueError):
    """A task state or task update breaks the schema.

    Attributes:
        field: the path of the offending value, such as `constraints[2].text`.
        expected: what would have been accepted.
        found: the value that was there instead.
    """

    def __init__(self, field: str, expected: str, found: object) -> None:
        self.field, self.expected, self.found = field, expected, found
        shown = _shown(found)
        super().__init__(f"task field {field!r}: expected {expected}, found {shown}")


class InvalidPattern(HandoffError, ValueError):
    """A pattern for binding sentences cannot be used.

    Attributes:
        pattern: the pattern.
        reason: what is wrong with it.
    """

    def __init__(self, pattern: object, reason: str) -> None:
        self.pattern, self.reason = pattern, reason
        super().__init__(f"pattern {_shown(pattern)}: {reason}")


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except Exception:  # such as an integer of more digits than Python prints
        return f"an unprintable {type(value).__name__}"
    return shown if len(shown) <= 80 else shown[:77] + "..."


class UnsupportedSchema(HandoffError):
    """The data was written by a newer handoff_graph than this one.

    Attributes:
        found: the schema version in the data.
        supported: the newest version this package reads.
    """

    def __init__(self, what: str, found: object, supported: int) -> None:
        self.found, self.supported = found, supported
        super().__init__(
            f"{what} has schema version {found!r}; this handoff_graph reads up to "
            f"{supported}. Upgrade handoff-graph to read it; nothing was changed."
        )


class StorageError(HandoffError):
    """The database refused or failed; the transaction was rolled back whole.

    Attributes:
        thread: the thread of the operation, or `""`.
        reason: what the database said.
    """

    def __init__(self, thread: str, reason: str, hint: str = "") -> None:
        self.thread, self.reason = thread, reason
        about = f"thread {_shown(thread)}: " if thread else ""
        super().__init__(
            f"{about}the database failed: {reason}. Nothing of this step was stored, what was "
            f"there before is unchanged.{' ' + hint if hint else ''}"
        )


class UnstorableValue(StorageError, ValueError, TypeError):
    """A value that the serializer or the database has no form for.

    The bare savers let the serializer's ValueError or TypeError through; whoever catches one
    of these catches this.
    """


class EmptyThreadId(HandoffError, ValueError):
    """No thread id where one is needed.

    Attributes:
        found: what stood in its place.
    """

    def __init__(self, found: object) -> None:
        self.found = found
        super().__init__(
            f"thread_id: expected a name such as 'migration-postgres-west', found {found!r}. "
            'Pass {"configurable": {"thread_id": ...}}.'
        )


class ThreadExists(HandoffError):
    """A copy would overwrite a thread.

    Attributes:
        thread: its thread id.
    """

    def __init__(self, thread: str) -> None:
        self.thread = thread
        super().__init__(
            f"thread {thread!r} exists already; nothing was copied. Choose another id, or "
            "delete it first."
        )


class ThreadDeleted(HandoffError):
    """A run goes on with a thread that has been deleted meanwhile.

    Attributes:
        thread: its thread id.
    """

    def __init__(self, thread: str) -> None:
        self.thread = thread
        super().__init__(
            f"thread {thread!r} was deleted while a run was under way: its step is not stored, "
            "so that the thread stays deleted. A new run may use the id again."
        )


class CheckpointRemoved(HandoffError, LookupError):
    """The checkpoint asked for is older than the thread's last fold, which removed it.

    Attributes:
        thread: its thread id.
        checkpoint: its checkpoint id.
    """

    def __init__(self, thread: str, checkpoint: str) -> None:
        self.thread, self.checkpoint = thread, checkpoint
        super().__init__(
            f"checkpoint {checkpoint} of thread {thread!r} has been folded away: before the "
            "last fold only milestones are kept. Start from the newest checkpoint (leave "
            "checkpoint_id out), or from one that get_state_history lists."
        )


class MissingChannel(HandoffError):
    """A node needs a channel that the graph's state does not declare."""

    def __init__(self, channel: str, node: str) -> None:
        self.channel, self.node = channel, node
        super().__init__(
            f"{node} needs the channel {channel!r}, which this graph's state lacks. Inherit "
            "the state from HandoffState, or let add_handoff(builder) put the nodes in."
        )


class CannotWire(HandoffError):
    """`add_handoff` found no plain edge on which to put its nodes."""


class NotAHandoffDatabase(HandoffError):
    """The path holds no database that handoff can read.

    Attributes:
        path: the file asked for.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        super().__init__(f"{path}: {reason}")


class UnknownConstraint(HandoffError, LookupError):
    """A task holds no constraint of this id.

    Attributes:
        constraint: the id that was asked for.
        known: the ids that there are.
    """

    def __init__(self, constraint: str, known: Sequence[str]) -> None:
        self.constraint, self.known = constraint, list(known)
        there = ", ".join(known) or "none at all"
        super().__init__(f"no constraint {_shown(constraint)}; there is {there}")


class UnknownThread(HandoffError, LookupError):
    """The database holds nothing under this thread id.

    Attributes:
        thread: the thread id asked for.
        near: thread ids that look alike, best first.
    """

    def __init__(self, thread: str, near: Sequence[str] = ()) -> None:
        self.thread, self.near = thread, tuple(near)
        hint = f" Did you mean: {', '.join(near)}?" if near else " See `handoff list`."
        super().__init__(f"no thread {thread!r} in this database.{hint}")


class UnreadableRow(HandoffError):
    """A row of the database is there, but what is stored in it cannot be read.

    Attributes:
        thread: the thread that the row belongs to; None where only its table is known.
        table: the table.
    """

    def __init__(self, thread: str | None, table: str, reason: str) -> None:
        self.thread, self.table = thread, table
        whose = "a thread" if thread is None else f"thread {thread!r}"
        super().__init__(f"the row of {whose} in {table} is not readable: {reason}")


class SummarizerFailed(HandoffError):
    """A model made no summary; nothing was changed, and nothing of it is used.

    Attributes:
        attempts: how many calls of the model were made.
        kind: the name of the last error's type.
        reason: what the last error said, shortened.
        cost: what the calls cost all the same: calls, input_tokens, output_tokens, seconds.
    """

    def __init__(
        self,
        attempts: int,
        error: BaseException,
        hint: str,
        cost: Mapping[str, float] | None = None,
    ) -> None:
        said = " ".join(str(error).split())
        self.attempts, self.kind = attempts, type(error).__name__
        self.reason = said if len(said) <= 300 else said[:299] + "…"
        self.cost = dict(cost or {})
        calls = f"{attempts} call{'' if attempts == 1 else 's'}"
        super().__init__(
            f"the model made no summary in {calls}; the last error was {self.kind}: "
            f"{self.reason}. {hint}"
        )


class MissingPackage(HandoffError, ImportError):
    """Something that was asked for needs a package which is not installed.

    Attributes:
        command: what installs it.
    """

    def __init__(self, what: str, command: str, reason: str) -> None:
        self.command = command
        super().__init__(f"{what} needs a package that is missing: {command} ({reason})")


class LedgerError(HandoffError):
    """A ledger file could not be written.

    Attributes:
        path: the file that was to be written.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        super().__init__(f"cannot write the ledger {path}: {reason}")
