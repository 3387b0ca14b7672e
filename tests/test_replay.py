"""The replay of recorded conversations (P1, P2 at every checkpoint), and its own checkers.

The checkers are tested on broken input: a check that cannot fail shows nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import ormsgpack
import pytest
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from handoff_graph.transcript import briefing_message

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "replay.py"

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the replay forks its processes")


@pytest.fixture(scope="module")
def replay() -> Iterator[ModuleType]:
    """The example, imported as a module."""
    spec = importlib.util.spec_from_file_location("replay_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def run_python(tmp_path: Path, *args: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Python on the example, with all temporary files in `tmp_path`."""
    return subprocess.run(
        [sys.executable, *map(str, args)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def ask(*ids: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"id": key, "name": "look", "args": {}} for key in ids])


def answer(id: str, text: str = "found") -> ToolMessage:
    return ToolMessage(text, tool_call_id=id)


def long_text(name: str) -> str:
    """A tool's answer that spells differently in JSON and on one line."""
    rows = (f'{name}-row{n}: "wert" über\n' for n in range(60))
    return "".join(rows)


# -- the whole replay --------------------------------------------------------------------------


@needs_fork
def test_P1_and_P2_hold_at_every_checkpoint_of_every_recorded_conversation(
    transcripts: Path, tmp_path: Path
) -> None:
    done = run_python(tmp_path, EXAMPLE, "--transcripts", transcripts)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    summary = done.stdout.splitlines()[-1]
    found = re.match(
        r"76 runs of 38 conversations: (\d+) tool calls, (\d+) folds, (\d+) kills, "
        r"(\d+) checkpoints checked, none failed",
        summary,
    )
    assert found, summary
    calls, folds, kills, checked = map(int, found.groups())
    assert checked > calls > folds > 200
    assert kills > 200
    assert not list(tmp_path.iterdir())


@needs_fork
def test_a_leak_is_found_and_named(transcripts: Path, tmp_path: Path) -> None:
    """A summarizer that hoards the folded messages in the task state, in pieces that are short
    enough for the guard, breaks P1."""
    script = tmp_path / "hoard.py"
    script.write_text(
        f"""
import sys
sys.path.insert(0, {str(EXAMPLE.parent)!r})
import replay
from handoff_graph import task_update

def hoard(state, folding):
    text = " ".join("\\n".join(m.content for m in folding.folded).split())
    pieces = (text[n : n + 300] for n in range(0, 9_000, 300))
    return task_update(at=folding.at, **{{f"hoard{{n}}": p for n, p in enumerate(pieces)}})

class Hoarder(replay.WatchedSaver):
    def __init__(self, inner, **options):
        super().__init__(inner, summarizer=hoard, **options)

replay.WatchedSaver = Hoarder
sys.exit(replay.main(["--transcripts", {str(transcripts)!r}, "--limit", "1", "--mode", "alone"]))
"""
    )
    done = run_python(tmp_path, "-B", script)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(
        r"FAILED \S+ \(alone\) at checkpoint [0-9a-f-]{36}: P1: "
        r"text of a folded message is left in handoff_journal, handoff_threads: ",
        done.stdout,
    )
    assert "1 failed" in done.stdout


def test_nothing_to_replay_is_told_apart_from_a_failure(
    replay: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "nowhere"
    assert replay.main(["--transcripts", str(missing)]) == 2
    assert str(missing) in capsys.readouterr().err

    (tmp_path / "own.jsonl").write_text('{"id": "one", "messages": []}\n')
    assert replay.main(["--transcripts", str(tmp_path), "--only", "two"]) == 2
    assert "such as one" in capsys.readouterr().err

    (tmp_path / "own.jsonl").write_text('{"id": "one", "messages": []}\n{"id": "two"}\n')
    assert replay.main(["--transcripts", str(tmp_path)]) == 2
    assert "own.jsonl, line 2: KeyError('messages')" in capsys.readouterr().err


# -- one conversation, in this process ---------------------------------------------------------

CONVERSATION: dict[str, Any] = {
    "id": "made/up",
    "messages": [
        {"role": "system", "content": "You never delete a booking."},
        {"role": "user", "content": "Sort out my bookings. Do not spend more than 100 euros."},
        *(
            message
            for turn in range(4)
            for message in (
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "a", "name": "look", "arguments": {"page": turn}},
                        {"id": "b", "name": "look", "arguments": json.dumps({"row": turn})},
                    ],
                },
                {"role": "tool", "tool_call_id": "b", "content": long_text(f"b{turn}")},
                {"role": "tool", "tool_call_id": "a", "content": long_text(f"a{turn}")},
            )
        ),
        {"role": "assistant", "content": "All sorted out."},
        {"role": "user", "content": "Thanks."},
    ],
}


@pytest.fixture(params=["alone", "nodes"])
def finished(request: pytest.FixtureRequest, replay: ModuleType, tmp_path: Path) -> Any:
    """A conversation with parallel calls and repeated call ids, played to its end."""
    (tmp_path / "own.jsonl").write_text(json.dumps(CONVERSATION))
    (conversation,) = replay.load(tmp_path)
    run = replay.Run(conversation, request.param, tmp_path)
    run.lifetime = sys.maxsize
    findings: list[dict[str, Any]] = []
    replay.play(run, findings.append)
    assert [f["problem"] for f in findings if f["problem"]] == []
    assert findings[-1]["folds"] == 2
    return run


def test_parallel_calls_and_repeated_ids_are_played(finished: Any, replay: ModuleType) -> None:
    assert replay.final_problem(finished) is None


@pytest.mark.parametrize("finished", ["nodes"], indirect=True)
def test_P6_a_ledger_out_of_step_is_named(finished: Any, replay: ModuleType) -> None:
    (ledger,) = finished.ledger.glob("*.md")
    ledger.write_text(ledger.read_text().replace("\nrevision: ", "\nrevision: 1"))
    assert "P6: the ledger is not at revision" in replay.final_problem(finished)


def test_lost_work_is_named(finished: Any, replay: ModuleType) -> None:
    with closing(sqlite3.connect(finished.database)) as conn, conn:
        (head,) = conn.execute("SELECT state FROM handoff_threads").fetchone()
        poor = {**json.loads(head), "done": [], "rolled_up": {}}
        conn.execute("UPDATE handoff_threads SET state = ?", (json.dumps(poor),))
    assert replay.final_problem(finished) == "no finished work is recorded after 8 tool calls"


# -- the checkers on broken input --------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([HumanMessage("go"), answer("a")], "message 1 is a result that no call"),
        ([ask("a"), answer("a"), answer("a")], "message 2 is a result that no call"),
        ([ask("a", "b"), answer("a"), HumanMessage("well?")], "before the results of ['b']"),
        ([ask("a", "b"), answer("a"), ask("c"), answer("b")], "before the results of ['b']"),
        ([ask("a"), ask("b"), answer("b"), answer("a")], "before the results of ['a']"),
        ([HumanMessage("go"), SystemMessage("rules")], "message 1 is a system message"),
        ([ask("a"), SystemMessage("rules")], "before the results of ['a']"),
    ],
)
def test_P2_an_invalid_transcript_is_named(
    replay: ModuleType, messages: list[BaseMessage], problem: str
) -> None:
    assert problem in replay.transcript_problem(messages)


def test_P2_a_valid_transcript_passes(replay: ModuleType) -> None:
    messages = [
        briefing_message("so far", revision=1, id="m"),
        SystemMessage("rules"),
        HumanMessage("go"),
        ask("a", "b"),
        answer("b"),
        answer("a"),
        ask("a"),  # the id once more, still open
    ]
    assert replay.transcript_problem(messages) is None
    assert replay.transcript_problem([]) is None


def test_P2_a_missing_or_altered_newest_human_message_is_named(replay: ModuleType) -> None:
    recorded = [HumanMessage("first"), AIMessage("yes?"), HumanMessage("Second, please.")]
    assert replay.human_problem(recorded, recorded) is None
    for stored in ([], recorded[:2], [*recorded[:2], HumanMessage("Second, please")]):
        assert "Second, please." in replay.human_problem(stored, recorded)


def test_P5_a_hole_a_repeat_and_a_stranger_are_named(replay: ModuleType) -> None:
    recorded = [
        SystemMessage("rules"),
        HumanMessage("go"),
        *(m for key in "abc" for m in (ask(key), answer(key, f"result {key}"))),
        AIMessage("done"),
    ]
    briefing = briefing_message("so far", revision=1, id="m")
    after_fold = [briefing, *recorded[:2], *recorded[6:]]
    for good in (recorded, after_fold, [briefing, *recorded[6:]]):
        assert replay.record_problem(good, recorded) is None

    unfolded = [*recorded[:2], *recorded[6:]]
    assert "message 5 is missing" in replay.record_problem(unfolded, recorded)
    assert "message 8 is missing" in replay.record_problem(after_fold[:-1], recorded)
    assert "message 7 is missing" in replay.record_problem(
        [*after_fold[:-2], after_fold[-1]], recorded
    )
    for bad in ([*recorded, recorded[-1]], [*recorded[:-1], AIMessage("Done")], recorded[::-1]):
        assert "not recorded, or not in this place" in replay.record_problem(bad, recorded)


@pytest.mark.parametrize(
    "write",
    [
        lambda text: ormsgpack.packb({"messages": [text]}),
        lambda text: json.dumps({"note": text}).encode(),
        lambda text: json.dumps({"note": text}, ensure_ascii=False).encode(),
        lambda text: " ".join(text.split()).encode(),
        lambda text: text[-100:].encode(),
    ],
    ids=["msgpack", "json-ascii", "json", "one-line", "end"],
)
def test_P1_a_folded_text_in_a_raw_row_is_found(replay: ModuleType, write: Any) -> None:
    folded = [answer("a", long_text("gone"))]
    rows = [("checkpoints", b"harmless"), ("writes", write(folded[0].content))]
    problem = replay.leak_problem(rows, folded, [answer("b", long_text("here"))], [])
    assert problem.startswith("text of a folded message is left in writes: ")


def test_P1_folded_arguments_in_a_raw_row_are_found(replay: ModuleType) -> None:
    call = {"id": "a", "name": "edit", "args": {"patch": long_text("gone")}}
    rows = [("writes", ormsgpack.packb(call))]
    assert replay.leak_problem(rows, [AIMessage("", tool_calls=[call])], [], [])


def test_P1_what_may_be_stored_is_no_leak(replay: ModuleType) -> None:
    folded = [answer("a", long_text("gone"))]
    rows = [("writes", ormsgpack.packb(folded[0].content))]
    rule = {"constraints": [{"id": "c1", "text": " ".join(long_text("gone").split())}]}
    assert replay.leak_problem(rows, folded, [], [])
    assert replay.leak_problem(rows, folded, folded, []) is None  # another message says the same
    assert replay.leak_problem(rows, folded, [], [rule]) is None  # the task quotes it on purpose
    beginning = [("handoff_threads", long_text("gone")[: replay.QUOTE].encode())]
    assert replay.leak_problem(beginning, folded, [], []) is None


def test_P1_every_value_of_every_table_is_read(replay: ModuleType) -> None:
    with closing(sqlite3.connect(":memory:")) as conn:
        conn.execute('CREATE TABLE "odd name" (a, b, c)')
        conn.execute("CREATE TABLE other (d)")
        conn.execute('INSERT INTO "odd name" VALUES (?, ?, ?)', ("text", b"\x00blob", 7))
        conn.execute("INSERT INTO other VALUES (NULL)")
        rows = replay.raw_rows(conn)
    assert rows[:3] == [("odd name", b"text"), ("odd name", b"\x00blob"), ("odd name", b"7")]
    assert [table for table, _ in rows[3:]] == ["other"]


def test_P1_a_long_quote_is_named(replay: ModuleType) -> None:
    short = {"done": [{"text": "x" * 150}], "notes": [{"text": "x" * 400}], "next_action": "x"}
    assert replay.quote_problem(short) is None
    for name, value in (("done", 151), ("in_progress", 151), ("notes", 401)):
        problem = replay.quote_problem({**short, name: [{"text": "x" * value}]})
        assert problem == f"{name} quotes {value} characters"
    assert replay.quote_problem({"next_action": "x" * 500}) == "next_action quotes 500 characters"


def test_P3_a_lost_or_invented_constraint_is_named(replay: ModuleType) -> None:
    recorded = [HumanMessage("Go on.\nNever touch\nprod."), AIMessage("Always be nice.")]
    rule = {"constraints": [{"text": "Never touch prod."}]}
    other = {"constraints": [{"text": "Always be nice."}]}
    assert replay.constraint_problem([], recorded) is None
    assert replay.constraint_problem([rule, rule], recorded) is None
    assert "lost: ['Never touch prod.']" in replay.constraint_problem(
        [rule, {"constraints": []}], recorded
    )
    assert "nobody: ['Always be nice.']" in replay.constraint_problem([other], recorded)
