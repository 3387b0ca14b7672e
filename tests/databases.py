"""The databases that tests run on: SQLite files and a real PostgreSQL server."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents import raw_rows
from langgraph.checkpoint.sqlite import SqliteSaver

from handoff_graph import HandoffSaver


@dataclass(frozen=True)
class Database:
    """One empty database.

    Attributes:
        kind: `sqlite` or `postgres`.
        url: what `from_conn_string` takes.
    """

    kind: str
    url: str

    def open(self, **options: Any) -> HandoffSaver:
        """A new saver on it."""
        return HandoffSaver.from_conn_string(self.url, **options)

    @contextmanager
    def bare(self) -> Iterator[Any]:
        """The inner saver that a user would otherwise have, sync."""
        if self.kind == "sqlite":
            with SqliteSaver.from_conn_string(self.url) as saver:
                yield saver
        else:
            from langgraph.checkpoint.postgres import PostgresSaver

            with PostgresSaver.from_conn_string(self.url) as saver:
                saver.setup()
                yield saver

    def rows(self) -> list[tuple[str, bytes]]:
        """Every value of every row of every table, as bytes, with its table's name."""
        if self.kind == "sqlite":
            return raw_rows(Path(self.url))
        found = []
        for table in self._query("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
            for row in self._query(f"SELECT * FROM {table[0]}"):
                values = (v if isinstance(v, bytes) else str(v).encode() for v in row)
                found += [(table[0], value) for value in values]
        return found

    def count(self, table: str, where: str = "true") -> int:
        """How many rows of a table fulfil a condition; `checkpoint_writes` in either database."""
        if self.kind == "sqlite" and table == "checkpoint_writes":
            table = "writes"
        return int(self._query(f"SELECT count(*) FROM {table} WHERE {where}")[0][0])

    def execute(self, sql: str) -> None:
        """Run a statement on a connection of its own."""
        self._query(sql, fetch=False)

    def _query(self, sql: str, fetch: bool = True) -> list[tuple[Any, ...]]:
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self.url)) as conn, conn:
                return conn.execute(sql).fetchall()
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as conn:
            cursor = conn.execute(sql)
            return cursor.fetchall() if fetch else []


def new_postgres(server: str) -> Database:
    """A new, empty database on a server."""
    import psycopg

    name = f"handoff_test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")
    return Database("postgres", _with_name(server, name))


def drop(database: Database, server: str) -> None:
    """Remove a database again, whoever is still connected to it."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    name = conninfo_to_dict(database.url)["dbname"]
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _with_name(server: str, name: str) -> str:
    from urllib.parse import urlsplit, urlunsplit

    parts = urlsplit(server)
    return urlunsplit(parts._replace(path=f"/{name}"))
