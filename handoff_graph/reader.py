"""A database open for reading only: a SQLite file or PostgreSQL. Imports no LangGraph."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

from typing_extensions import Self

from handoff_graph.errors import NotAHandoffDatabase
from handoff_graph.journal import check_version
from handoff_graph.steps import Query, Step, Steps, drive

__all__ = ["Reader", "is_postgres_url", "open_readonly", "reader_on"]

T = TypeVar("T")


@dataclass(frozen=True)
class Reader:
    """A database open for reading; a context manager.

    Attributes:
        name: how to speak of it.
        rows: answers an SQL statement, `?` for each parameter, with its rows.
        close: closes it.
        tables: the tables that are there.
    """

    name: str
    rows: Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
    close: Callable[[], None]
    tables: frozenset[str]

    def ask(self, steps: Steps[T]) -> T:
        """Run an operation that only reads, such as those of the journal."""

        def answer(step: Step) -> Any:
            assert isinstance(step, Query)
            return self.rows(step.sql, step.params)

        return drive(steps, answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


# -- opening -----------------------------------------------------------------------------------


def is_postgres_url(name: str) -> bool:
    """Whether this names a PostgreSQL database, not a file."""
    return name.startswith(("postgresql://", "postgres://"))


def open_readonly(name: str | Path) -> Reader:
    """Open a database for reading, without creating or changing anything.

    Args:
        name: the SQLite file, or a `postgresql://` URL.

    Returns:
        A reader.

    Raises:
        NotAHandoffDatabase: nothing is there, or neither checkpoints nor a journal are in it.
    """
    reader = _postgres(str(name)) if is_postgres_url(str(name)) else _sqlite(str(name))
    try:
        if not reader.tables & {"handoff_journal", "checkpoints"}:
            raise NotAHandoffDatabase(
                reader.name, "a database, but without checkpoints of LangGraph"
            )
        if "handoff_meta" in reader.tables:
            reader.ask(check_version())
    except BaseException:
        reader.close()
        raise
    return reader


def reader_on(conn: sqlite3.Connection, name: str = "the database") -> Reader:
    """A reader on a SQLite connection that is open."""

    def rows(sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            return conn.execute(sql, params).fetchall()
        except sqlite3.Error as error:
            reason = f"not readable as a SQLite database ({error})"
            raise NotAHandoffDatabase(name, reason) from error

    listed = rows("SELECT name FROM sqlite_master", ())
    return Reader(name, rows, conn.close, frozenset(row[0] for row in listed))


def _sqlite(name: str) -> Reader:
    if not Path(name).is_file():
        raise NotAHandoffDatabase(name, "no such file. Name the database with --db or HANDOFF_DB")
    try:
        # Without a WAL beside it nobody has the file open, so it needs no files to read it.
        at_rest = not Path(f"{name}-wal").exists()
        query = "mode=ro&immutable=1" if at_rest else "mode=ro"
        conn = sqlite3.connect(f"file:{quote(str(Path(name).absolute()))}?{query}", uri=True)
    except sqlite3.DatabaseError as error:
        raise NotAHandoffDatabase(name, f"not readable as a SQLite database ({error})") from error
    return reader_on(conn, name)


def _postgres(url: str) -> Reader:
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        raise NotAHandoffDatabase(
            "PostgreSQL", f"needs an extra: pip install 'handoff-graph[postgres]' ({error})"
        ) from error
    name = "the PostgreSQL database"
    try:
        parts = conninfo_to_dict(url)
        name = f"{parts.get('dbname', '')} at {parts.get('host', 'localhost')}"
        conn = psycopg.connect(
            url, autocommit=True, connect_timeout=10, options="-c default_transaction_read_only=on"
        )
    except psycopg.Error as error:
        raise NotAHandoffDatabase(name, str(error).strip()) from error

    def rows(sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            return conn.execute(sql.replace("?", "%s"), params).fetchall()
        except psycopg.Error as error:
            raise NotAHandoffDatabase(name, f"not readable ({error})") from error

    listed = rows(
        "SELECT tablename FROM pg_tables WHERE schemaname = ANY(current_schemas(false))", ()
    )
    return Reader(name, rows, conn.close, frozenset(row[0] for row in listed))
