"""The `handoff` command, in real processes, into pipes and on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
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


EVIL = "a\x1b[31mred\x1b]0;owned\x07\x9b2J\u202egnp\u2066\u061c\r\nb"
"""A thread id that tries to colour, retitle, clear, reverse and break lines."""


def assert_harmless(*outputs: str) -> None:
    """Nothing but visible characters and the line feeds and tabs of the command itself."""
    for output in outputs:
        assert not re.search(
            r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u202a-\u202e\u2066-\u2069]", output
        )
        assert "\nb" not in output


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with two hostile thread ids, one of them folded past its roll-up."""
    folder = tmp_path_factory.mktemp("hostile")
    with HandoffSaver.from_conn_string(folder / "handoff.db", ledger=folder / "led") as saver:
        build(30).compile(checkpointer=saver).invoke(request(), config(EVIL))
        build(2).compile(checkpointer=saver).invoke(request(), config(EVIL + "young"))
    return folder


@pytest.mark.parametrize("flags", [[], ["--json"]])
@pytest.mark.parametrize("verb", ["show", "resume", "log"])
@pytest.mark.parametrize("thread", [EVIL, EVIL + "young", EVIL + "nobody", "\x1b[2Jnobody"])
def test_a_hostile_thread_id_is_never_echoed(
    hostile: Path, verb: str, thread: str, flags: list[str]
) -> None:
    done = handoff(verb, *flags, "--", thread, cwd=hostile)
    assert done.returncode == int("nobody" in thread), done.stderr
    assert_harmless(done.stdout, done.stderr)
    assert "Traceback" not in done.stderr


def test_hostile_ids_paths_and_arguments_in_lists_and_errors(hostile: Path) -> None:
    rolled = handoff("show", EVIL, cwd=hostile).stdout
    assert "handoff log a[31mred" in rolled
    for arguments in (
        ["list"],
        ["list", "--json"],
        ["show", "t", EVIL],
        ["show", "--" + EVIL],
        [EVIL],
        ["--" + EVIL],
        ["list", "--db", EVIL],
        ["list", "--db", "handoff.db/" + EVIL],
    ):
        done = handoff(*arguments, cwd=hostile)
        assert_harmless(done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        assert done.returncode == (
            0 if arguments in (["list"], ["list", "--json"]) else done.returncode
        )


# -- damage ----------------------------------------------------------------------------------


STATE = "UPDATE handoff_threads SET state = ? WHERE thread_id = 'migration-west'"
CHANGE = "UPDATE handoff_journal SET change = ? WHERE thread_id = 'migration-west'"


def damaged(folder: Path, target: Path, statement: str, value: str | bytes) -> Path:
    shutil.copy(folder / "handoff.db", target / "handoff.db")
    with sqlite3.connect(target / "handoff.db") as conn:
        conn.execute(statement, (value,))
    conn.close()
    return target


@pytest.mark.parametrize(
    "state", ["{broken", "[]", "", b"\xff\xfe", '{"done": 5}', '{"done": [5]}', '{"folds": 1}']
)
def test_a_damaged_state_is_one_line_that_names_thread_and_table(
    folder: Path, tmp_path: Path, state: str | bytes
) -> None:
    damaged(folder, tmp_path, STATE, state)
    for verb in ("show", "resume"):
        done = handoff(verb, "migration-west", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith(
            "handoff: the row of thread 'migration-west' in handoff_threads is not readable: "
        )
        assert "nothing folded" in handoff(verb, "young", cwd=tmp_path).stdout


def test_a_damaged_state_stops_list_and_log_with_one_line(folder: Path, tmp_path: Path) -> None:
    damaged(folder, tmp_path, STATE, "{broken")
    for arguments in (["list"], ["list", "--json"], ["log", "migration-west"]):
        done = handoff(*arguments, cwd=tmp_path)
        assert "Traceback" not in done.stderr
        assert len(done.stderr.splitlines()) == done.returncode


@pytest.mark.parametrize(
    "change",
    ["[1", "[]", b"\xff", '{"set": 1}', '{"items": {"done": ["id"]}}', '{"gone": {"done": [5]}}'],
)
def test_a_damaged_journal_is_one_line_that_names_thread_and_table(
    folder: Path, tmp_path: Path, change: str | bytes
) -> None:
    damaged(folder, tmp_path, CHANGE, change)
    done = handoff("log", "migration-west", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "handoff: the row of thread 'migration-west' in handoff_journal is not readable: "
    )
    assert handoff("show", "migration-west", cwd=tmp_path).returncode == 0


def test_a_torn_database_is_one_line(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "handoff.db").read_bytes()
    (tmp_path / "handoff.db").write_bytes(whole[: 4_096 * 2] + b"\xaa" * (len(whole) - 8_192))
    for arguments in (["list"], ["show", "young"], ["log", "young"]):
        done = handoff(*arguments, cwd=tmp_path)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert "not readable" in line


VERBS = ["list", "list --json", "show migration-west", "log migration-west", "resume young"]


def shell(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command with its output redirected as a shell does it."""
    line = command.replace("handoff", f"{shlex.quote(sys.executable)} -m handoff_graph", 1)
    return subprocess.run(
        ["bash", "-c", line],
        cwd=cwd,
        env={**os.environ, "HANDOFF_DB": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("verb", VERBS)
def test_output_that_cannot_be_written_is_one_line(folder: Path, verb: str) -> None:
    done = shell(f"handoff {verb} > /dev/full", folder)
    assert (done.returncode, done.stderr) == (1, "handoff: No space left on device\n")
    assert shell(f"handoff {verb} > /dev/full 2> /dev/full", folder).returncode == 1
    closed = shell(f"handoff {verb} >&-", folder)
    assert "Traceback" not in closed.stderr
    assert shell("handoff show nobody 2>&-", folder).returncode == 1


@pytest.mark.parametrize("verb", VERBS)
def test_a_closed_pipe_is_silent(folder: Path, verb: str) -> None:
    done = shell(f"handoff {verb} | true; exit ${{PIPESTATUS[0]}}", folder)
    assert done.stderr == ""
    read, write = os.pipe()
    os.close(read)
    arguments = [sys.executable, "-m", "handoff_graph", *verb.split()]
    try:
        process = subprocess.run(
            arguments, cwd=folder, stdout=write, stderr=subprocess.PIPE, timeout=60
        )
    finally:
        os.close(write)
    assert (process.returncode, process.stderr) == (1, b"")


def test_an_output_that_has_no_dash_gets_an_escape(folder: Path) -> None:
    done = shell("PYTHONIOENCODING=latin-1 handoff show migration-west | iconv -f latin1", folder)
    assert done.stderr == ""
    assert "\\u2014 human" in done.stdout
    assert "§ [c" in done.stdout


# -- on a terminal ---------------------------------------------------------------------------


def on_terminal(*arguments: str, cwd: Path, columns: int = 140) -> str:
    """The output of the command on a real pseudo-terminal."""
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns)}
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


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 140])
def test_a_thread_id_is_whole_on_a_terminal_of_any_width(tmp_path: Path, columns: int) -> None:
    names = ["m", "migration-postgres-west-2b-cutover", "x".join(map(str, range(60)))]
    with SqliteSaver.from_conn_string(str(tmp_path / "handoff.db")) as saver:
        for name in names:
            build(1).compile(checkpointer=saver).invoke(request(), config(name))
    listed = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal("list", cwd=tmp_path, columns=columns))
    assert "…" not in listed
    first = "".join(line.split("  ")[0].strip() for line in listed.splitlines())
    for name in names:
        assert name in first
    if columns == 140:
        assert "─" in listed


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
