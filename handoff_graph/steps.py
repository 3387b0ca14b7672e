"""What the saver asks of a database, apart from how it is asked.

Every operation is a generator that yields steps and receives their answers. A store drives it
on a connection, sync or async, SQLite or PostgreSQL; so each operation stands once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

__all__ = ["Done", "Inner", "Many", "Query", "Step", "Steps", "adrive", "drive", "nothing"]

T = TypeVar("T")


class Query(NamedTuple):
    """One SQL statement, `?` for each parameter. Answered with its rows, a list of tuples."""

    sql: str
    params: Sequence[Any] = ()


class Many(NamedTuple):
    """One SQL statement for several rows of parameters. Answered with None."""

    sql: str
    rows: Sequence[Sequence[Any]]


class Inner(NamedTuple):
    """A call of the inner saver, by the name of its sync method. Answered with its result."""

    method: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}  # noqa: RUF012 - never changed


Step = Query | Many | Inner
Steps = Generator[Step, Any, T]


def nothing() -> None:
    """What is left to do after most operations."""


class Done(NamedTuple):
    """The result of an operation that writes.

    Attributes:
        value: what the operation was asked for.
        on_commit: to be called after the commit, before anybody else writes to the thread.
    """

    value: Any
    on_commit: Callable[[], None] = nothing


def drive(steps: Steps[T], perform: Callable[[Step], Any]) -> T:
    """Run an operation to its end, each step by `perform`."""
    try:
        step = next(steps)
        while True:
            step = steps.send(perform(step))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        steps.close()


async def adrive(steps: Steps[T], perform: Callable[[Step], Awaitable[Any]]) -> T:
    """`drive`, awaiting each step."""
    try:
        step = next(steps)
        while True:
            step = steps.send(await perform(step))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        steps.close()
