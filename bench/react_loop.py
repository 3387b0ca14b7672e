"""Measure what a long ReAct loop costs with different ways of keeping its state.

One agent calls a tool N times; each output is about 2 KB and starts with a word of its own. The
model is a script, so what is measured is the graph and its checkpointer. The first message
states a constraint. Everything runs with LangGraph's default durability, "async". Rows:

    none             no checkpointer: the floor
    sqlite           SqliteSaver, messages on the usual `add_messages` channel
    delta            SqliteSaver, messages on a `DeltaChannel`
    summarize        langchain's create_agent with SummarizationMiddleware, on SqliteSaver
    summarize-delta  the same, messages on a `DeltaChannel`
    handoff          HandoffSaver alone: the graph of row `sqlite`, unchanged
    handoff-delta    HandoffSaver alone: the graph of row `delta`, unchanged
    handoff-nodes    HandoffSaver and `add_handoff`: the same graph with the nodes and a ledger

All that summarize or fold do so every 10 tool calls, without calling a real model. The two
`summarize` rows also pay for what create_agent does around each model call: compare their wall
time with care. They need langchain (pip install 'handoff-graph[bench]').

Each row runs in a fresh process and a temporary folder, removed right after it. Columns:

    database  bytes of all files of the database, after closing it; a ledger is not counted
    wall      seconds of `invoke`
    saver     seconds inside the checkpointer, summed over the threads that write at the same
              time and wait for each other: it can exceed the wall time
    resume    median milliseconds to connect, compile and `get_state` with its messages

and, as `column/row`, multiples of what the rows `sqlite` and `delta` took for the same calls.
Nothing is asserted about the times: they are those of your machine.

Example:
    python bench/react_loop.py --calls 100,300 --rows sqlite,delta,handoff --markdown

SqliteSaver writes about 2.4 GB for 1,000 calls; TMPDIR says where.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import product, repeat
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.tools import BaseTool, tool
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.prebuilt import ToolNode, tools_condition
from rich.console import Console
from rich.progress import Progress
from typing_extensions import TypedDict

from handoff_graph import HandoffSaver, add_handoff

REQUEST = "Audit every report of the archive. Do NOT change any report without written approval."
ANSWER = "All reports are audited."
SUMMARY = f"The user asked: {REQUEST} So far: " + "one more report was read and is in order. " * 20
PHRASES = ("within tolerance", "was read twice", "has no open items", "matches the archive")
CONFIG: Any = {"configurable": {"thread_id": "bench"}, "recursion_limit": 1_000_000}
EVERY = 10  # tool calls between two summaries or folds, as is HandoffSaver's default
KEPT = 4  # messages that the summarization middleware keeps: two tool calls with their results
RESUMES = 5
TIMED = ("put", "put_writes", "get_tuple", "list", "get_delta_channel_history")

Graph = StateGraph[Any, Any, Any, Any]


# -- the agent ---------------------------------------------------------------------------------


class DeltaState(TypedDict):
    """`MessagesState` on a channel that stores only what is new."""

    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


class ScriptedModel(GenericFakeChatModel):
    """A chat model that says what its script has next, whatever it is sent."""

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> ScriptedModel:
        """The model itself: the script already names its tools."""
        return self


def script(calls: int) -> Iterator[AIMessage]:
    """What the model says: so many tool calls, one at a time, then the answer."""
    for number in range(1, calls + 1):
        call = {"name": "read_report", "args": {"number": number}, "id": f"call-{number}"}
        yield AIMessage(f"Reading report {number}.", tool_calls=[call])
    yield AIMessage(ANSWER)


def report_tool(size: int) -> BaseTool:
    """A tool whose outputs are `size` bytes long, always the same for the same number."""

    @tool
    def read_report(number: int) -> str:
        """Read a report."""
        draw = random.Random(number)
        lines = (f"line {at}: {draw.choice(PHRASES)}" for at in range(size // 16))
        return "\n".join((f"report{number}", *lines))[:size]

    return read_report


def react(schema: type, calls: int, size: int, ledger: Path) -> Graph:
    """The textbook loop: agent, tools, agent, ... until the agent asks for no more tools."""
    turns = script(calls)
    builder = StateGraph(schema)
    builder.add_node("agent", lambda state: {"messages": [next(turns)]})
    builder.add_node("tools", ToolNode([report_tool(size)]))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition)
    builder.add_edge("tools", "agent")
    return builder


def react_with_nodes(calls: int, size: int, ledger: Path) -> Graph:
    """The same loop with the summarizer and the ledger export wired in."""
    return add_handoff(react(MessagesState, calls, size, ledger), ledger=ledger, every=EVERY)


def summarizing(calls: int, size: int, ledger: Path, *, on_delta: bool = False) -> Graph:
    """langchain's agent with its own summarization, as the graph that `create_agent` built."""
    from langchain.agents import AgentState, create_agent
    from langchain.agents.middleware import SummarizationMiddleware

    class DeltaAgentState(AgentState[Any]):
        messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]

    summary = SummarizationMiddleware(
        ScriptedModel(messages=repeat(SUMMARY)),
        trigger=("messages", 1 + KEPT + 2 * EVERY),  # the summary, what is kept, 2 for each call
        keep=("messages", KEPT),
    )
    agent = create_agent(
        ScriptedModel(messages=script(calls)),
        [report_tool(size)],
        middleware=[summary],
        state_schema=DeltaAgentState if on_delta else AgentState,
    )
    return agent.builder


# -- measuring ---------------------------------------------------------------------------------


class Row(NamedTuple):
    """One line of the table: a checkpointer, and the graph to run on it."""

    label: str
    saver: type[SqliteSaver] | type[HandoffSaver] | None
    graph: Callable[[int, int, Path], Graph]  # from tool calls, bytes of each, ledger folder


ROWS = {
    "none": Row("no checkpointer", None, partial(react, MessagesState)),
    "sqlite": Row("SqliteSaver", SqliteSaver, partial(react, MessagesState)),
    "delta": Row("SqliteSaver, DeltaChannel", SqliteSaver, partial(react, DeltaState)),
    "summarize": Row("Summarization", SqliteSaver, summarizing),
    "summarize-delta": Row(
        "Summarization, DeltaChannel", SqliteSaver, partial(summarizing, on_delta=True)
    ),
    "handoff": Row("HandoffSaver", HandoffSaver, partial(react, MessagesState)),
    "handoff-delta": Row("HandoffSaver, DeltaChannel", HandoffSaver, partial(react, DeltaState)),
    "handoff-nodes": Row("HandoffSaver + nodes", HandoffSaver, react_with_nodes),
}
NEED_LANGCHAIN = ("summarize", "summarize-delta")


class Measured(NamedTuple):
    """What one row cost; empty, with a note, if it could not be measured."""

    database: int | None = None
    wall: float | None = None
    saver: float | None = None
    resume: float | None = None
    note: str = ""


Results = dict[tuple[int, str], Measured]  # by number of tool calls and name of row


def timed(saver: type[Any], spent: list[float]) -> type[Any]:
    """A subclass of a saver that notes the seconds spent in each call to its storage methods."""
    inside = threading.local()

    def on_clock(name: str) -> Callable[..., Any]:
        original = getattr(saver, name)

        def method(*args: Any, **options: Any) -> Any:
            if getattr(inside, "busy", False):  # called by another of them: counted there
                return original(*args, **options)
            inside.busy, start = True, time.perf_counter()
            try:
                result = original(*args, **options)
                return iter([*result]) if name == "list" else result
            finally:
                inside.busy = False
                spent.append(time.perf_counter() - start)  # safe from any thread

        return method

    return type(f"Timed{saver.__name__}", (saver,), {name: on_clock(name) for name in TIMED})


def opened(saver: type[Any] | None, folder: Path) -> AbstractContextManager[Any]:
    """A new connection to the database in a folder."""
    return nullcontext() if saver is None else saver.from_conn_string(str(folder / "bench.db"))


def measure(name: str, calls: int, size: int, folder: Path) -> Measured:
    """Run one row from start to end. Called in a process of its own."""
    row, spent, database = ROWS[name], list[float](), folder / "database"
    database.mkdir()
    builder = row.graph(calls, size, folder / "ledger")
    with opened(row.saver and timed(row.saver, spent), database) as saver:
        graph = builder.compile(checkpointer=saver)
        start = time.perf_counter()
        end = graph.invoke({"messages": [HumanMessage(REQUEST)]}, CONFIG)
        wall = time.perf_counter() - start
    if end["messages"][-1].content != ANSWER:
        raise RuntimeError("the loop ended early")
    if row.saver is None:
        return Measured(0, wall)
    resumes = [resume(row.saver, builder, database) for _ in range(RESUMES)]
    used = sum(file.stat().st_size for file in database.rglob("*") if file.is_file())
    return Measured(used, wall, sum(spent), median(resumes))


def resume(saver_class: type[Any], builder: Graph, database: Path) -> float:
    """Milliseconds from no connection at all to the thread's messages."""
    start = time.perf_counter()
    with opened(saver_class, database) as saver:
        messages = builder.compile(checkpointer=saver).get_state(CONFIG).values["messages"]
        took = 1000 * (time.perf_counter() - start)
    if messages[-1].content != ANSWER:
        raise RuntimeError("the newest message was lost")
    return took


def measure_apart(name: str, calls: int, size: int) -> Measured:
    """`measure` in a fresh process and a temporary folder; what goes wrong becomes the note."""
    if name in NEED_LANGCHAIN and importlib.util.find_spec("langchain") is None:
        return Measured(note="skipped: pip install 'handoff-graph[bench]'")
    fresh = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="handoff-bench-") as folder:
        try:
            with ProcessPoolExecutor(1, mp_context=fresh) as pool:
                return pool.submit(measure, name, calls, size, Path(folder)).result()
        except Exception as error:
            return Measured(note=f"failed: {type(error).__name__}: {error}")


# -- printing ----------------------------------------------------------------------------------

UNITS = {"database": "{:,} B", "wall": "{:.2f} s", "saver": "{:.2f} s", "resume": "{:.1f} ms"}
RATIOS = ("database/sqlite", "database/delta", "resume/delta", "wall/delta")  # column/row
HEAD = ("calls", "row", *UNITS, *RATIOS)


def cells(calls: int, name: str, results: Results) -> list[str]:
    """One line of the table."""
    found = results[calls, name]
    line = [f"{calls:,}", ROWS[name].label + " *" * bool(found.note)]
    line += [shown(found, column) for column in UNITS]
    for column, base in (title.split("/") for title in RATIOS):
        value, other = (getattr(results.get((calls, n)), column, None) for n in (name, base))
        line.append(ratio(value / other) if value and other else "")
    return line


def shown(found: Measured, column: str) -> str:
    """One measured value with its unit."""
    value = getattr(found, column)
    return "n/a" if value is None else UNITS[column].format(value)


def ratio(times: float) -> str:
    """A multiple, or a fraction where it is small."""
    return f"1/{1 / times:,.0f}" if times < 0.1 else f"{times:,.{2 if times < 10 else 0}f}"


def render(results: Results, *, markdown: bool) -> str:
    """The table, and below it why a row is missing."""
    rows = [HEAD, *(cells(calls, name, results) for calls, name in results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left, gap, right, end = ("| ", " | ", " |", ":") if markdown else ("", "  ", "", "-")

    def line(row: Sequence[str]) -> str:
        padded = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        padded[1] = row[1].ljust(widths[1])
        return (left + gap.join(padded) + right).rstrip()

    rule = ["-" * (width - 1) + end for width in widths]
    rule[1] = "-" * widths[1]
    missing = [(ROWS[name].label, found.note) for (_, name), found in results.items() if found.note]
    notes = [f"\n* {label}: {note}" for label, note in dict.fromkeys(missing)]
    return "\n".join([line(HEAD), line(rule), *map(line, rows[1:]), *notes])


@contextmanager
def progress(total: int) -> Iterator[Callable[[str, bool], None]]:
    """Yields `report(text, finished)`: a bar on a terminal, else a line per finished row.

    Whoever ends the program from here on still has it remove its folders and servers.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if sys.stderr.isatty():
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("starting", total=total)
            yield lambda text, finished: bar.update(task, description=text, advance=int(finished))
    else:
        yield lambda text, finished: finished and print(text, file=sys.stderr, flush=True)


def numbers(text: str) -> list[int]:
    """Comma-separated numbers of tool calls."""
    return [int(part) for part in text.split(",")]


def row_names(text: str) -> list[str]:
    """Comma-separated names of rows."""
    if unknown := [name for name in text.split(",") if name not in ROWS]:
        raise argparse.ArgumentTypeError(f"no row {unknown[0]!r}; there are {', '.join(ROWS)}")
    return text.split(",")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--calls", type=numbers, default="100,300,1000", help="default: %(default)s")
    option("--rows", type=row_names, default=",".join(ROWS), help="default: all, in their order")
    option("--output-bytes", type=int, default=2048, help="of each tool; default: %(default)s")
    option("--markdown", action="store_true", help="print a markdown table")
    return parser.parse_args()


def main() -> int:
    """Measure what was asked for and print it; 1 if a row failed."""
    given = arguments()
    jobs = list(product(given.calls, given.rows))
    results: Results = {}
    with progress(len(jobs)) as report:
        for calls, name in jobs:
            report(f"{calls:,} calls, {name}", False)
            found = results[calls, name] = measure_apart(name, calls, given.output_bytes)
            report(f"{calls:,} calls, {name}: {found.note or shown(found, 'wall')}", True)
    print(render(results, markdown=given.markdown))
    return int(any(found.note.startswith("failed") for found in results.values()))


if __name__ == "__main__":
    sys.exit(main())
