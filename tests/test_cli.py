"""The `handoff` command, in real processes, into pipes and on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import sqlite3
import subprocess
import sys
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from agents import RULE, build, config, request
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.sqlite import SqliteSaver

from handoff_graph import HandoffSaver, add_handoff, task_update
from handoff_graph.cli import _time_of
from handoff_graph.ledger import render_ledger


def handoff(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "handoff_graph", *arguments],
        cwd=cwd,
        env={**os.environ, "HANDOFF_DB": "", **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with three threads: one folded, one young, one with a blocker."""
    folder = tmp_path_factory.mktemp("cli")
    here = os.getcwd()
    os.chdir(folder)
    try:
        with HandoffSaver.from_conn_string("handoff.db") as saver:
            graph = add_handoff(build(25), owner="agent-session-14").compile(checkpointer=saver)
            graph.invoke(request(), config("migration-west"))
            update = task_update(blocked=[{"text": "users_history", "needs": "a review"}])
            graph.update_state(config("migration-west"), {"task": update}, as_node="summarize")
            build(3).compile(checkpointer=saver).invoke(request(), config("young"))
    finally:
        os.chdir(here)
    return folder


def test_list_shows_every_thread(folder: Path) -> None:
    done = handoff("list", cwd=folder)
    assert done.returncode == 0, done.stderr
    head, *rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert head[:3] == ["thread", "status", "rev"]
    by_thread = {row[0]: row for row in rows}
    assert by_thread["migration-west"][1] == "in_progress"
    assert by_thread["migration-west"][4] == "agent-session-14"
    assert by_thread["migration-west"][5] == "in step"
    assert by_thread["young"][1] == "not folded"
    assert "\x1b" not in done.stdout


def test_resume_says_what_the_next_run_needs(folder: Path) -> None:
    done = handoff("resume", "migration-west", cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.match(
        r"reading ledger/migration-west\.md \(revision \d+, in step with the database\)", lines[0]
    )
    assert re.match(r"last checkpoint: 20\d\d-.* UTC \(\d+ .* ago\) by agent-session-14", lines[1])
    assert re.match(r"\d+ done, 1 blocked", lines[2])
    assert "blocked: users_history (needs: a review)" in lines
    assert f"constraint: {RULE}" in lines
    assert lines[-2].startswith("next: ")
    assert lines[-1] == "ready: no re-briefing required"


def test_resume_of_a_young_thread(folder: Path) -> None:
    done = handoff("resume", "young", cwd=folder)
    assert done.returncode == 0
    assert "nothing folded yet" in done.stdout


def test_show_and_log(folder: Path) -> None:
    shown = handoff("show", "migration-west", cwd=folder).stdout
    assert "§ [c" in shown
    assert RULE in shown
    log = handoff("log", "migration-west", cwd=folder).stdout
    assert "revision 1 " in log
    assert "lookup(key=k1)" in log
    assert "rolled up" in log
    assert "nothing has been folded" in handoff("log", "young", cwd=folder).stdout


@pytest.mark.parametrize("verb", ["list", "show", "resume", "log"])
def test_json_has_a_versioned_envelope(folder: Path, verb: str) -> None:
    arguments = [verb, "--json"] if verb == "list" else [verb, "migration-west", "--json"]
    answer = json.loads(handoff(*arguments, cwd=folder).stdout)
    assert (answer["handoff"], answer["verb"]) == (1, verb)
    assert answer["data"]
    if verb == "resume":
        assert answer["data"]["constraints"] == [RULE]
        assert answer["data"]["ready"] is True


@pytest.mark.parametrize("verb", [[], ["list"], ["show"], ["resume"], ["log"]])
def test_help_has_an_example(folder: Path, verb: list[str]) -> None:
    done = handoff(*verb, "--help", cwd=folder)
    assert done.returncode == 0
    assert "handoff " + (verb[0] if verb else "list") in done.stdout.split("Usage", 1)[1]


def test_errors_are_one_line_with_what_to_do(folder: Path, tmp_path: Path) -> None:
    missing = handoff("list", "--db", "nowhere.db", cwd=tmp_path)
    assert missing.returncode == 1
    assert missing.stderr.splitlines() == [
        "handoff: nowhere.db: no such file. Name the database with --db or HANDOFF_DB"
    ]
    assert not (tmp_path / "nowhere.db").exists()
    near = handoff("show", "migration-wset", cwd=folder)
    assert near.returncode == 1
    assert "Did you mean: migration-west?" in near.stderr
    for verb in ("show", "resume", "log"):
        assert handoff(verb, "zzz", cwd=folder).returncode == 1
    (tmp_path / "text.db").write_text("this is no database, whatever its name may say\n" * 99)
    text = handoff("list", "--db", "text.db", cwd=tmp_path)
    assert "not readable as a SQLite database" in text.stderr
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t (x)").connection.close()
    other = handoff("list", "--db", "other.db", cwd=tmp_path)
    assert "without checkpoints" in other.stderr
    assert handoff("show", cwd=folder).returncode == 2
    assert handoff("dance", cwd=folder).returncode == 2
    for done in (missing, near, text, other):
        assert "Traceback" not in done.stderr


def test_the_database_is_named_by_the_environment_too(folder: Path, tmp_path: Path) -> None:
    done = handoff("list", cwd=tmp_path, HANDOFF_DB=str(folder / "handoff.db"))
    assert "migration-west" in done.stdout
    assert "\tin step\t" in done.stdout  # the ledger's path is relative to the agent's folder


def test_a_database_in_a_folder_that_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    """As root nothing is unwritable, so the journal mode has to show it: WAL needs files."""
    copy = tmp_path / "ro"
    copy.mkdir()
    shutil.copy(folder / "handoff.db", copy / "handoff.db")
    before = sorted(path.name for path in copy.iterdir())
    done = handoff("list", "--db", str(copy / "handoff.db"), cwd=tmp_path)
    assert "migration-west" in done.stdout
    assert sorted(path.name for path in copy.iterdir()) == before


def test_a_ledger_out_of_step_is_named_and_the_exit_code_says_so(tmp_path: Path) -> None:
    with HandoffSaver.from_conn_string(tmp_path / "handoff.db", ledger=tmp_path / "led") as saver:
        build(12).compile(checkpointer=saver).invoke(request(), config())
        state = saver.task_state(config())
    assert state is not None

    def at(revision: int) -> str:
        shown = {**state, "revision": revision}
        return render_ledger(shown, thread="t", checkpoint="c", updated=state["updated"])

    path = tmp_path / "led" / "t.md"
    good = path.read_text()
    for text, word in (
        (good, "in step"),
        (good + "- mine\n", "edited"),
        (at(0), "behind"),
        (at(9), "ahead"),
        (good.replace("thread: t", "thread: other"), "foreign"),
        ("torn", "unreadable"),
        (None, "missing"),
    ):
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
        done = handoff("resume", "t", "--json", cwd=tmp_path)
        assert json.loads(done.stdout)["data"]["ledger"] == word
        assert done.returncode == (0 if word == "in step" else 10)
        assert f"\t{word}\t" in handoff("list", cwd=tmp_path).stdout


def test_a_ledger_that_could_not_be_written_is_visible_in_list(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    saver = HandoffSaver.from_conn_string(tmp_path / "handoff.db", ledger=tmp_path / "file")
    with saver, pytest.warns(UserWarning, match="behind revision"):
        build(12).compile(checkpointer=saver).invoke(request(), config())
    assert "\tfailed\t" in handoff("list", cwd=tmp_path).stdout
    assert "ledger not written" in handoff("resume", "t", cwd=tmp_path).stdout


def test_a_plain_sqlite_savers_database_can_be_listed(tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "handoff.db")) as saver:
        build(3).compile(checkpointer=saver).invoke(request(), config())
    done = handoff("list", cwd=tmp_path)
    assert done.stdout.splitlines()[1].startswith("t\tnot folded\t-\t")
    assert len(done.stdout.splitlines()) == 2


def test_hostile_texts_cannot_steer_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b[2Jgone\u202e"
    with HandoffSaver.from_conn_string(tmp_path / "handoff.db") as saver:
        graph = add_handoff(build(2), ledger=None).compile(checkpointer=saver)
        graph.invoke(request(f"{evil} Never deploy."), config(evil))
        update = task_update(done=[evil], next_action=evil, blocked=[evil])
        graph.update_state(config(evil), {"task": update}, as_node="summarize")
    for verb in (["list"], ["show", evil], ["resume", evil], ["log", evil]):
        done = handoff(*verb, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout
        assert "\u202e" not in done.stdout
        assert "gone" in done.stdout


def on_terminal(*arguments: str, cwd: Path) -> str:
    """The output of the command on a real pseudo-terminal."""
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "140"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "handoff_graph", *arguments],
        cwd=cwd,
        env=environment,
        stdout=child,
        stdin=child,
    )
    os.close(child)
    output = b""
    while True:
        try:
            data = os.read(parent, 65_536)
        except OSError:  # the other side has closed
            break
        if not data:
            break
        output += data
    os.close(parent)
    assert process.wait() == 0
    return output.decode()


def test_colours_and_a_table_on_a_terminal(folder: Path) -> None:
    listed = on_terminal("list", cwd=folder)
    assert "\x1b[" in listed
    assert "─" in listed
    assert "migration-west" in listed
    shown = on_terminal("show", "migration-west", cwd=folder)
    assert "\x1b[33m§" in shown


def test_the_command_imports_no_langgraph(folder: Path) -> None:
    code = (
        "import sys; from handoff_graph.cli import cli\n"
        "try: cli(['list'])\n"
        "except SystemExit: pass\n"
        "heavy = [m for m in sys.modules if m.split('.')[0] in"
        " ('langgraph', 'langchain_core', 'pydantic', 'rich')]\n"
        "assert not heavy, heavy[:5]"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_time_in_a_checkpoint_id() -> None:
    before = datetime.now(timezone.utc).timestamp()
    found: Any = _time_of(str(uuid6(clock_seq=3)))
    assert abs(found.timestamp() - before) < 5
    assert _time_of(str(uuid.uuid4())) is None
    assert _time_of("not an id") is None
