"""What the saver needs of a database, whichever it is."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol, TypeVar

from langgraph.checkpoint.serde.base import SerializerProtocol
from typing_extensions import Self

from handoff_graph.dialect import Dialect
from handoff_graph.steps import Done, Steps

__all__ = ["Store"]

T = TypeVar("T")


class Store(Protocol):
    """Runs operations around an inner saver, sync and async.

    Attributes:
        dialect: the database's.
        serde: the inner saver's serializer.
    """

    dialect: Dialect
    serde: SerializerProtocol

    def read(self, steps: Steps[T]) -> T:
        """Run an operation that only reads."""

    def write(self, thread_id: str, steps: Steps[Done]) -> Any:
        """Run an operation within one transaction, rolled back whole on any exception.

        Operations on one thread run one after the other, those of other processes too.
        `on_commit` is called before the next one of this process.
        """

    def note(self, thread_id: str, steps: Steps[Done]) -> Any:
        """Run an operation with a single write, which may become durable with the next."""

    def setup(self) -> None:
        """Create the tables of the inner saver and the journal where they are missing."""

    def close(self) -> None:
        """Let go of what was opened here; may be called again."""

    async def aread(self, steps: Steps[T]) -> T:
        """`read`, off the event loop."""

    async def awrite(self, thread_id: str, steps: Steps[Done]) -> Any:
        """`write`, off the event loop."""

    async def anote(self, thread_id: str, steps: Steps[Done]) -> Any:
        """`note`, off the event loop."""

    async def asetup(self) -> None:
        """`setup`, off the event loop."""

    async def aclose(self) -> None:
        """`close`, off the event loop."""

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """The same store with a serializer that also accepts these types."""
