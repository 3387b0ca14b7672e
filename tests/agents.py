"""Scripted agents on real LangGraph graphs, for tests that need one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.prebuilt import ToolNode, tools_condition
from typing_extensions import TypedDict

RULE = "Do NOT run the cutover script until replication lag is under 2s."
REQUEST = f"Migrate the Postgres cluster to us-west-2b. {RULE}"


class DeltaMessages(TypedDict):
    """A transcript on a `DeltaChannel`, as deepagents has it."""

    messages: Annotated[list[Any], DeltaChannel(_messages_delta_reducer)]


def output(key: str, size: int = 2_000) -> str:
    """A tool's answer of which no two windows are alike, so a leak can be told."""
    words = (f"{key}-row{n}" for n in range(size // 8))
    return f"result of {key}\n" + " ".join(words)[:size]


def lookup(key: str) -> str:
    """Look a key up."""
    return output(key)


def turns(messages: list[BaseMessage], per_turn: int = 1) -> list[dict[str, Any]]:
    """The next tool calls of an agent that decides from its input alone."""
    done = highest(messages)
    return [
        {"name": "lookup", "args": {"key": f"k{n}"}, "id": f"call-{n}"}
        for n in range(done + 1, done + 1 + per_turn)
    ]


def highest(messages: list[BaseMessage]) -> int:
    """The number of the newest call that this input speaks of, in messages or briefing."""
    text = "\n".join(
        str(m.content) + " ".join(str(c["args"]) for c in getattr(m, "tool_calls", ()))
        for m in messages
    )
    found = [word for word in text.replace("-", " ").replace("=", " ").split() if _is_key(word)]
    return max((int(word.strip("(),.k'\"{}")) for word in found), default=0)


def _is_key(word: str) -> bool:
    bare = word.strip("(),.'\"{}")
    return bare.startswith("k") and bare[1:].isdecimal()


def build(
    calls: int,
    *,
    per_turn: int = 1,
    state: type = MessagesState,
    tool: Callable[..., Any] = lookup,
    seen: list[list[BaseMessage]] | None = None,
) -> StateGraph[Any, Any, Any, Any]:
    """A ReAct graph whose scripted model makes `calls` tool calls, then speaks."""

    def agent(state: dict[str, Any]) -> dict[str, Any]:
        if seen is not None:
            seen.append(list(state["messages"]))
        if highest(state["messages"]) >= calls:
            return {"messages": [AIMessage("All looked up.")]}
        return {"messages": [AIMessage("", tool_calls=turns(state["messages"], per_turn))]}

    builder = StateGraph(state)
    builder.add_node("agent", agent)
    builder.add_node("tools", ToolNode([tool]))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition, ["tools", END])
    builder.add_edge("tools", "agent")
    return builder


def config(thread: str = "t", **more: Any) -> dict[str, Any]:
    """A run config with room for long loops."""
    return {"configurable": {"thread_id": thread, **more}, "recursion_limit": 10_000}


def request(text: str = REQUEST) -> dict[str, Any]:
    """The input of a first run."""
    return {"messages": [HumanMessage(text, id="request")]}


def raw_rows(path: Path) -> list[tuple[str, bytes]]:
    """Every value of every row of every table, as bytes, with its table's name."""
    found: list[tuple[str, bytes]] = []
    conn = sqlite3.connect(path)
    try:
        tables = [r[0] for r in conn.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        for table in tables:
            for row in conn.execute(f"SELECT * FROM {table}"):
                for value in row:
                    data = value if isinstance(value, bytes) else str(value).encode()
                    found.append((table, data))
    finally:
        conn.close()
    return found


def tool_outputs(messages: list[BaseMessage]) -> list[str]:
    """The contents of the tool results in a transcript."""
    return [str(m.content) for m in messages if isinstance(m, ToolMessage)]
