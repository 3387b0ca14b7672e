"""Replay recorded conversations through a graph that folds, dies and resumes, and check it.

Each conversation runs through a LangGraph graph: the model is a script that emits the recorded
assistant messages, the tools answer with the recorded results. It runs twice: `alone`, where a
`HandoffSaver` folds on the unchanged graph, and `nodes`, where `add_handoff` has put its nodes
in and a ledger is kept. Both fold every 3 tool calls. The process is killed (SIGKILL) after
every few checkpoints, and the next one resumes, until the conversation is over.

After every checkpoint the database is read behind the saver's back. It must hold

    P1  no text of a folded message in any row of any table, beyond the task's short quotes
    P2  a transcript that a chat provider takes, with the newest human message word for word
    P5  the recorded messages and no others, in order, whatever was killed in between

and at the end every constraint ever recorded (P3), finished work, and a ledger in step with
the journal (P6). The checkers are written anew here: a promise that is only checked by the
code that makes it is not checked.

The folder of conversations holds `.jsonl` files, a conversation a line: `{id, messages: [{role,
content, tool_calls?: [{id, name, arguments}], tool_call_id?}]}`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    ToolMessage,
    convert_to_messages,
)
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, MessagesState, StateGraph

from handoff_graph import HandoffSaver, LedgerExporter, add_handoff, journal
from handoff_graph.diff import apply_change
from handoff_graph.reader import reader_on
from handoff_graph.transcript import invalid_reason, is_briefing

TRANSCRIPTS = Path(__file__).resolve().parents[2] / "shared" / "transcripts"
MODES = ("alone", "nodes")
EVERY = 3  # tool calls between two folds
PATIENCE = 60  # seconds until a process that hangs is ended
MAX_KILLS = 200  # more than any conversation needs: a resume that gets nowhere meets it

LONG, WINDOW = 500, 60  # longer texts are probed for leaks, by pieces of this length
QUOTE = 400  # the task state may quote so much of a message's beginning,
EVIDENCE = 80 + 60 + 10  # and of a call, its result's first line, and the words in between
QUOTING = ("constraints", "notes", "done", "in_progress", "artifacts")
ALL_RULES = "Follow the system policy: "  # a constraint that stands for a long system message


# -- the recorded conversations ----------------------------------------------------------------


@dataclass(frozen=True)
class Conversation:
    """One recorded conversation."""

    id: str
    messages: Sequence[BaseMessage]

    @property
    def calls(self) -> int:
        """How many tool calls have a result."""
        return sum(isinstance(m, ToolMessage) for m in self.messages)

    def next_turn(self, position: int) -> dict[str, Any] | None:
        """The graph's input for the next human message, with what stands before it."""
        rest = self.messages[position:]
        humans = (n for n, m in enumerate(rest, 1) if isinstance(m, HumanMessage))
        length = next(humans, 0)
        return _step(position, rest[:length]) or None


def load(folder: Path) -> list[Conversation]:
    """Read every conversation of a folder; ValueError says what is wrong with it."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text("utf-8").split("\n"), 1):
            try:
                raw = json.loads(line or "null")
                if raw is not None:
                    found.append(Conversation(raw["id"], _messages(raw)))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: {error!r}") from error
    if not found:
        raise ValueError(f"no recorded conversations (*.jsonl) in {folder}; see --transcripts")
    return found


def _messages(raw: Mapping[str, Any]) -> list[BaseMessage]:
    messages = [{**message, "content": message["content"] or ""} for message in raw["messages"]]
    for message in messages:
        if "tool_calls" in message:
            message["tool_calls"] = [_call(call) for call in message["tool_calls"] or ()]
    return convert_to_messages(messages)


def _call(raw: Mapping[str, Any]) -> dict[str, Any]:
    args = raw["arguments"] or {}
    args = json.loads(args) if isinstance(args, str) else args
    return {"id": raw["id"], "name": raw["name"], "args": args}


# -- the graph ---------------------------------------------------------------------------------


class Replayed(MessagesState):
    """A transcript, and how far into the record it goes: the script's only memory."""

    position: int


def _step(position: int, new: Sequence[BaseMessage]) -> dict[str, Any]:
    # Copies, because the graph gives ids to what it is handed.
    copies = [message.model_copy() for message in new]
    return {"messages": copies, "position": position + len(new)} if new else {}


def build(conversation: Conversation) -> StateGraph[Any, Any, Any, Any]:
    """A ReAct graph that goes on with a conversation from wherever its state is."""

    def agent(state: Replayed) -> dict[str, Any]:
        rest = conversation.messages[state["position"] :]
        return _step(state["position"], [m for m in rest[:1] if isinstance(m, AIMessage)])

    def tools(state: Replayed) -> dict[str, Any]:
        rest = conversation.messages[state["position"] :]
        return _step(state["position"], [*takewhile(lambda m: isinstance(m, ToolMessage), rest)])

    def route(state: Replayed) -> str:
        last = state["messages"][-1]
        return "tools" if isinstance(last, AIMessage) and last.tool_calls else END

    builder = StateGraph(Replayed)
    builder.add_node("agent", agent)
    builder.add_node("tools", tools)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", route, ["tools", END])
    builder.add_edge("tools", "agent")
    return builder


# -- the checkers: each returns what is wrong, or None -----------------------------------------


def transcript_problem(messages: Sequence[BaseMessage]) -> str | None:
    """P2: results right behind their call, every call answered unless it is the last."""
    waiting: set[str] = set()
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in waiting:
                return f"message {index} is a result that no call right before it asked for"
            waiting.discard(message.tool_call_id)
        elif waiting:
            return f"message {index} comes before the results of {sorted(waiting)}"
        elif isinstance(message, AIMessage):
            waiting = {str(call["id"]) for call in message.tool_calls}
        elif message.type == "system" and any(m.type != "system" for m in messages[:index]):
            return f"message {index} is a system message behind others"
    return None


def human_problem(stored: Sequence[BaseMessage], recorded: Sequence[BaseMessage]) -> str | None:
    """P2: the newest human message so far is the newest one stored, word for word."""
    newest = [[m.content for m in part if m.type == "human"][-1:] for part in (stored, recorded)]
    if newest[0] != newest[1]:
        return f"the newest human message is not stored: {str(newest[1])[:80]}"
    return None


def kept_indexes(stored: Sequence[BaseMessage], recorded: Sequence[BaseMessage]) -> list[int]:
    """Which recorded message each stored one is; from the first that is none, -1."""
    kept: list[int] = []
    index = len(recorded)
    for message in reversed([m for m in stored if not is_briefing(m)]):
        index = next((i for i in reversed(range(index)) if _same(recorded[i], message)), -1)
        kept.insert(0, index)
    return kept


def _same(one: BaseMessage, other: BaseMessage) -> bool:
    fields = ("type", "content", "tool_calls", "tool_call_id")
    return all(getattr(one, name, None) == getattr(other, name, None) for name in fields)


def record_problem(stored: Sequence[BaseMessage], recorded: Sequence[BaseMessage]) -> str | None:
    """P5: the recorded messages so far, without a hole but for what a fold takes: all that is
    older than the working tail, except system messages and one human message."""
    kept = kept_indexes(stored, recorded)
    if -1 in kept:
        return "the transcript holds a message that is not recorded, or not in this place"
    missing = [i for i in range(len(recorded)) if i not in kept]
    hole = missing[-1] if missing else -1
    older = [recorded[i].type for i in kept if i < hole and recorded[i].type != "system"]
    folded = any(is_briefing(m) for m in stored) and hole + 1 < len(recorded)
    if missing and not (folded and older in ([], ["human"])):
        return f"recorded message {hole} is missing: {str(recorded[hole].content)[:80]!r}"
    return None


def leak_problem(
    rows: Sequence[tuple[str, bytes]],
    folded: Iterable[BaseMessage],
    others: Iterable[BaseMessage],
    states: Iterable[Mapping[str, Any]],
) -> str | None:
    """P1: pieces of folded messages are in no value of any table, unless another message says
    the same or the task state quotes it on purpose."""
    everything = b"\x00".join(value for _, value in rows)
    pieces = (piece for m in folded for text in texts(m) for piece in windows(text))
    hits = [(p, s) for p in pieces for s in spellings(p) if s in everything]
    if hits:
        quoted = [quote for state in states for quote in quotes(state)]
        allowed = _flat("\n".join([*quoted, *(text for m in others for text in texts(m))]))
        for piece, spelling in hits:
            if _flat(piece) not in allowed:
                tables = sorted({table for table, value in rows if spelling in value})
                return f"text of a folded message is left in {', '.join(tables)}: {piece!r}"
    return None


def texts(message: BaseMessage) -> list[str]:
    """The words of a message: its content, and the arguments of its calls."""
    calls = getattr(message, "tool_calls", ())
    return [str(message.content), *(str(v) for call in calls for v in call["args"].values())]


@cache
def windows(text: str) -> list[str]:
    """Four pieces of a long text, from behind what may be quoted of it to its end."""
    first = next((n for n in range(len(text)) if len(_flat(text[:n])) > QUOTE), len(text))
    room = len(text) - WINDOW - first
    if len(text) < LONG or room < 0:
        return []
    starts = (first + room * part // 3 for part in range(4))
    pieces = (text[start : start + WINDOW] for start in starts)
    return [piece for piece in pieces if len(_flat(piece)) > WINDOW // 2]


@cache
def spellings(piece: str) -> set[bytes]:
    """The ways a text can stand in a row: as it is or on one line, in msgpack or in JSON."""
    plain = {piece, _flat(piece)}
    quoted = {json.dumps(p, ensure_ascii=only)[1:-1] for p in plain for only in (True, False)}
    return {text.encode() for text in plain | quoted}


def _flat(text: str) -> str:
    return " ".join(text.split())


def quotes(state: Mapping[str, Any]) -> list[str]:
    """What a task state quotes on purpose."""
    scalars = [str(state.get(name, "")) for name in ("title", "objective", "next_action")]
    items = [item for section in QUOTING for item in state.get(section, ())]
    return [*scalars, *(str(item.get(key, "")) for item in items for key in ("text", "uri"))]


def quote_problem(state: Mapping[str, Any]) -> str | None:
    """P1: what the task state quotes is short, but for objective and constraints."""
    limits = {"done": EVIDENCE, "in_progress": EVIDENCE, "notes": QUOTE}
    quoted = [(name, item["text"], n) for name, n in limits.items() for item in state.get(name, ())]
    quoted.append(("next_action", state.get("next_action", ""), QUOTE + 20))
    long = (f"{name} quotes {len(text)} characters" for name, text, n in quoted if len(text) > n)
    return next(long, None)


def constraint_problem(
    revisions: Sequence[Mapping[str, Any]], recorded: Sequence[BaseMessage]
) -> str | None:
    """P3: the last revision has every constraint that any had, and none that nobody said."""
    held = [{item["text"] for item in state["constraints"]} for state in revisions] or [set()]
    lost = set().union(*held) - held[-1]
    said = _flat("\n".join(str(m.content) for m in recorded if m.type in ("human", "system")))
    made_up = {t for t in held[-1] if _flat(t) not in said and not t.startswith(ALL_RULES)}
    if lost or made_up:
        return f"constraints lost: {sorted(lost)}, said by nobody: {sorted(made_up)}"
    return None


# -- one run: a conversation in a mode, in as many processes as it takes -----------------------


@dataclass
class Run:
    """A conversation in a mode, its files, and what has become of it."""

    conversation: Conversation
    mode: str
    folder: Path
    kills: int = 0
    checked: int = 0
    folds: int = 0
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.database = self.folder / "handoff.db"
        self.ledger = self.folder / "ledger"
        # How many checkpoints each process lives to see.
        self.lifetime = 8 + zlib.crc32(self.conversation.id.encode()) % 7


class WatchedSaver(HandoffSaver):
    """A saver that calls `watch` with the id of each checkpoint, once it has been stored."""

    watch: Callable[[str], None]

    def put(self, *args: Any) -> RunnableConfig:
        """Store, then tell."""
        stored = super().put(*args)
        self.watch(stored["configurable"]["checkpoint_id"])
        return stored


def play(run: Run, report: Callable[[dict[str, Any]], None]) -> None:
    """Go on with a conversation from wherever its database says it is, until it is over."""
    builder = build(run.conversation)
    if run.mode == "nodes":
        add_handoff(builder, every=EVERY, ledger=run.ledger)
    options = {"every": EVERY} if run.mode == "alone" else {}
    config = RunnableConfig(configurable={"thread_id": run.conversation.id}, recursion_limit=999)
    seen = 0

    def watch(checkpoint: str) -> None:
        nonlocal seen
        seen += 1
        finding = inspect_checkpoint(run, saver, checkpoint)
        report(finding)
        if finding["problem"]:
            os._exit(1)
        if seen == run.lifetime:
            os.kill(os.getpid(), signal.SIGKILL)

    with WatchedSaver.from_conn_string(run.database, **options) as saver:
        assert isinstance(saver, WatchedSaver)
        saver.watch = watch
        graph = builder.compile(checkpointer=saver)
        while True:
            state = graph.get_state(config)
            turn = run.conversation.next_turn(state.values.get("position", 0))
            if state.tasks:  # not `next`, which leaves out a task whose result is already there
                graph.invoke(None, config)
            elif turn:
                graph.invoke(turn, config)
            else:
                return


def inspect_checkpoint(run: Run, saver: HandoffSaver, checkpoint: str) -> dict[str, Any]:
    """Read what is in the database now, over a connection of our own, and judge it."""
    with closing(sqlite3.connect(run.database)) as conn:
        conn.execute("BEGIN")  # one state of the database, whatever else is being written
        rows = raw_rows(conn)
        query = "SELECT type, checkpoint FROM checkpoints WHERE checkpoint_id = ?"
        stored = conn.execute(query, (checkpoint,)).fetchone()
        head = conn.execute("SELECT state FROM handoff_threads").fetchone()
        milestones = milestone_states(conn, run.conversation.id)
    values = saver.serde.loads_typed(stored)["channel_values"]
    state = json.loads(head[0]) if head else {}
    problem = checkpoint_problem(run.conversation, values, [state, *milestones], rows)
    folds = state.get("folds", {}).get("messages", {}).get("n", 0)
    return {"problem": problem and f"at checkpoint {checkpoint}: {problem}"[:999], "folds": folds}


def raw_rows(conn: sqlite3.Connection) -> list[tuple[str, bytes]]:
    """Every value of every row of every table, as bytes, with its table's name."""
    tables = [row[0] for row in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return [
        (table, value if isinstance(value, bytes) else str(value).encode())
        for table in tables
        for row in conn.execute(f'SELECT * FROM "{table}"')
        for value in row
    ]


def milestone_states(conn: sqlite3.Connection, thread: str) -> list[dict[str, Any]]:
    """The task states of the checkpoints of the past that are kept."""
    query = "SELECT metadata FROM checkpoints"
    marks = [json.loads(row[0]).get("handoff_milestone") for row in conn.execute(query)]
    return [
        apply_change(
            reader_on(conn).ask(journal.state_at(thread, "", mark["revision"])),
            json.loads(mark["news"]),
        )
        for mark in marks
        if mark
    ]


def checkpoint_problem(
    conversation: Conversation,
    values: Mapping[str, Any],
    states: Sequence[Mapping[str, Any]],
    rows: Sequence[tuple[str, bytes]],
) -> str | None:
    """What a stored checkpoint breaks, named by its promise."""
    stored: list[BaseMessage] = values.get("messages", [])
    position = values.get("position", 0)
    recorded = conversation.messages[:position]
    kept = kept_indexes(stored, recorded)
    folded = [m for i, m in enumerate(recorded) if i not in kept]
    # A run does not wait for its checkpoints: what comes next may be in the database already.
    others = [recorded[i] for i in kept if i >= 0] + [*conversation.messages[position:]]
    checks = {
        "P5": record_problem(stored, recorded),
        "P2": transcript_problem(stored) or human_problem(stored, recorded),
        "P2 (invalid_reason)": invalid_reason(stored),
        "P1": leak_problem(rows, folded, others, states)
        or next(filter(None, map(quote_problem, states)), None),
    }
    return next((f"{promise}: {problem}" for promise, problem in checks.items() if problem), None)


def final_problem(run: Run) -> str | None:
    """What is wrong at the end of a conversation."""
    thread, calls = run.conversation.id, run.conversation.calls
    with closing(sqlite3.connect(run.database)) as conn:
        numbers = conn.execute("SELECT revision FROM handoff_journal ORDER BY revision").fetchall()
        revisions = [
            reader_on(conn).ask(journal.state_at(thread, "", number)) or {} for (number,) in numbers
        ]
        head = reader_on(conn).ask(journal.head(thread))
    done = len(head.state["done"]) if head else 0
    rolled_up = head.state["rolled_up"].get("done", {}).get("count", 0) if head else 0
    if calls >= 2 * EVERY and not done + rolled_up:
        return f"no finished work is recorded after {calls} tool calls"
    front = LedgerExporter(run.ledger).read(thread)
    shown = front.revision if front and front.intact else None
    if run.mode == "nodes" and head and shown != head.state["revision"]:
        return f"P6: the ledger is not at revision {head.state['revision']}: {front}"
    problem = constraint_problem(revisions, run.conversation.messages)
    return f"P3: {problem}" if problem else None


# -- the processes -----------------------------------------------------------------------------


def finish(run: Run) -> None:
    """Start process after process until the conversation is over or something is wrong."""
    run.folder.mkdir(parents=True)
    while (code := attempt(run)) == -signal.SIGKILL and run.kills < MAX_KILLS:
        run.kills += 1
    if code and not run.problems:
        run.problems.append(f"not over after {run.kills} kills, the last process ended with {code}")
    problem = None if run.problems else final_problem(run)
    if problem:
        run.problems.append(f"at the end: {problem}")


def attempt(run: Run) -> int:
    """Go on in a child process; returns its exit code, negative for a signal.

    It is forked, which spares the imports: a kill costs next to nothing. (Nor does anything
    here start a thread before it.)
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _in_child(run, writer)
    os.close(writer)
    with os.fdopen(reader) as findings:
        for finding in map(json.loads, findings):
            run.checked += 1
            run.folds = finding["folds"]
            run.problems += [finding["problem"]] if finding["problem"] else []
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _in_child(run: Run, writer: int) -> None:
    code = 70
    try:
        signal.alarm(PATIENCE)
        play(run, lambda finding: _write(writer, finding))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _write(writer: int, finding: Mapping[str, Any]) -> None:
    os.write(writer, json.dumps(finding).encode() + b"\n")


# -- the command -------------------------------------------------------------------------------


def replay(runs: Sequence[Run]) -> bool:
    """Finish every run, a line each; returns whether all is well."""
    started = time.monotonic()
    print(f"{'conversation':<44} mode   calls folds kills checked db bytes")
    for number, run in enumerate(runs, 1):
        _progress(f"[{number}/{len(runs)}] {run.conversation.id} {run.mode}")
        finish(run)
        _progress("")
        size = run.database.stat().st_size if run.database.exists() else 0
        counts = f"{run.conversation.calls:>5} {run.folds:>5} {run.kills:>5} {run.checked:>7}"
        print(f"{run.conversation.id:<44} {run.mode:<6} {counts} {size:>8}", flush=True)
        for problem in run.problems:
            print(f"  FAILED {run.conversation.id} ({run.mode}) {problem}", flush=True)
    failed = sum(bool(run.problems) for run in runs)
    print(
        f"{len(runs)} runs of {len({run.conversation.id for run in runs})} conversations: "
        f"{sum(run.conversation.calls for run in runs)} tool calls, "
        f"{sum(run.folds for run in runs)} folds, {sum(run.kills for run in runs)} kills, "
        f"{sum(run.checked for run in runs)} checkpoints checked, "
        f"{failed or 'none'} failed ({time.monotonic() - started:.0f} s)"
    )
    return not failed


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Replay recorded conversations: fold, kill, resume, check every checkpoint.",
        epilog="example: python examples/replay.py --only airline-2-1 --mode nodes",
    )
    parser.add_argument(
        "--transcripts",
        type=Path,
        default=TRANSCRIPTS,
        metavar="FOLDER",
        help="where the recorded conversations are",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="the first N conversations only")
    parser.add_argument("--only", metavar="ID", help="this conversation only")
    parser.add_argument("--mode", choices=MODES, help="this mode only")
    return parser.parse_args(argv)


def _chosen(options: argparse.Namespace) -> list[Conversation]:
    if not hasattr(os, "fork"):
        raise ValueError("it kills forked processes, and this system has none")
    found = load(options.transcripts)
    chosen = [c for c in found if options.only in (None, c.id)][: options.limit]
    if not chosen:
        raise ValueError(f"nothing chosen of {len(found)} conversations, such as {found[0].id}")
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """Replay what is asked for; 1 if a check failed, 2 if there is nothing to replay."""
    options = _arguments(argv)
    try:
        conversations = _chosen(options)
    except ValueError as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        modes = [options.mode] if options.mode else MODES
        runs = [Run(c, m, Path(folder) / c.id / m) for c in conversations for m in modes]
        return 0 if replay(runs) else 1


if __name__ == "__main__":
    sys.exit(main())
