"""Which store goes with which database or inner saver; PostgreSQL's is imported when asked for."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.sqlite import SqliteSaver

from handoff_graph.errors import NotAHandoffDatabase
from handoff_graph.reader import is_postgres_url
from handoff_graph.sqlite import SqliteStore, connect
from handoff_graph.store import Store

__all__ = ["open_store", "store_around"]


def open_store(
    conn_string: str, serde: SerializerProtocol | None = None
) -> tuple[BaseCheckpointSaver[Any], Store]:
    """Open a database: its inner saver, and the store around it.

    Args:
        conn_string: a path, `:memory:`, or `postgresql://...`.
        serde: the serializer, instead of LangGraph's own.

    Raises:
        NotAHandoffDatabase: nothing of the kind can be opened there.
    """
    if is_postgres_url(conn_string):
        postgres = _postgres(conn_string)
        store = postgres.PostgresStore.open(conn_string, serde)
        return store.inner, store
    if "://" in conn_string:
        raise NotAHandoffDatabase(
            conn_string, "expected the path of a SQLite file or a postgresql:// URL"
        )
    saver = SqliteSaver(connect(conn_string), serde=serde)
    return saver, SqliteStore(saver, owned=True)


def store_around(inner: BaseCheckpointSaver[Any]) -> Store:
    """The store around a saver that the caller has opened.

    Raises:
        TypeError: it is a saver of some other kind.
    """
    if isinstance(inner, SqliteSaver):
        return SqliteStore(inner)
    if any(c.__module__.startswith("langgraph.checkpoint.postgres") for c in type(inner).mro()):
        store: Store = _postgres("").PostgresStore.around(inner)
        return store
    raise TypeError(
        f"HandoffSaver wraps a SqliteSaver, a PostgresSaver or an AsyncPostgresSaver, not "
        f"{type(inner).__name__}. To open a database, use HandoffSaver.from_conn_string(...) in a "
        "with statement. For SQLite no AsyncSqliteSaver is needed: one SqliteSaver "
        "serves invoke and ainvoke."
    )


def _postgres(conn_string: str) -> Any:
    try:
        from handoff_graph import postgres
    except ImportError as error:
        raise NotAHandoffDatabase(
            conn_string or "PostgreSQL",
            f"PostgreSQL needs an extra: pip install 'handoff-graph[postgres]' ({error})",
        ) from error
    return postgres
