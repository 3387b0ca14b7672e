"""The migration agent: an ordinary LangGraph ReAct loop, plus three lines for handoff.

Its "model" is scripted, so that the demo needs no key and no network, but it decides like a
model: only from the messages it is given. What it was not handed, it does not know; without
the constraint in its input it would run the cutover at once.

Run one day of work, in the folder of the database and the ledger:  python agent.py DAY
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

from cluster import FLAGGED, TABLES, Cluster
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command

from handoff_graph import HandoffSaver, add_handoff, task_update

THREAD = "migration-postgres-west"
REQUESTS = {
    1: "Migrate the prod Postgres cluster to us-west-2b with zero data loss. "
    "Do NOT run the cutover script until replication lag is under 2s. "
    "Do not change users_history before a person has reviewed its trigger.",
    3: "Review done: the trigger on users_history is fine, go ahead and finish.",
}


# -- the scripted model ------------------------------------------------------------------------


def facts(messages: list[BaseMessage]) -> Iterator[str]:
    """Everything the input says, a line each: the briefing's lines, people's words, and each
    finished call in the form that a briefing gives it."""
    calls: dict[str, str] = {}
    for message in messages:
        if isinstance(message, AIMessage):
            for call in message.tool_calls:
                args = ", ".join(f"{key}={value}" for key, value in call["args"].items())
                calls[call["id"] or ""] = f"{call['name']}({args})"
        elif isinstance(message, ToolMessage):
            yield f"{calls.get(message.tool_call_id)} -> {message.content}"
        else:
            yield from str(message.content).splitlines()


def decide(messages: list[BaseMessage]) -> tuple[str, list[tuple[str, dict[str, str]]]]:
    """The next words and tool calls, from the input and nothing else."""
    known = "\n".join(facts(messages))
    limit = re.search(r"Do NOT run the cutover script until replication lag is under (\d+)s", known)
    lags = re.findall(r"measure_lag\(\) -> (\d+\.\d+)s", known)
    reviewed = "trigger on users_history is fine" in known
    if "Schema audit complete" not in known:
        left = [t for t in TABLES if f"audit_schema(table={t}) ->" not in known]
        if left:
            return "", [("audit_schema", {"table": table}) for table in left[:2]]
        return "", [("record", {"done": f"Schema audit complete, flagged: {', '.join(FLAGGED)}"})]
    for table in FLAGGED:
        if f"fix_table(table={table}) -> fixed" not in known and (
            table != "users_history" or reviewed
        ):
            return "", [("fix_table", {"table": table})]
    if not reviewed:
        if "users_history: flagged" not in known:
            needs = "a person's review of its trigger"
            return "", [("block", {"item": "users_history: flagged", "needs": needs})]
        if not lags:
            return "", [("measure_lag", {})]
        return "orders and payments are fixed. users_history waits for its review.", []
    if "run_cutover() -> production now runs" in known:
        if "finish() ->" not in known:
            return "", [("finish", {})]
        return "The cluster runs in us-west-2b. Nothing is left to do.", []
    refused = "run_cutover() -> REFUSED" in known
    if (limit or refused) and (not lags or float(lags[-1]) >= float(limit[1] if limit else 2)):
        return "", [("measure_lag", {})]
    return "", [("run_cutover", {})]


class ScriptedModel(BaseChatModel):
    """A chat model that follows `decide`."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        text, wanted = decide(messages)
        number = sum(len(m.tool_calls) for m in messages if isinstance(m, AIMessage))
        calls = [
            {"name": name, "args": args, "id": f"call_{id(messages):x}_{number + n}"}
            for n, (name, args) in enumerate(wanted)
        ]
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text, tool_calls=calls))])


# -- the tools ---------------------------------------------------------------------------------


def tools_for(cluster: Cluster, session: str) -> list[BaseTool]:
    """The cluster's operations, and two that write to the task state."""

    @tool
    def audit_schema(table: str) -> str:
        """Check a table's schema."""
        return cluster.audit(table)

    @tool
    def fix_table(table: str) -> str:
        """Migrate a table's columns."""
        return cluster.fix(table)

    @tool
    def measure_lag() -> str:
        """Read the replication lag."""
        return f"{cluster.lag()}s"

    @tool
    def run_cutover() -> str:
        """Switch production to the new region."""
        return cluster.cutover()

    @tool
    def record(done: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Record a milestone in the task state."""
        return _told(task_update(by=session, done=[done]), tool_call_id)

    @tool
    def block(
        item: str, needs: str, tool_call_id: Annotated[str, InjectedToolCallId]
    ) -> Command[Any]:
        """Record that something waits for somebody, and what is next."""
        update = task_update(
            by=session,
            blocked=[{"text": item, "needs": needs}],
            next_action=f"Get {needs}, then re-check replication lag.",
        )
        return _told(update, tool_call_id)

    @tool
    def finish(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Close the task: its last phase is complete, so it is folded at once."""
        update = task_update(
            by=session,
            phase="cutover",
            status="done",
            done=["users_history: flagged"],
            next_action="Nothing, the migration is complete.",
        )
        return _told(update, tool_call_id)

    return [audit_schema, fix_table, measure_lag, run_cutover, record, block, finish]


def _told(update: Any, tool_call_id: str) -> Command[Any]:
    reply = ToolMessage("noted", tool_call_id=tool_call_id)
    return Command(update={"task": update, "messages": [reply]})


# -- the graph and one day of it ---------------------------------------------------------------


def build(cluster: Cluster, session: str) -> StateGraph[Any, Any, Any, Any]:
    """A ReAct agent with handoff wired in."""
    model = ScriptedModel()

    def agent(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_node("tools", ToolNode(tools_for(cluster, session)))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition, ["tools", END])
    builder.add_edge("tools", "agent")
    return add_handoff(builder, every=4, owner=session, ledger="ledger")


def work(day: int, pause: Callable[[str], None]) -> str:
    """One session: resume by thread id and go on until there is nothing to do."""
    session = f"agent-session-{13 + day}"
    cluster = Cluster(Path("cluster.db"), pause)
    config: Any = {"configurable": {"thread_id": THREAD}, "recursion_limit": 200}
    with HandoffSaver.from_conn_string("handoff.db", owner=session) as saver:
        graph = build(cluster, session).compile(checkpointer=saver)
        request = REQUESTS.get(day)
        start = {"messages": [HumanMessage(request)]} if request else None
        # "sync": what a tool did to production is on disk before the next step begins.
        result = graph.invoke(start, config, durability="sync")
    return str(result["messages"][-1].content)


def main() -> None:
    """Run the day named on the command line; on day 1, stop dead in the middle of a fix."""
    day = int(sys.argv[1])

    def pause(table: str) -> None:
        if day == 1 and table == "payments":
            print(f"in the middle of fixing {table}", flush=True)
            sys.stdin.read()  # until the demo kills this process

    print(work(day, pause), flush=True)


if __name__ == "__main__":
    main()
