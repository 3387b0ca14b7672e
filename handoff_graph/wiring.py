"""Putting the nodes into a graph that somebody else has built."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from handoff_graph.errors import CannotWire
from handoff_graph.export import LedgerExporter
from handoff_graph.export_node import LedgerExportNode, saver_of
from handoff_graph.nodes import SummarizerNode
from handoff_graph.probing import check_task_channel, foldable
from handoff_graph.task import merge

__all__ = ["add_handoff"]


def add_handoff(
    builder: StateGraph[Any, Any, Any, Any],
    *,
    ledger: str | Path | LedgerExporter | None = "ledger",
    tools: str | Sequence[str] = "tools",
    agent: str | None = None,
    summarizer: SummarizerNode | None = None,
    **options: Any,
) -> StateGraph[Any, Any, Any, Any]:
    """Put both nodes into a graph, between its tools and its agent.

    The user's nodes, prompts and schema stay as they are; a `task` channel is added beside
    them. Call it before `compile`.

    Args:
        builder: the graph.
        ledger: folder for the ledgers, or their exporter; None leaves the export node out.
        tools: the node, or nodes, that run tools.
        agent: the node that the tools lead back to; found by their edges if left out.
        summarizer: a ready `SummarizerNode`, instead of `options` for a new one.
        **options: passed to `SummarizerNode`.

    Returns:
        The same builder.

    Raises:
        CannotWire: there is no plain edge from `tools` to `agent`, or the graph's state has
            no transcript that can be folded, or no room for the task.
        TypeError: an option is none of `SummarizerNode`'s, or is given beside `summarizer`.
    """
    if not isinstance(builder, StateGraph):
        raise CannotWire(
            f"add_handoff takes a StateGraph before it is compiled, not {type(builder).__name__}. "
            "A compiled agent, such as create_agent's, works with HandoffSaver alone."
        )
    if SummarizerNode.name in builder.nodes:
        raise CannotWire("the handoff nodes are in this graph already")
    starts = [tools] if isinstance(tools, str) else list(tools)
    back = _edges_back(builder, starts, agent)
    ((_, target), *_) = back
    node = _summarizer(summarizer, options)
    export = None if ledger is None else LedgerExportNode(ledger, task_key=node.task_key)
    schema = _input_schema(builder, node.task_key)
    builder.add_node(node.name, node, input_schema=schema)
    builder.add_edge(node.name, target)
    if export is not None:
        builder.add_node(export.name, export, input_schema=schema)
        builder.add_edge(node.name, export.name)
    builder.edges.difference_update(back)
    for start in starts:
        builder.add_conditional_edges(start, _route(node, export, target, schema))
    builder.add_conditional_edges(START, _claim(target, schema))
    return builder


def _edges_back(
    builder: StateGraph[Any, Any, Any, Any], starts: Sequence[str], agent: str | None
) -> list[tuple[str, str]]:
    """The edges from the tools to the one agent that they lead back to."""
    if not starts:
        raise CannotWire(
            "tools= names no node; it takes the name of the node that runs tools, or several"
        )
    back = sorted((a, b) for a, b in builder.edges if a in starts and agent in (None, b))
    if len({b for _, b in back}) != 1 or {a for a, _ in back} != set(starts):
        edges = ", ".join(f"{a} -> {b}" for a, b in sorted(builder.edges)) or "none"
        raise CannotWire(
            f"no single plain edge leads from {' and '.join(map(repr, starts))} back to "
            f"{'an agent' if agent is None else repr(agent)} (plain edges: {edges}). Name the "
            "nodes with tools= and agent=, or add SummarizerNode and LedgerExportNode "
            "yourself where your tools hand back to your model."
        )
    return back


def _summarizer(ready: SummarizerNode | None, options: Mapping[str, Any]) -> SummarizerNode:
    known = list(inspect.signature(SummarizerNode).parameters)
    for name in options:
        if name not in known:
            known += inspect.signature(add_handoff).parameters
            near = difflib.get_close_matches(name, set(known) - {"builder", "options"}, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "see SummarizerNode for those it has."
            raise TypeError(f"add_handoff has no option {name!r}; {hint}")
    if ready is None:
        return SummarizerNode(**options)
    if not isinstance(ready, SummarizerNode):
        raise TypeError(
            f"summarizer= takes a SummarizerNode, not {type(ready).__name__}; give a callable or a "
            "model as model="
        )
    if options:
        raise TypeError(
            f"add_handoff would ignore {', '.join(f'{name}=' for name in options)} beside "
            "summarizer=: give these to that SummarizerNode, or leave summarizer= out"
        )
    return ready


def _claim(agent: str, schema: type) -> Callable[..., list[str]]:
    """Beside the way in: tells the saver that this graph folds by itself.

    The saver cannot see that before the first visit of the summarizer, and might by then have
    folded a long transcript under a policy of its own.
    """

    def handoff_claim(state: Any, config: RunnableConfig) -> list[str]:
        saver = saver_of(config)
        if saver is not None:
            saver.leave_folding(config["configurable"]["thread_id"])
        return []

    handoff_claim.__annotations__.update(state=schema, config=RunnableConfig)
    handoff_claim.__annotations__["return"] = Literal[agent]
    return handoff_claim


def _route(
    node: SummarizerNode, export: LedgerExportNode | None, agent: str, schema: type
) -> Callable[..., str]:
    """The way on from the tools: past the summarizer unless it has something to do.

    A visit that does nothing would still cost a superstep: a checkpoint with the whole tail,
    and one of the run's recursion limit.
    """

    def handoff(state: Any, config: RunnableConfig) -> str:
        if export is not None:
            export.attach(config)
        return node.name if node.has_work(state, config) else agent

    handoff.__annotations__.update(state=schema, config=RunnableConfig)
    handoff.__annotations__["return"] = Literal[node.name, agent]
    return handoff


def _input_schema(builder: StateGraph[Any, Any, Any, Any], task_key: str) -> type:
    """What the nodes see of the user's state: what they can fold, and the task beside it."""
    if not isinstance(builder.state_schema, type) or "__root__" in builder.channels:
        raise CannotWire(
            f"this graph's state is {builder.state_schema}, which has no room for a task. Make it "
            "a class with fields (a TypedDict, a dataclass or a pydantic model), such as one that "
            "inherits from MessagesState or HandoffState."
        )
    check_task_channel(builder.channels, task_key)
    hints = get_type_hints(builder.state_schema, include_extras=True)
    seen = {name: hints[name] for name in foldable(builder.channels, hints)}
    seen[task_key] = hints.get(task_key, Annotated[dict[str, Any], merge])
    return TypedDict("HandoffInput", seen)  # type: ignore[operator, no-any-return]
