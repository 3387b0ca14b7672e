"""A pytest plugin for LangGraph's own suite: which checkpointers its tests get.

`UPSTREAM_SAVER` is `handoff` (HandoffSaver, no option set) or `bare` (the inner saver, with the
async methods of the sync SQLite one in a worker thread). `UPSTREAM_POSTGRES` is the URL of a
PostgreSQL server, if the tests are to run on that; each gets a database of its own there.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager
from functools import partial
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver

from handoff_graph import HandoffSaver

HANDOFF = os.environ["UPSTREAM_SAVER"] == "handoff"
POSTGRES = os.environ.get("UPSTREAM_POSTGRES", "")
STRICT = os.environ.get("LANGGRAPH_STRICT_MSGPACK", "false").lower() in ("1", "true", "yes")
FIXTURES = ("sync_checkpointer", "async_checkpointer")
IN_MEMORY = ("InMemorySaver", "MemorySaver")  # names under which test modules import it

_numbers = itertools.count()


def serializer(*, encrypted: bool = False) -> SerializerProtocol | None:
    """The serializer that the suite gives a checkpointer; None for its own default."""
    plain = JsonPlusSerializer(allowed_msgpack_modules=None) if STRICT else None
    if encrypted:
        options: dict[str, Any] = {"serde": plain} if plain else {}
        return EncryptedSerializer.from_pycryptodome_aes(key=b"1234567890123456", **options)
    return plain


class ThreadedSqliteSaver(SqliteSaver):
    """The bare sync saver, usable with `ainvoke` too."""

    async def aget_tuple(self, config: Any) -> Any:
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(self, config: Any, **options: Any) -> AsyncIterator[Any]:
        for found in await asyncio.to_thread(lambda: [*self.list(config, **options)]):
            yield found

    async def aput(self, *args: Any) -> Any:
        return await asyncio.to_thread(self.put, *args)

    async def aput_writes(self, *args: Any) -> None:
        await asyncio.to_thread(self.put_writes, *args)

    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def aget_delta_channel_history(self, **options: Any) -> Any:
        return await asyncio.to_thread(partial(self.get_delta_channel_history, **options))


class _BareInMemory(ThreadedSqliteSaver):
    """The bare saver, made as an `InMemorySaver` is."""

    def __init__(self, *, serde: SerializerProtocol | None = None, **options: Any) -> None:
        conn = sqlite3.connect(":memory:", check_same_thread=False)
        super().__init__(conn, serde=serde or serializer())


class _HandoffInMemory(HandoffSaver):
    """HandoffSaver, made as an `InMemorySaver` is."""

    def __init__(self, *, serde: SerializerProtocol | None = None, **options: Any) -> None:
        conn = sqlite3.connect(":memory:", check_same_thread=False)
        super().__init__(SqliteSaver(conn, serde=serde or serializer()))


InMemory = _HandoffInMemory if HANDOFF else _BareInMemory
"""What a test gets where it makes, or derives from, an `InMemorySaver`."""


@contextmanager
def database() -> Iterator[str]:
    """A new database on the server, removed afterwards."""
    from psycopg import connect
    from psycopg.conninfo import make_conninfo

    name = f"upstream_{os.getpid()}_{next(_numbers)}"
    with connect(POSTGRES, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")
        try:
            yield make_conninfo(POSTGRES, dbname=name)
        finally:
            conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


def url_of(conninfo: str) -> str:
    """The same as a URL, with the socket's folder as a parameter."""
    from urllib.parse import quote, urlencode

    from psycopg.conninfo import conninfo_to_dict

    parts = {key: str(value) for key, value in conninfo_to_dict(conninfo).items()}
    name, user = parts.pop("dbname"), parts.pop("user", "")
    return f"postgresql://{quote(user)}@/{name}?{urlencode(parts)}"


@contextmanager
def on_sqlite(*, encrypted: bool = False) -> Iterator[Any]:
    """A sync checkpointer on SQLite."""
    serde = serializer(encrypted=encrypted)
    if HANDOFF and serde is None:
        with HandoffSaver.from_conn_string(":memory:") as saver:
            yield saver
        return
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as conn:
        inner = ThreadedSqliteSaver(conn, serde=serde)
        yield HandoffSaver(SqliteSaver(conn, serde=serde)) if HANDOFF else inner


@contextmanager
def on_postgres(*, encrypted: bool = False) -> Iterator[Any]:
    """A sync checkpointer on PostgreSQL."""
    from langgraph.checkpoint.postgres import PostgresSaver
    from psycopg_pool import ConnectionPool

    serde = serializer(encrypted=encrypted)
    with database() as where:
        if HANDOFF and serde is None:
            with HandoffSaver.from_conn_string(url_of(where)) as saver:
                yield saver
            return
        with ConnectionPool(where, kwargs={"autocommit": True}) as pool:
            inner = PostgresSaver(pool, serde=serde)
            inner.setup()
            yield HandoffSaver(inner) if HANDOFF else inner


@asynccontextmanager
async def on_sqlite_async() -> AsyncIterator[Any]:
    """An async checkpointer on SQLite: the same object as the sync one."""
    if not HANDOFF:
        with on_sqlite() as saver:
            yield saver
        return
    async with HandoffSaver.from_conn_string(":memory:") as saver:
        yield saver


@asynccontextmanager
async def on_postgres_async() -> AsyncIterator[Any]:
    """An async checkpointer on PostgreSQL."""
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

    with database() as where:
        if HANDOFF:
            async with HandoffSaver.from_conn_string(url_of(where)) as saver:
                yield saver
            return
        async with AsyncPostgresSaver.from_conn_string(where) as saver:
            await saver.setup()
            yield saver


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Point the suite's fixtures at our checkpointers, and leave out the tests without any."""
    import tests.conftest as theirs

    sync: Callable[..., AbstractContextManager[Any]] = on_postgres if POSTGRES else on_sqlite
    theirs._checkpointer_sqlite = sync
    theirs._checkpointer_sqlite_aes = partial(sync, encrypted=True)
    theirs._checkpointer_sqlite_aio = on_postgres_async if POSTGRES else on_sqlite_async
    kept = [item for item in items if _is_ours(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def _is_ours(item: pytest.Item) -> bool:
    names = set(getattr(item, "fixturenames", ()))
    if names & set(FIXTURES):
        given = getattr(item, "callspec", None)
        return not any(given and given.params.get(name) == "memory" for name in FIXTURES)
    return not POSTGRES and bool(_imported(item))


def _imported(item: pytest.Item) -> list[str]:
    module = getattr(item, "module", None)
    return [name for name in IN_MEMORY if getattr(module, name, None) is InMemorySaver]


@pytest.fixture(autouse=True)
def _no_saver_in_memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _imported(request.node):
        monkeypatch.setattr(request.module, name, InMemory)
