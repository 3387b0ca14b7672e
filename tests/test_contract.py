"""The whole checkpointer contract, on every database, sync and async."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from agents import build, config, request
from databases import Database, drop, new_postgres
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.conformance import checkpointer_test, validate

from handoff_graph import (
    EmptyThreadId,
    HandoffSaver,
    LedgerExporter,
    StorageError,
    ThreadDeleted,
    ThreadExists,
)

CAPABILITIES = {
    "put",
    "put_writes",
    "get_tuple",
    "list",
    "delete_thread",
    "delete_for_runs",
    "copy_thread",
    "prune",
}


class Sync(BaseCheckpointSaver[str]):
    """Serves the async contract by the sync methods of a saver, so that it tests those."""

    def __init__(self, saver: HandoffSaver) -> None:
        super().__init__(serde=saver.serde)
        self.saver = saver

    async def alist(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        for found in await asyncio.to_thread(lambda: list(self.saver.list(*args, **kwargs))):
            yield found

    def get_next_version(self, current: str | None, channel: None) -> str:
        return self.saver.get_next_version(current, channel)


def _through(name: str) -> Callable[..., Any]:
    async def method(self: Sync, *args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(getattr(self.saver, name), *args, **kwargs)

    return method


for _name in (*CAPABILITIES - {"list"}, "get_delta_channel_history"):
    setattr(Sync, f"a{_name}", _through(_name))


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_conformance_of_all_capabilities(
    database: Database, mode: str, request: pytest.FixtureRequest
) -> None:
    numbers = itertools.count()

    @checkpointer_test(name="HandoffSaver")
    async def saver() -> AsyncIterator[BaseCheckpointSaver[str]]:
        fresh = database
        if database.kind == "sqlite":
            fresh = Database("sqlite", f"{database.url}-{next(numbers)}")
        else:
            fresh = new_postgres(request.getfixturevalue("postgres_server"))
        if mode == "async":
            async with fresh.open() as handoff:
                yield handoff
        else:
            with fresh.open() as handoff:
                yield Sync(handoff)
        if database.kind == "postgres":
            drop(fresh, request.getfixturevalue("postgres_server"))

    report = await validate(saver)
    assert set(report.results) == CAPABILITIES
    for name, result in report.results.items():
        assert result.passed, (name, result.failures)
        assert result.tests_passed


FIRST_CALLS: dict[str, Callable[[HandoffSaver], Any]] = {
    "get_tuple": lambda s: s.get_tuple(config()),
    "list": lambda s: list(s.list(None)),
    "put": lambda s: s.put(_at(), empty_checkpoint(), {}, {}),
    "put_writes": lambda s: s.put_writes(_at(checkpoint_id=str(uuid6())), [("a", 1)], "task"),
    "delete_thread": lambda s: s.delete_thread("t"),
    "delete_for_runs": lambda s: s.delete_for_runs(["r"]),
    "copy_thread": lambda s: s.copy_thread("t", "u"),
    "prune": lambda s: s.prune(["t"]),
    "task_state": lambda s: s.task_state(config()),
    "get_delta_channel_history": lambda s: s.get_delta_channel_history(
        config=config(), channels=["messages"]
    ),
}


def _at(**more: str) -> Any:
    return {"configurable": {"thread_id": "t", "checkpoint_ns": "", **more}}


@pytest.mark.parametrize("name", FIRST_CALLS)
def test_the_first_call_on_a_fresh_database_may_be_any(database: Database, name: str) -> None:
    saver = database.open()
    FIRST_CALLS[name](saver)
    saver.close()


@pytest.mark.parametrize("thread_id", ["a/b ü", 17, uuid.UUID(int=5)])
async def test_thread_ids_may_be_strings_numbers_and_uuids(
    database: Database, thread_id: Any
) -> None:
    async with database.open(every=3) as saver:
        graph = build(5).compile(checkpointer=saver)
        await graph.ainvoke(request(), config(thread_id))
        with database.open() as other:
            assert other.task_state(config(str(thread_id))) is not None
            assert other.get_tuple(config(thread_id)) is not None
        saver.prune([thread_id])
        saver.copy_thread(thread_id, f"{thread_id} copied")
        saver.delete_thread(thread_id)
        assert await saver.aget_tuple(config(thread_id)) is None


@pytest.mark.parametrize("empty", ["", None])
def test_empty_thread_ids_are_refused_by_name(database: Database, empty: Any) -> None:
    with database.open() as saver:
        calls: list[Callable[[], Any]] = [
            lambda: saver.get_tuple(config(empty)),
            lambda: saver.put(config(empty), empty_checkpoint(), {}, {}),
            lambda: saver.put_writes(config(empty), [("a", 1)], "task"),
            lambda: list(saver.list(config(empty))),
            lambda: saver.delete_thread(empty),
            lambda: saver.copy_thread(empty, "u"),
            lambda: saver.copy_thread("u", empty),
            lambda: saver.prune([empty]),
        ]
        for call in calls:
            with pytest.raises(EmptyThreadId, match="thread_id"):
                call()


def test_a_copy_has_the_journal_and_goes_its_own_way(database: Database) -> None:
    with database.open(every=3) as saver:
        graph = build(8).compile(checkpointer=saver)
        graph.invoke(request(), config())
        saver.copy_thread("t", "u")
        assert saver.task_state(config("u")) == saver.task_state(config())
        before = database.count("handoff_journal", "thread_id = 't'")
        assert database.count("handoff_journal", "thread_id = 'u'") == before > 1
        build(16).compile(checkpointer=saver).invoke({"messages": []}, config("u"))
        assert database.count("handoff_journal", "thread_id = 't'") == before
        assert graph.get_state(config()).values["messages"][-1].content == "All looked up."
        states = [saver.task_state(config(thread)) for thread in ("t", "u")]
        assert states[0] != states[1]


def test_a_copy_never_overwrites_a_thread(database: Database) -> None:
    with database.open(every=3) as saver:
        for thread in ("t", "u"):
            build(4).compile(checkpointer=saver).invoke(request(), config(thread))
        rows = sorted(database.rows())
        with pytest.raises(ThreadExists, match="'u'"):
            saver.copy_thread("t", "u")
        assert sorted(database.rows()) == rows


@pytest.mark.parametrize("folded", [False, True])
def test_a_late_put_does_not_bring_a_deleted_thread_back(database: Database, folded: bool) -> None:
    with database.open(every=3) as saver:
        graph = build(8 if folded else 2).compile(checkpointer=saver)
        graph.invoke(request(), config())
        newest = saver.get_tuple(config())
        assert newest is not None
        with database.open() as other:  # of another process, say
            other.delete_thread("t")
        saver.put_writes(newest.config, [("messages", [HumanMessage("late")])], "task")
        with pytest.raises(ThreadDeleted, match="'t'"):
            saver.put(newest.config, {**newest.checkpoint, "id": str(uuid6())}, {}, {})
        assert saver.get_tuple(config()) is None
        assert not [table for table, data in database.rows() if data == b"t"]
        graph.invoke(request(), config())  # the id may be used again
        assert graph.get_state(config()).values["messages"]


def test_deleting_can_take_the_ledger_with_it(database: Database, tmp_path: Path) -> None:
    exporter = LedgerExporter(tmp_path / "ledger")
    with database.open(every=3, ledger=exporter) as saver:
        for thread in ("t", "u"):
            build(5).compile(checkpointer=saver).invoke(request(), config(thread))
        saver.delete_thread("t")
        assert exporter.path("t").exists()
        saver.delete_thread("u", ledger=True)
        assert not exporter.path("u").exists()


def test_rolling_a_run_back_takes_the_task_back_too(database: Database) -> None:
    with database.open(every=3) as saver:
        graph = build(4).compile(checkpointer=saver)
        graph.invoke(request(), {**config(), "metadata": {"run_id": "one"}})
        before = saver.task_state(config())
        assert before is not None
        longer = build(6).compile(checkpointer=saver)
        longer.invoke({"messages": [("user", "on")]}, {**config(), "metadata": {"run_id": "two"}})
        assert "k6" in str(saver.task_state(config()))
        saver.delete_for_runs(["two"])
        # The fold of the second run has made the end of the first one a milestone: its messages
        # are gone, what they said is in the task.
        for reader in (saver, database.open()):
            after = reader.task_state(config())
            assert after is not None
            assert after["revision"] == before["revision"]
            assert "k4" in str(after["done"])
            assert "k5" not in str(after)
            assert [m.type for m in graph.get_state(config()).values["messages"]] == ["system"]
        reader.close()
    with database.open(every=3) as saver:
        build(6).compile(checkpointer=saver).invoke({"messages": [("user", "on")]}, config())
        final = saver.task_state(config())
        assert final is not None
        assert final["revision"] > before["revision"]
        assert final["constraints"] == before["constraints"]


def test_the_thread_is_named_when_the_database_is_closed(database: Database) -> None:
    saver = database.open()
    saver.setup()
    saver.close()
    saver.close()
    with pytest.raises(StorageError, match="thread 't'") as caught:
        saver.put(_at(), empty_checkpoint(), {}, {})
    assert caught.value.__cause__ is not None
