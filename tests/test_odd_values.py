"""Values that a database may not take: stored, or refused by name; never in anybody's way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from agents import config
from click.testing import CliRunner
from databases import Database
from langgraph.checkpoint.base import empty_checkpoint

from handoff_graph import HandoffError, HandoffSaver, StorageError, UnstorableValue
from handoff_graph.cli import cli

ODD = {
    "nan": float("nan"),
    "inf": float("-inf"),
    "nul": "a\0b",
    "surrogate": "a\ud800b",
    "long": "x" * 1_000_000,
    "big": 2**70,
}
TEXTS = [name for name, value in ODD.items() if isinstance(value, str)]


def at(thread: str, **more: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", **more}}


def checkpoint(**values: Any) -> Any:
    made = empty_checkpoint()
    made["channel_values"] = values
    made["channel_versions"] = dict.fromkeys(values, "1")
    return made


def put(saver: HandoffSaver, thread: str, metadata: Any = None, **values: Any) -> Any:
    made = checkpoint(**values)
    return saver.put(at(thread), made, metadata or {}, made["channel_versions"])


def refusal(call: Callable[[], Any]) -> HandoffError | None:
    """What a call was refused with, if it was; any other error is none of ours."""
    try:
        call()
    except HandoffError as error:
        return error
    return None


def stored_or_refused(refused: HandoffError | None, thread: str, where: str) -> None:
    if refused is not None:
        assert isinstance(refused, StorageError)
        assert refused.thread == thread
        assert f"thread {thread!r}" in str(refused)
        assert where in str(refused)
        assert len(str(refused)) < 1_000


def handoff(*arguments: str) -> str:
    """What the command prints."""
    done = CliRunner().invoke(cli, list(arguments))
    assert done.exit_code == 0, done.output
    return done.output


def still_works(database: Database, saver: HandoffSaver) -> None:
    """Whatever else is in the database, another thread is stored, found, listed and shown."""
    task = {"handoff_task": 1, "revision": 0, "title": "plain"}
    put(saver, "plain", {"source": "loop"}, task=task)
    found = [t.config["configurable"]["thread_id"] for t in saver.list(None)]
    assert "plain" in found
    assert [*saver.list(None, filter={"source": "loop"})]
    saver.delete_for_runs(["no such run"])
    if database.kind == "sqlite":
        for verb in (["list"], ["show", "plain"], ["list", "--json"]):
            assert "plain" in handoff(*verb, "--db", database.url)


@pytest.mark.parametrize("name", ODD)
def test_odd_values_in_channels_writes_and_metadata(database: Database, name: str) -> None:
    odd = ODD[name]
    with database.open() as saver:
        where = put(saver, "written", other=[1])
        writes = [("other", 1), ("notes", odd)]
        for thread, call, place in (
            ("bare", lambda: put(saver, "bare", notes=odd), "channel 'notes'"),
            ("nested", lambda: put(saver, "nested", notes=[{"deep": odd}]), "channel 'notes'"),
            ("told", lambda: put(saver, "told", {"deep": [odd]}), "metadata"),
            ("written", lambda: saver.put_writes(where, writes, "task"), "channel 'notes'"),
        ):
            stored_or_refused(refusal(call), thread, place)
        for thread in ("bare", "nested", "told", "written"):
            saver.get_tuple(config(thread))
        still_works(database, saver)


@pytest.mark.parametrize("name", ODD)
async def test_odd_values_async(database: Database, name: str) -> None:
    async with database.open() as saver:
        for values in ({"notes": ODD[name]}, {"notes": [ODD[name]]}):
            made = checkpoint(**values)
            refused = None
            try:
                await saver.aput(at("t"), made, {}, made["channel_versions"])
            except StorageError as error:
                refused = error
            stored_or_refused(refused, "t", "channel 'notes'")
        assert [c async for c in saver.alist(None)] or name == "big"


@pytest.mark.parametrize("name", ODD)
def test_odd_values_in_a_task(database: Database, name: str) -> None:
    odd = ODD[name]
    item = {"id": "d1", "text": odd if isinstance(odd, str) else "work", "at": "2026", "by": "me"}
    task = {"handoff_task": 1, "revision": 0, "title": "odd", "done": [item], "extra": odd}
    with database.open() as saver:
        refused = refusal(lambda: put(saver, "t", task=task))
        stored_or_refused(refused, "t", "task")
        assert bool(refused) == (name in ("nan", "inf", "big")), refused
        assert (saver.task_state(config()) is None) == bool(refused)
        still_works(database, saver)
        if database.kind == "sqlite" and not refused:
            assert "odd" in handoff("show", "t", "--db", database.url)


@pytest.mark.parametrize("name", TEXTS)
def test_odd_thread_ids(database: Database, name: str) -> None:
    odd = ODD[name]
    with database.open() as saver:
        for call in (
            lambda: put(saver, odd, notes=[1]),
            lambda: saver.get_tuple(config(odd)),
            lambda: saver.task_state(config(odd)),
            lambda: saver.copy_thread(odd, f"{odd}-2"),
            lambda: saver.prune([odd]),
            lambda: saver.delete_thread(odd),
        ):
            refused = refusal(call)
            assert refused is None or len(str(refused)) < 1_000
        named = refusal(lambda: put(saver, odd, notes=[1]))
        if isinstance(named, StorageError):
            assert named.thread == odd
            assert repr(odd)[:6] in str(named)
        still_works(database, saver)


def test_a_nul_character_is_named_with_its_channel_on_postgresql(postgres: Database) -> None:
    with postgres.open() as saver:
        with pytest.raises(StorageError, match="NUL character in channel 'notes'") as caught:
            put(saver, "t", fine="yes", notes="a\0b")
        assert "a\\u0000" not in str(caught.value)  # the value itself may be a secret
        with pytest.raises(StorageError, match="NUL character in the metadata"):
            put(saver, "t", {"deep": ["a\0b"]})
        with pytest.raises(StorageError, match="thread id"):
            put(saver, "a\0b")
        put(saver, "t", notes="fine")


def test_numbers_that_a_bare_saver_left_in_metadata_stop_nobody(tmp_path: Any) -> None:
    database = Database("sqlite", str(tmp_path / "h.db"))
    with database.bare() as bare:
        bare.put(at("t"), checkpoint(), {"score": float("nan")}, {})
    with database.open() as saver:
        put(saver, "u", {"run_id": "r"})
        saver.delete_for_runs(["r"])
        assert saver.get_tuple(config("u")) is None
        assert saver.get_tuple(config("t")) is not None


def test_what_the_serializer_says_of_a_value_is_still_what_it_raised(database: Database) -> None:
    with database.open() as saver:
        checkpoint = {**empty_checkpoint(), "channel_values": {"odd": [2**70]}}
        checkpoint["channel_versions"] = {"odd": "1"}
        where = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        for kind in (TypeError, ValueError, UnstorableValue):
            with pytest.raises(kind, match="odd"):
                saver.put(cast(Any, where), cast(Any, checkpoint), {}, {"odd": "1"})
