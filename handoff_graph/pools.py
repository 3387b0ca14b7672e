"""Connections to PostgreSQL, and whose turn it is on a thread."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

__all__ = ["Shared", "sync_pool"]

# As LangGraph's own `from_conn_string` opens its connection.
_OPTIONS = {"autocommit": True, "prepare_threshold": 0}
_POOL: dict[str, Any] = {"min_size": 1, "max_size": 10, "open": False, "kwargs": _OPTIONS}
_CONNECT_TIMEOUT = 10  # seconds for the first connection of all
_STRIPES = 256  # locks that threads share, by the hash of their ids


def sync_pool(url: str) -> ConnectionPool[Any]:
    """A pool that is not open yet, and never hands out a connection that is dead."""
    return ConnectionPool(url, check=ConnectionPool.check_connection, **_POOL)


class Shared:
    """What clones of a store have in common: locks, pools, and whether the tables are there.

    Args:
        url: the database, where the store opens its own pools; else `""`.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.ready = False
        self.setting_up = threading.Lock()
        self._locks = [threading.Lock() for _ in range(_STRIPES)]
        self._alocks: WeakKeyDictionary[Any, list[asyncio.Lock]] = WeakKeyDictionary()
        self.pools: WeakKeyDictionary[Any, AsyncConnectionPool[Any]] = WeakKeyDictionary()

    def check(self) -> None:
        """Fail at once where there is no server; a pool would go on trying for a while."""
        if self.url:
            psycopg.connect(self.url, connect_timeout=_CONNECT_TIMEOUT).close()

    def lock(self, thread_id: str) -> threading.Lock:
        """The lock of a thread."""
        return self._locks[hash(thread_id) % _STRIPES]

    def alock(self, thread_id: str) -> asyncio.Lock:
        """The lock of a thread in this event loop; the first is for setting up."""
        loop = asyncio.get_running_loop()
        locks = self._alocks.get(loop)
        if locks is None:
            locks = self._alocks[loop] = [asyncio.Lock() for _ in range(_STRIPES + 1)]
        return locks[1 + hash(thread_id) % _STRIPES if thread_id else 0]

    def pool(self) -> AsyncConnectionPool[Any]:
        """The pool of this event loop."""
        loop = asyncio.get_running_loop()
        pool = self.pools.get(loop)
        if pool is None:
            check = AsyncConnectionPool.check_connection
            pool = self.pools[loop] = AsyncConnectionPool(self.url, check=check, **_POOL)
        return pool
