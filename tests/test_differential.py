"""The same graph on the bare inner saver and on `HandoffSaver`: nothing that runs may differ.

A `Scenario` is a graph and a script. It is run twice by the same driver, and everything that can
be seen of the two runs is recorded: what nodes were called with, outputs, errors, chunks of a
stream, states, histories and the stored rows. Until a fold happens, all of it is equal. Where a
fold happens, whatever is not a transcript is.
"""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import json
import os
import pprint
import re
import subprocess
import sys
import uuid
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import differential_graphs as graphs
import psycopg
import pytest
from differential_graphs import Factory, Graph, Saver, Trace
from langchain_core.messages import BaseMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command, StateSnapshot, StateUpdate
from pydantic import BaseModel

from handoff_graph import HandoffSaver

# -- savers --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A way to open a saver over a database, for sync and for async use."""

    sync: Callable[[str], AbstractContextManager[Saver]]
    asynchronous: Callable[[str], AbstractAsyncContextManager[Saver]]


@dataclass(frozen=True)
class Savers:
    """The pairs of one backend.

    Attributes:
        new_place: makes an empty database in a folder, and gives what `Kind` opens it by. A
            place is opened again where a driver restarts between two actions.
        bare: the inner saver, unwrapped.
        handoff: the wrapped one, with the options given to `HandoffSaver`.
    """

    new_place: Callable[[Path], str]
    bare: Kind
    handoff: Callable[[dict[str, Any]], Kind]


def _sqlite_file(folder: Path) -> str:
    return str(folder / f"{uuid.uuid4()}.db")


def _handoff(options: dict[str, Any]) -> Kind:
    @contextmanager
    def sync(place: str) -> Iterator[Saver]:
        with HandoffSaver.from_conn_string(place, **options) as saver:
            yield saver

    @asynccontextmanager
    async def asynchronous(place: str) -> AsyncIterator[Saver]:
        async with HandoffSaver.from_conn_string(place, **options) as saver:
            yield saver

    return Kind(sync, asynchronous)


def _sqlite(server: str) -> Savers:
    return Savers(
        new_place=_sqlite_file,
        bare=Kind(SqliteSaver.from_conn_string, AsyncSqliteSaver.from_conn_string),
        handoff=_handoff,
    )


def _postgres(server: str) -> Savers:
    """Each place is a schema of its own in one database."""

    def schema(_: Path) -> str:
        name = f"s{uuid.uuid4().hex}"
        with psycopg.connect(server, autocommit=True) as conn:
            conn.execute(f"CREATE SCHEMA {name}")
        return f"{server}{'&' if '?' in server else '?'}options=-csearch_path%3D{name}"

    @contextmanager
    def sync(place: str) -> Iterator[Saver]:
        with PostgresSaver.from_conn_string(place) as saver:
            saver.setup()
            yield saver

    @asynccontextmanager
    async def asynchronous(place: str) -> AsyncIterator[Saver]:
        async with AsyncPostgresSaver.from_conn_string(place) as saver:
            await saver.setup()
            yield saver

    return Savers(new_place=schema, bare=Kind(sync, asynchronous), handoff=_handoff)


BACKENDS = {"sqlite": _sqlite, "postgres": _postgres}


@pytest.fixture
def savers(backend: str, request: pytest.FixtureRequest) -> Savers:
    """The pairs of savers to compare."""
    server = request.getfixturevalue("postgres_server") if backend == "postgres" else ""
    return BACKENDS[backend](server)


# -- what is compared ----------------------------------------------------------------------------

_VERSION = re.compile(r"\b0{8,}(\d+)\.[\d.e+-]+")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:[\d.]+(?:\+00:00|Z)?")
_ID = re.compile(r"\b(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32})\b")


def normalised(value: Any) -> Any:
    """Plain data in which ids are numbered by order of appearance, and times are gone.

    The same id gets the same number everywhere, so that what refers to what is compared too.
    """
    names: dict[str, str] = {}

    def rename(found: re.Match[str]) -> str:
        return names.setdefault(found.group(), f"<id {len(names) + 1}>")

    def walk(item: Any) -> Any:
        if isinstance(item, str):
            return _ID.sub(rename, item)
        if isinstance(item, dict):
            pairs = sorted(item.items(), key=lambda pair: masked(pair[0]))
            return {walk(key): walk(inner) for key, inner in pairs}
        return [walk(inner) for inner in item] if isinstance(item, list) else item

    return walk(plain(value))


def masked(value: Any) -> str:
    """A key to sort by what does not depend on ids: they are new in each run."""
    return _ID.sub("<id>", repr(value))


def plain(value: Any) -> Any:
    """Any value of LangGraph's as dicts, lists and strings that say what they were."""
    if isinstance(value, BaseMessage):
        shown = value.model_dump(exclude_defaults=True)
        if not value.id or _ID.fullmatch(value.id):
            # The reducer gives a message its id while the write is being stored: in the stored
            # row it may or may not be there yet.
            shown.pop("id", None)
        return plain({"<message>": value.type, **shown})
    if isinstance(value, BaseCheckpointSaver):  # a subgraph's config carries it
        return "<saver>"
    if isinstance(value, BaseModel):
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        return {f"<{type(value).__name__}>": plain(fields)}
    if isinstance(value, BaseException):
        return plain([f"<{type(value).__name__}>", str(value), *getattr(value, "__notes__", ())])
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {f"<{type(value).__name__}>": plain(fields)}
    if isinstance(value, Mapping):
        return {
            # Branches report their interrupts in the order in which threads reach them.
            _text(key): sorted(plain(inner), key=masked)
            if key == "__interrupt__" and isinstance(inner, list | tuple)
            else plain(inner)
            for key, inner in value.items()
        }
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, set | frozenset):
        return sorted(map(plain, value), key=masked)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [plain(inner) for inner in value]
    if hasattr(value, "__slots__") and type(value).__module__.startswith("langgraph"):
        shown = {name: getattr(value, name, None) for name in value.__slots__}
        return {f"<{type(value).__name__}>": plain(shown)}
    return value if value is None or isinstance(value, bool | int | float) else _text(repr(value))


def _text(value: object) -> str:
    text = value.hex if isinstance(value, uuid.UUID) else str(value)
    return _TIME.sub("<time>", _VERSION.sub(r"\1", text))


def differences(found: Sequence[Any], expected: Sequence[Any]) -> str:
    """What is different between two recordings, as a diff that can be read."""
    sides = [
        pprint.pformat(side, width=100, sort_dicts=True).splitlines() for side in (expected, found)
    ]
    return "\n".join(difflib.unified_diff(*sides, "bare saver", "HandoffSaver", n=6, lineterm=""))


# -- drivers and scenarios -----------------------------------------------------------------------


@dataclass(frozen=True)
class Driver:
    """A way to run a script.

    Attributes:
        asynchronous: use the async half of every interface.
        streams: run by `stream`, with all modes, instead of `invoke`.
        durability: as LangGraph has it.
        restarts: open the saver and build the graph anew for each action, as in a new process.
    """

    asynchronous: bool = False
    streams: bool = False
    durability: str = "async"
    restarts: bool = False

    def __str__(self) -> str:
        name = ("a" if self.asynchronous else "") + ("stream" if self.streams else "invoke")
        return f"{name}-{self.durability}" + ("-restarts" if self.restarts else "")


DRIVERS = (
    Driver(),
    Driver(streams=True, durability="sync"),
    Driver(durability="exit", restarts=True),
    Driver(asynchronous=True, durability="exit"),
    Driver(asynchronous=True, streams=True),
)

STREAM_MODES = ("values", "updates", "checkpoints", "tasks", "custom")


@dataclass(frozen=True)
class Scenario:
    """A graph and what is done with it.

    Attributes:
        name: the test's id.
        graph: builds the graph.
        script: what is done, through a `Run`.
        shows: what the recording has to contain, or the scenario does not test what it says.
        parallel: tasks of one superstep run at once, so their order among themselves is free.
        asynchronous: it can be run only that way.
        config: of every action, beside the thread's id.
    """

    name: str
    graph: Factory
    script: Callable[[Run], Awaitable[None]]
    shows: Sequence[str] = ()
    parallel: bool = False
    asynchronous: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


class Run:
    """One scenario on one saver: does what a script says, and records what can be seen.

    Scripts are coroutines. Under a sync driver nothing in them ever waits.
    """

    def __init__(self, scenario: Scenario, driver: Driver, kind: Kind, place: str) -> None:
        self.scenario = scenario
        self.driver = driver
        self.trace = Trace()
        self.events: list[Any] = []
        self._kind = kind
        self._place = place
        self._open: tuple[Saver, Graph] | None = None

    # -- what scripts call -------------------------------------------------------------------

    async def run(
        self, given: Any, at: Mapping[str, Any] | None = None, **options: Any
    ) -> StateSnapshot:
        """Invoke or stream, and record output or error; gives the state it leaves."""
        return await self._recorded("run", given, at, self._call, options)

    async def cancel(self, given: Any) -> StateSnapshot:
        """Invoke, and cancel it once a node waits; only under an async driver."""
        return await self._recorded("cancel", given, None, self._cancelled, {})

    async def update(self, values: Any, at: Mapping[str, Any] | None = None, **more: Any) -> Any:
        """`update_state`; gives the config it returns."""
        return await self._changed("update_state", at, values, **more)

    async def bulk(self, supersteps: Any, at: Mapping[str, Any] | None = None) -> Any:
        """`bulk_update_state`; gives the config it returns."""
        return await self._changed("bulk_update_state", at, supersteps)

    async def state(self, at: Mapping[str, Any] | None = None) -> StateSnapshot:
        """`get_state` with subgraphs, recorded."""
        _, graph = await self._opened()
        config = self.config(at)
        try:
            if self.driver.asynchronous:
                snapshot = await graph.aget_state(config, subgraphs=True)
            else:
                snapshot = graph.get_state(config, subgraphs=True)
        except Exception as error:  # pending writes that cannot be applied, say
            self.note("state", error)
            return StateSnapshot({}, (), {}, None, None, None, (), ())
        self.note("state", snapshot)
        return snapshot  # type: ignore[no-any-return]

    async def history(self, **options: Any) -> list[StateSnapshot]:
        """`get_state_history`, recorded; newest first."""
        _, graph = await self._opened()
        found: list[StateSnapshot] = []
        try:
            if self.driver.asynchronous:
                async for snapshot in graph.aget_state_history(self.config(), **options):
                    found.append(snapshot)
            else:
                found.extend(graph.get_state_history(self.config(), **options))
        except Exception as error:
            self.note("history", error)
        self.note("history", found)
        return found

    async def rows(self, **options: Any) -> None:
        """Everything that the saver lists, pending writes included, recorded."""
        saver, _ = await self._opened()
        try:
            if self.driver.asynchronous:
                found = [t async for t in saver.alist(self.config(), **options)]
            else:
                found = [*saver.list(self.config(), **options)]
        except Exception as error:
            self.note("rows", {"options": options, "error": error})
            return
        # Writes come back sorted by the ids of their tasks, which are new in each run.
        tuples = [
            {**t._asdict(), "pending_writes": sorted(plain(t.pending_writes or ()), key=masked)}
            for t in found
        ]
        self.note("rows", {"options": options, "found": tuples})

    async def forget(self) -> None:
        """`delete_thread`."""
        saver, _ = await self._opened()
        thread = self.config()["configurable"]["thread_id"]
        if self.driver.asynchronous:
            await saver.adelete_thread(thread)
        else:
            saver.delete_thread(thread)
        self.note("delete_thread", thread)

    def config(self, at: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The config of an action: of the thread, or of a checkpoint that LangGraph named."""
        base = self.scenario.config
        where = {"thread_id": "thread", **base.get("configurable", {})}
        chosen = {**where, **(at or {}).get("configurable", {})}
        return {**base, "configurable": chosen}

    def note(self, action: str, what: Any) -> None:
        """Add an event to the recording."""
        self.events.append({"action": action, "what": plain(what)})

    # -- behind them ---------------------------------------------------------------------------

    @asynccontextmanager
    async def opening(self) -> AsyncIterator[None]:
        """Around one saver's life, its database staying."""
        if self.driver.asynchronous:
            async with self._kind.asynchronous(self._place) as saver:
                self._open = saver, self.scenario.graph(self.trace, saver)
                yield
        else:
            with self._kind.sync(self._place) as saver:
                self._open = saver, self.scenario.graph(self.trace, saver)
                yield
        self._open = None

    async def _opened(self) -> tuple[Saver, Graph]:
        assert self._open is not None
        return self._open

    async def _acting(self, action: Callable[[], Awaitable[Any]]) -> Any:
        """Do something that changes the database, in a new process's place if so wanted."""
        if not self.driver.restarts:
            return await action()
        around, self._open = self._open, None
        try:
            async with self.opening():
                return await action()
        finally:
            self._open = around

    async def _recorded(
        self,
        name: str,
        given: Any,
        at: Mapping[str, Any] | None,
        call: Callable[..., Awaitable[Any]],
        options: Mapping[str, Any],
    ) -> StateSnapshot:
        chunks: list[Any] = []
        event: dict[str, Any] = {"given": given}
        try:
            event["output"] = await self._acting(
                lambda: call(given, self.config(at), chunks, **options)
            )
        except (Exception, asyncio.CancelledError) as error:
            event["error"] = error
        trace = plain(self.trace.take())
        event["chunks"], event["trace"] = plain(chunks), trace
        if self.scenario.parallel:
            event["chunks"] = sorted(event["chunks"], key=masked)
            event["trace"] = sorted(trace, key=lambda entry: (entry[0], masked(entry)))
        self.note(name, event)
        return await self.state()

    async def _call(
        self, given: Any, config: dict[str, Any], chunks: list[Any], **options: Any
    ) -> Any:
        _, graph = await self._opened()
        options = {"durability": self.driver.durability, **options}
        # For custom chunks and subgraphs' a sync run takes a worker of its own, which one that
        # is limited to a single worker has not got.
        eager = self.driver.asynchronous
        modes = [mode for mode in STREAM_MODES if eager or mode != "custom"]
        streaming = {"stream_mode": modes, "subgraphs": eager, **options}
        if not self.driver.streams:
            if self.driver.asynchronous:
                return await graph.ainvoke(given, config, **options)
            return graph.invoke(given, config, **options)
        if self.driver.asynchronous:
            async for chunk in graph.astream(given, config, **streaming):
                chunks.append(chunk)
        else:
            chunks += graph.stream(given, config, **streaming)
        values = [c[-1] for c in chunks if c[-2] == "values" and (len(c) == 2 or not c[0])]
        # Parallel interrupts come in chunks of their own, in the order of the threads.
        whole = [v for v in values if not (isinstance(v, dict) and "__interrupt__" in v)]
        return whole[-1] if whole else None

    async def _cancelled(self, given: Any, config: dict[str, Any], chunks: list[Any]) -> Any:
        running = asyncio.create_task(self._call(given, config, chunks))
        await self.trace.waiting.wait()
        running.cancel()
        return await running

    async def _changed(
        self, name: str, at: Mapping[str, Any] | None, values: Any, **more: Any
    ) -> Any:
        async def change() -> Any:
            _, graph = await self._opened()
            if self.driver.asynchronous:
                return await getattr(graph, f"a{name}")(self.config(at), values, **more)
            return getattr(graph, name)(self.config(at), values, **more)

        try:
            result = await self._acting(change)
        except Exception as error:
            self.note(name, {"given": values, **more, "error": error})
            return None
        self.note(name, {"given": values, **more, "returned": result})
        await self.state()
        return result


def recorded(scenario: Scenario, driver: Driver, kind: Kind, place: str) -> list[Any]:
    """Run a scenario; gives its events, with the history and the stored rows at its end."""
    run = Run(scenario, driver, kind, place)

    async def whole() -> None:
        async with run.opening():
            await scenario.script(run)
            await run.state()
            await run.history()
            await run.rows()

    if driver.asynchronous:
        asyncio.run(whole())
    else:
        _stepped(whole())
    return run.events


def _stepped(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never waits, with no event loop that sync code could notice."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()
    raise AssertionError("a script waited for something under a sync driver")


# -- scripts -------------------------------------------------------------------------------------


def answers(snapshot: StateSnapshot, count: int | None = None) -> dict[str, Any]:
    """An answer for each open interrupt by its id, the first `count` in order of what they ask."""
    asked = sorted(snapshot.interrupts, key=lambda found: str(found.value))
    return {found.id: f"answer to {found.value}" for found in asked[:count]}


def _inputs(*given: Any, **options: Any) -> Callable[[Run], Awaitable[None]]:
    """The plainest script: run with one input after the other."""

    async def script(run: Run) -> None:
        for one in given:
            await run.run(one, **options)

    return script


PATIENCE = 16
"""How often a script goes on before it takes a run to be stuck."""

START_LOG = {"log": ["start"], "note": "first"}


async def resume_by_ids(run: Run) -> None:
    snapshot = await run.run(START_LOG)
    snapshot = await run.run(Command(resume=answers(snapshot, 2)))
    await run.run(Command(resume=answers(snapshot)))
    snapshot = await run.run({"log": ["again"]})
    await run.run(Command(resume=answers(snapshot)))


async def resume_until_done(run: Run) -> None:
    """Answer whatever is asked, one interrupt at a time."""
    snapshot = await run.run(START_LOG)
    for _ in range(PATIENCE):
        if not snapshot.interrupts:
            break
        snapshot = await run.run(Command(resume=answers(snapshot, 1)))


async def resume_twice_over(run: Run) -> None:
    """The same on a thread that has been through it once."""
    await resume_until_done(run)
    await resume_until_done(run)


async def fork(run: Run) -> None:
    await run.run(START_LOG)
    history = await run.history()
    older = history[-2:][0]  # with durability="exit" there is only one
    await run.state(older.config)
    await run.run(None, older.config)
    await run.run({"log": ["forked"]}, older.config)
    await run.run({"log": ["on the head"]})
    await run.run(None, history[0].config)


async def fork_from_an_interrupt(run: Run) -> None:
    asked = await run.run(START_LOG)
    await run.run(Command(resume="one"))
    await run.run(Command(resume="two"))
    await run.run(None, asked.config)
    await run.run(Command(resume="other"), asked.config)
    await run.run(Command(resume="another"))


async def updates(run: Run) -> None:
    await run.run(START_LOG)
    await run.update({"log": ["by hand"]})
    await run.update({"log": ["as b"]}, as_node="b")
    await run.run(None)
    history = await run.history()
    older = history[-3:][0]
    forked = await run.update({"log": ["older"], "note": "new"}, older.config)
    await run.run(None, forked)
    await run.update({"log": ["older, as c"]}, older.config, as_node="c")
    await run.run(None)
    await run.update(None, as_node="__copy__")
    await run.update(None, as_node="__end__")
    await run.update({"log": ["as input"]}, as_node="__start__")
    await run.update({"log": ["nobody"]}, as_node="nobody")
    await run.run(None)


async def bulk_updates(run: Run) -> None:
    await run.bulk([[StateUpdate(START_LOG, "__start__")], [StateUpdate({"log": ["A"]}, "a")]])
    await run.run(None)
    await run.bulk(
        [
            [StateUpdate({"log": ["b1"]}, "b"), StateUpdate({"log": ["c1"]}, "c")],
            [StateUpdate({"log": ["a1"], "note": "n"}, "a")],
        ]
    )
    await run.run(None)


async def update_while_asked(run: Run) -> None:
    await run.run(START_LOG)
    await run.update({"log": ["meanwhile"]})
    await run.run(Command(resume="one"))
    await run.run(Command(resume="two", update={"note": "with the answer"}))


async def commanded(run: Run) -> None:
    await run.run(START_LOG)
    await run.run(Command(resume=["side", "z"], update={"note": "changed"}))
    await run.run({"note": "skip"})
    await run.run(Command(goto="side", update={"log": ["sent by hand"]}))
    await run.run(Command(update={"log": ["only an update"]}))
    await run.run({"note": "once more"})
    await run.run(Command(resume="z", goto="side"))
    await run.run(Command(goto="nowhere"))


async def update_a_subgraph(run: Run) -> None:
    await run.run(START_LOG)
    snapshot = await run.state()
    for _ in range(2):
        snapshot = snapshot.tasks[0].state  # type: ignore[assignment]
        await run.state(snapshot.config)
    await run.update({"log": ["into the lowest"]}, snapshot.config)
    snapshot = await run.state()
    for _ in range(PATIENCE):
        if not snapshot.interrupts:
            break
        snapshot = await run.run(Command(resume=answers(snapshot)))


async def lists_with_filters(run: Run) -> None:
    await run.run(START_LOG)
    await run.run({"log": ["again"]}, {"configurable": {"shard": "east"}})
    await run.rows(filter={"user": "ann"})
    await run.rows(filter={"user": "bob"})
    await run.rows(filter={"source": "loop", "step": 1})
    await run.rows(filter={"shard": "east"}, limit=2)
    await run.history(filter={"source": "input"})
    history = await run.history()
    await run.rows(before=history[0].config, limit=3)
    await run.history(before=history[0].config, limit=1)


async def long_history(run: Run) -> None:
    for number in range(12):
        await run.run({"log": [number]})
    await run.history(limit=55)
    await run.rows(filter={"source": "loop"}, limit=51)


async def cancelled(run: Run) -> None:
    await run.cancel(START_LOG)
    await run.history()
    await run.run(None)


async def deleted(run: Run) -> None:
    await run.run(START_LOG)
    await run.forget()
    await run.state()
    await run.run({"log": ["anew"]})
    await run.run(Command(resume="one"))
    await run.run(Command(resume="two"))


async def two_threads(run: Run) -> None:
    other = {"configurable": {"thread_id": "other"}}
    await run.run(START_LOG)
    await run.run({"log": ["other"]}, other)
    await run.run(Command(resume="one"))
    await run.run(Command(resume="uno"), other)
    await run.run(Command(resume="two"))
    await run.run(Command(resume="dos"), other)
    await run.state(other)


async def static_at_run_time(run: Run) -> None:
    await run.run(START_LOG, interrupt_before=["b"])
    await run.run(None, interrupt_after=["b"])
    await run.run(None, interrupt_before="*")
    await run.run(None)
    await run.run({"log": ["again"]}, interrupt_after="*")


async def functional_script(run: Run) -> None:
    await run.run([1, 2])
    await run.run(Command(resume="yes"))  # a task fails, its siblings are not run again
    await run.run(None)
    await run.run(Command(resume="quite"))
    await run.run([5])
    await run.run(Command(resume="yes"))
    await run.run(Command(resume="quite"))
    await run.update([1000])
    await run.run([6])


async def functional_messages_script(run: Run) -> None:
    await run.run([HumanMessage("hello", id="h1")])
    await run.run(Command(resume="yes"))
    await run.run([HumanMessage("more", id="h2"), HumanMessage("and more", id="h3")])
    await run.run(Command(resume="no"))


def ask(text: str, number: int = 1) -> dict[str, Any]:
    """A person's message."""
    return {"messages": [HumanMessage(text, id=f"request-{number}")]}


async def agent_script(run: Run) -> None:
    """An agent is asked twice; its questions are answered, its errors got over."""
    for number in (1, 2):
        snapshot = await run.run(ask("Look it all up.", number))
        for _ in range(PATIENCE):
            if not snapshot.next:
                break
            given = Command(resume=answers(snapshot)) if snapshot.interrupts else None
            snapshot = await run.run(given)


async def agent_answered_singly(run: Run) -> None:
    snapshot = await run.run(ask("Look it all up."))
    for _ in range(PATIENCE):
        if not snapshot.next:
            break
        snapshot = await run.run(Command(resume=answers(snapshot, 1)))


async def agent_updated(run: Run) -> None:
    await run.run(ask("Look it all up."))
    await run.update({"messages": [HumanMessage("By hand.", id="hand")]})
    await run.update({"turns": 2}, as_node="model")
    await run.run(None)
    await run.bulk([[StateUpdate({"turns": 1}, "tools")], [StateUpdate({"turns": 1}, "tools")]])
    await run.run(None)
    await run.run(Command(update=ask("Also this.", 2), goto="model"))
    snapshot = await run.run(ask("And that.", 3))
    for _ in range(PATIENCE):
        if not snapshot.next:
            break
        given = Command(resume=answers(snapshot)) if snapshot.interrupts else None
        snapshot = await run.run(given)


async def agent_cancelled(run: Run) -> None:
    await run.cancel(ask("Look it all up."))
    await run.run(None)
    await run.run(ask("Again.", 2))


# -- the scenarios -------------------------------------------------------------------------------

INTERRUPTED = "'<Interrupt>'"

SCENARIOS = (
    Scenario("chain", graphs.chain(), _inputs(START_LOG, {"log": ["again"]}, None, {})),
    Scenario(
        "static-interrupts",
        graphs.chain(interrupt_before=["b"], interrupt_after=["b", "c"]),
        _inputs(START_LOG, None, None, None, {"log": ["again"]}, {"log": ["over"]}, None),
        shows=["'next': ['b']"],
    ),
    Scenario("static-interrupts-at-run-time", graphs.chain(), static_at_run_time),
    Scenario(
        "dynamic-interrupts",
        graphs.asks_twice,
        _inputs(START_LOG, Command(resume="one"), None, Command(resume={"two": 2}), START_LOG),
        shows=[INTERRUPTED, "asker goes on"],
    ),
    Scenario(
        "interrupt-then-new-input",
        graphs.asks_twice,
        _inputs(START_LOG, {"log": ["instead"]}, Command(resume=1), Command(resume=2)),
        shows=[INTERRUPTED],
    ),
    Scenario(
        "parallel-interrupts-resumed-by-id",
        graphs.asks_in_parallel,
        resume_by_ids,
        shows=[INTERRUPTED, "answer to west?"],
        parallel=True,
    ),
    Scenario(
        "parallel-interrupts-resumed-singly",
        graphs.asks_in_parallel,
        resume_until_done,
        shows=[INTERRUPTED, "answer to west?"],
        parallel=True,
    ),
    Scenario(
        "commands",
        graphs.commands,
        commanded,
        shows=["route skips", "sent by hand", "only an update"],
        parallel=True,
    ),
    Scenario(
        "command-to-the-parent",
        graphs.to_the_parent,
        resume_twice_over,
        shows=["left: answer to leave?", "'far'"],
    ),
    Scenario(
        "send-with-a-failing-branch",
        graphs.fan_out,
        _inputs({"jobs": [1, 2, 3, 9]}, None, {"jobs": [4, 9]}),
        shows=["job 9 fails once", "90"],
        # One worker, and the last job fails: all others are certain to be done by then.
        config={"max_concurrency": 1},
        parallel=True,
    ),
    Scenario(
        "send-with-interrupts",
        graphs.fan_out,
        _inputs({"jobs": [1, 100, 2]}, Command(resume="hundred"), {"jobs": []}),
        shows=[INTERRUPTED, "100: hundred"],
        parallel=True,
    ),
    Scenario(
        "deferred",
        graphs.deferred,
        resume_twice_over,
        shows=["joined: answer to join?"],
        parallel=True,
    ),
    *(
        Scenario(
            f"nested-checkpointer-{checkpointer}",
            graphs.nested(checkpointer),
            resume_twice_over,
            shows=["low_ask: answer to low_ask?", "middle_ask: answer to middle_ask?"],
        )
        for checkpointer in (None, True)
    ),
    *(
        Scenario(
            f"nested-update-checkpointer-{checkpointer}",
            graphs.nested(checkpointer),
            update_a_subgraph,
            shows=["into the lowest"],
        )
        for checkpointer in (None, True)
    ),
    Scenario(
        "subgraph-called-in-a-node",
        graphs.called_in_a_node,
        resume_until_done,
        shows=[INTERRUPTED, "child?"],
    ),
    Scenario("fork", graphs.chain(), fork, shows=["forked"]),
    Scenario("fork-from-an-interrupt", graphs.asks_twice, fork_from_an_interrupt),
    Scenario("update-state", graphs.chain(interrupt_before=["d"]), updates, shows=["older, as c"]),
    Scenario("update-state-while-asked", graphs.asks_twice, update_while_asked),
    Scenario("bulk-update-state", graphs.chain(), bulk_updates, shows=["'A'"]),
    Scenario(
        "errors-and-retries",
        graphs.failing,
        _inputs(START_LOG, None, None, None, START_LOG),
        shows=["retried, attempt 3", "broken once", "no way on, once"],
    ),
    Scenario(
        "conflicting-writes",
        graphs.conflicting,
        _inputs({"value": 1}, None),
        shows=["InvalidUpdateError"],
        parallel=True,
    ),
    Scenario(
        "recursion-limit",
        graphs.endless,
        _inputs(START_LOG, None, None),
        shows=["GraphRecursionError"],
        config={"recursion_limit": 3},
    ),
    Scenario("cancelled", graphs.patient, cancelled, shows=["CancelledError"], asynchronous=True),
    Scenario(
        "objects",
        graphs.objects,
        _inputs({"point": graphs.Point(x=1), "spans": []}, Command(resume=5)),
        shows=["<Point>", "<Span>", INTERRUPTED],
        parallel=True,
    ),
    Scenario(
        "pydantic-state",
        graphs.model_state,
        _inputs({"count": 0}, {"point": {"x": 4}}, {"count": "no number"}, None),
        shows=["<ValidationError>"],
    ),
    Scenario("dataclass-state", graphs.data_state, _inputs({"count": 0}, {"names": ["n"]}, None)),
    Scenario(
        "channels",
        graphs.channels,
        _inputs({"delta": ["given"], "unsaved": "given"}, Command(resume="yes"), {"total": 1}),
        shows=["fresh", INTERRUPTED],
    ),
    Scenario(
        "functional",
        graphs.functional,
        functional_script,
        shows=["a task fails once", "'double 5'", "'previous': [6]"],
        parallel=True,
    ),
    Scenario(
        "functional-messages",
        graphs.functional_messages,
        functional_messages_script,
        shows=[INTERRUPTED, "re-and more"],
    ),
    Scenario(
        "uuid-thread",
        graphs.asks_twice,
        resume_twice_over,
        config={"configurable": {"thread_id": str(uuid.UUID(int=7))}},
    ),
    Scenario(
        "metadata-and-filters",
        graphs.chain(),
        lists_with_filters,
        shows=["'user': 'ann'", "'shard': 'east'"],
        config={"metadata": {"user": "ann", "n": 1}, "tags": ["t"], "run_name": "named"},
    ),
    Scenario("more-than-a-page", graphs.chain(), long_history),
    Scenario("deleted-thread", graphs.asks_twice, deleted),
    Scenario("two-threads", graphs.asks_twice, two_threads, shows=["dos"]),
    Scenario(
        "agent-below-the-threshold",
        graphs.agent(3, per_turn=1, ask_at=(1,), remove=True),
        agent_script,
        shows=["0.0 found", "answer to 1.0?"],
    ),
    Scenario(
        "agent-with-parallel-tools",
        graphs.agent(2, per_turn=3, ask_at=(1,)),
        agent_answered_singly,
        shows=["0.2 found", "answer to 1.2?"],
        parallel=True,
    ),
    *(
        Scenario(
            f"agent-in-a-subgraph-checkpointer-{checkpointer}",
            graphs.agent_in_a_subgraph(checkpointer, 2, ask_at=(1,)),
            agent_script,
            shows=["answer to 1.0?", "report: answer to report?"],
        )
        for checkpointer in (None, True)
    ),
)

FOLDING = (
    Scenario(
        "interrupts",
        graphs.agent(7, ask_at=(1, 5)),
        agent_script,
        shows=["answer to 5.0?"],
    ),
    Scenario(
        "parallel-interrupts-resumed-by-id",
        graphs.agent(4, per_turn=3, ask_at=(0, 2)),
        agent_script,
        shows=["answer to 2.2?"],
        parallel=True,
    ),
    Scenario(
        "parallel-interrupts-resumed-singly",
        graphs.agent(4, per_turn=3, ask_at=(1, 3)),
        agent_answered_singly,
        shows=["answer to 3.2?"],
        parallel=True,
    ),
    Scenario(
        "static-interrupts",
        graphs.agent(6, interrupt_before=["tools"], interrupt_after=["model"]),
        agent_script,
    ),
    Scenario(
        "tool-errors",
        graphs.agent(6, fail_at=4),
        agent_script,
        shows=["4.0 is not reachable, once"],
    ),
    Scenario(
        "edge-errors",
        graphs.agent(6, edge_fails_at=4),
        agent_script,
        shows=["the edge fails once"],
    ),
    Scenario("updates", graphs.agent(6), agent_updated, shows=["By hand.", "Also this."]),
    Scenario(
        "recursion-limit",
        graphs.agent(6),
        _inputs(ask("Look it all up."), None, None),
        shows=["GraphRecursionError"],
        config={"recursion_limit": 9},
    ),
    *(
        Scenario(
            f"subgraph-checkpointer-{checkpointer}",
            graphs.agent_in_a_subgraph(checkpointer, 5, ask_at=(1, 3)),
            agent_script,
            shows=["answer to 3.0?", "report: answer to report?"],
        )
        for checkpointer in (None, True)
    ),
    Scenario(
        "cancelled",
        graphs.patient_agent(5),
        agent_cancelled,
        shows=["CancelledError"],
        asynchronous=True,
    ),
    Scenario(
        "uuid-thread-and-metadata",
        graphs.agent(5, ask_at=(4,)),
        agent_script,
        config={"configurable": {"thread_id": str(uuid.UUID(int=7))}, "metadata": {"user": "ann"}},
    ),
)


def _cases(scenarios: Sequence[Scenario]) -> list[Any]:
    """Every scenario with every driver; on PostgreSQL one sync and one async driver will do."""
    return [
        pytest.param(backend, scenario, driver, id=f"{backend}-{scenario}-{driver}")
        for backend in BACKENDS
        for scenario in scenarios
        for driver in (DRIVERS if backend == "sqlite" else (DRIVERS[2], DRIVERS[4]))
        if driver.asynchronous or not scenario.asynchronous
    ]


def _both(
    scenario: Scenario, driver: Driver, savers: Savers, folder: Path, **options: Any
) -> tuple[list[Any], list[Any]]:
    expected = recorded(scenario, driver, savers.bare, savers.new_place(folder))
    found = recorded(scenario, driver, savers.handoff(options), savers.new_place(folder))
    seen = repr(expected)
    assert not [text for text in scenario.shows if text not in seen]
    return found, expected


@pytest.mark.parametrize(("backend", "scenario", "driver"), _cases(SCENARIOS))
def test_until_a_fold_everything_is_equal(
    savers: Savers, backend: str, scenario: Scenario, driver: Driver, tmp_path: Path
) -> None:
    found, expected = _both(scenario, driver, savers, tmp_path)
    different = differences(normalised(found), normalised(expected))
    assert not different, different


def without_transcripts(value: Any) -> Any:
    """The same with only the newest message of each transcript: the one no fold may take."""
    if isinstance(value, dict):
        # A fold removes the ancestors, so a checkpoint may have lost its parent, and it marks
        # the checkpoint in which it landed.
        dropped = ("parent_config", "handoff_fold")
        kept = {key: inner for key, inner in value.items() if key not in dropped}
        return {key: without_transcripts(inner) for key, inner in kept.items()}
    if not isinstance(value, list):
        return value
    if len(value) > 1 and all(isinstance(item, dict) and "<message>" in item for item in value):
        return ["...", value[-1]]
    return [without_transcripts(item) for item in value]


def running(events: Sequence[Any]) -> list[Any]:
    """What a recording says about the run, without what a fold is there to change."""
    kept = [event for event in events if event["action"] not in ("history", "rows")]
    return [without_transcripts(event) for event in kept]


@pytest.mark.parametrize(("backend", "scenario", "driver"), _cases(FOLDING))
def test_a_fold_changes_nothing_but_the_transcript(
    savers: Savers, backend: str, scenario: Scenario, driver: Driver, tmp_path: Path
) -> None:
    found, expected = _both(scenario, driver, savers, tmp_path, every=2)
    assert "handoff_briefing" in repr(found)  # it did fold
    different = differences(normalised(running(found)), normalised(running(expected)))
    assert not different, different


@pytest.mark.parametrize("backend", BACKENDS)
def test_strict_msgpack_takes_what_the_inner_saver_takes(
    backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In a process of its own: LangGraph reads the variable when it is imported."""
    server = request.getfixturevalue("postgres_server") if backend == "postgres" else ""
    program = f"""
import sys
from pathlib import Path
sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]!r}
import test_differential
test_differential.strict({backend!r}, {server!r}, Path({str(tmp_path)!r}))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, "LANGGRAPH_STRICT_MSGPACK": "true"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["differences"] == dict.fromkeys(STRICT, "")
    assert told["strict"] is True


STRICT = ("objects", "pydantic-state", "dataclass-state", "agent-below-the-threshold")


def strict(backend: str, server: str, folder: Path) -> None:
    """Print as JSON what differs between the two savers in this process."""
    from langgraph.checkpoint.serde import _msgpack

    told: dict[str, Any] = {"strict": _msgpack.STRICT_MSGPACK_ENABLED, "differences": {}}
    for scenario in SCENARIOS:
        if scenario.name in STRICT:
            savers = BACKENDS[backend](server)
            found, expected = _both(scenario, Driver(restarts=True), savers, folder)
            different = differences(normalised(found), normalised(expected))
            told["differences"][scenario.name] = different
    print(json.dumps(told))
