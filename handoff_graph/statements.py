"""One step on one connection to PostgreSQL, sync and async."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg.rows import tuple_row

from handoff_graph.refusals import refusal
from handoff_graph.steps import Inner, Many, Step

__all__ = ["aperform", "perform"]


_UNSTORABLE = (psycopg.DataError, TypeError, ValueError)


@lru_cache(maxsize=512)
def _placed(sql: str) -> str:
    """The statement with the placeholders of psycopg's."""
    return sql.replace("%", "%%").replace("?", "%s")


def perform(conn: psycopg.Connection[Any], saver: PostgresSaver, step: Step) -> Any:
    """The answer to a step; `saver` is the inner one, on this connection."""
    if isinstance(step, Inner):
        try:
            answer = getattr(saver, step.method)(*step.args, **step.kwargs)
        except _UNSTORABLE as error:
            if refused := refusal(step, error, saver.serde):
                raise refused from error
            raise
        return list(answer) if isinstance(answer, Iterator) else answer
    with conn.cursor(row_factory=tuple_row) as cursor:
        if isinstance(step, Many):
            cursor.executemany(_placed(step.sql), step.rows)
            return None
        cursor.execute(_placed(step.sql), step.params)
        return cursor.fetchall() if cursor.description else []


async def aperform(
    conn: psycopg.AsyncConnection[Any], saver: AsyncPostgresSaver, step: Step
) -> Any:
    """`perform`, without blocking the event loop."""
    if isinstance(step, Inner):
        answer = getattr(saver, f"a{step.method}")(*step.args, **step.kwargs)
        if hasattr(answer, "__aiter__"):
            return [item async for item in answer]
        try:
            return await answer
        except _UNSTORABLE as error:
            if refused := refusal(step, error, saver.serde):
                raise refused from error
            raise
    async with conn.cursor(row_factory=tuple_row) as cursor:
        if isinstance(step, Many):
            await cursor.executemany(_placed(step.sql), step.rows)
            return None
        await cursor.execute(_placed(step.sql), step.params)
        return await cursor.fetchall() if cursor.description else []
