"""The `handoff` command: look at tasks from a shell, without LangGraph.

Exit codes: 0 all is well; 1 what was asked for is not there (no such database or thread); 2
the command line is wrong; 10 the answer is there, but the ledger is not in step with it.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from typing import Any, TypeVar

import click

from handoff_graph import catalog, console
from handoff_graph.briefing import plain_line
from handoff_graph.errors import HandoffError
from handoff_graph.standing import Standing, ledger_standing

__all__ = ["main"]

JSON_VERSION = 1
OUT_OF_STEP = 10

F = TypeVar("F", bound=Callable[..., Any])


def _options(command: F) -> F:
    """What every verb takes: which database, and whether to answer in JSON."""
    command = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")(command)
    return click.option(
        "--db",
        default="handoff.db",
        envvar="HANDOFF_DB",
        show_default=True,
        show_envvar=True,
        type=click.Path(dir_okay=False),
        help="The saver's SQLite file.",
    )(command)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="handoff-graph", prog_name="handoff")
def cli() -> None:
    """Tasks that outlast a session: where they stand, and what the next run needs.

    \b
    Reads the database of a HandoffSaver, or of a plain SqliteSaver:
      handoff list
      handoff resume migration-postgres-west
      handoff show migration-postgres-west --json
    """


@cli.command("list")
@_options
def list_threads(db: str, as_json: bool) -> None:
    """List every thread: status, revision, age, owner, ledger.

    \b
    Example:
      handoff list --db handoff.db
    """
    with _database(db) as conn:
        rows = [_row(thread, db) for thread in catalog.threads(conn)]
    if as_json:
        _print_json("list", rows)
    elif not rows:
        click.echo(f"no threads in {db} yet")
    else:
        console.table(
            ("thread", "status", "rev", "age", "owner", "ledger", "title"),
            [
                (
                    r["thread"],
                    r["status"] or "not folded",
                    str(r["revision"] or "-"),
                    r["age"],
                    r["owner"],
                    r["ledger"],
                    r["title"],
                )
                for r in rows
            ],
        )


@cli.command()
@click.argument("thread")
@_options
def show(thread: str, db: str, as_json: bool) -> None:
    """Show the task state of THREAD.

    \b
    Example:
      handoff show migration-postgres-west
    """
    with _database(db) as conn:
        found = catalog.thread(conn, thread)
    if as_json:
        _print_json("show", {"thread": thread, "state": found.state})
    elif found.state is None:
        click.echo(_not_folded(found))
    else:
        console.state(found.state, thread)


@cli.command()
@click.argument("thread")
@_options
def resume(thread: str, db: str, as_json: bool) -> None:
    """Say what the next run on THREAD starts from: its ledger, constraints, next action.

    \b
    Exits with 10 where the ledger does not show the newest revision.
    Example:
      handoff resume migration-postgres-west
    """
    with _database(db) as conn:
        found = catalog.thread(conn, thread)
    standing = ledger_standing(found, db)
    if as_json:
        _print_json("resume", _resume_data(found, standing, db))
    else:
        for line in _resume_lines(found, standing):
            click.echo(line)
    if standing.out_of_step:
        sys.exit(OUT_OF_STEP)


@cli.command()
@click.argument("thread")
@_options
def log(thread: str, db: str, as_json: bool) -> None:
    """Show the journal of THREAD: every revision and what it changed.

    \b
    Example:
      handoff log migration-postgres-west
    """
    with _database(db) as conn:
        catalog.thread(conn, thread)
        revisions = list(catalog.revisions(conn, thread))
    if as_json:
        _print_json("log", [vars(revision) for revision in revisions])
    elif not revisions:
        click.echo(f"{thread} has no revision yet: nothing has been folded")
    else:
        for revision in revisions:
            console.revision(revision)


# -- what the verbs say ------------------------------------------------------------------------


def _row(thread: catalog.Thread, db: str) -> dict[str, Any]:
    return {
        "thread": thread.thread_id,
        "status": thread.status,
        "revision": thread.revision,
        "age": _age(thread.newest_checkpoint),
        "owner": thread.owner,
        "title": thread.title,
        "ledger": ledger_standing(thread, db).word,
        "ledger_error": thread.ledger_error,
        "checkpoint": thread.newest_checkpoint,
    }


def _resume_data(found: catalog.Thread, standing: Standing, db: str) -> dict[str, Any]:
    state = found.state or {}
    return {
        **_row(found, db),
        "ledger_path": found.ledger,
        "ready": found.state is not None,
        "constraints": [item["text"] for item in state.get("constraints", ())],
        "counts": _counts(state),
        "next_action": state.get("next_action", ""),
        "ledger": standing.word,
    }


def _resume_lines(found: catalog.Thread, standing: Standing) -> Iterator[str]:
    yield standing.sentence
    if found.state is None:
        yield _not_folded(found)
        return
    state = found.state
    by = f" by {found.owner}" if found.owner else ""
    yield f"last checkpoint: {_when(found.newest_checkpoint)}{by}"
    counts = _counts(state)
    parts = [f"{n} {name}" for name, n in counts.items() if n]
    yield ", ".join(parts) or "nothing done yet"
    for item in state["blocked"]:
        needs = f" (needs: {item['needs']})" if item.get("needs") else ""
        yield plain_line(f"blocked: {item['text']}{needs}")
    for item in state["constraints"]:
        yield plain_line(f"constraint: {item['text']}")
    if state["next_action"]:
        yield plain_line(f"next: {state['next_action']}")
    closed = state["status"] in ("done", "abandoned")
    yield f"closed: {state['status']}" if closed else "ready: no re-briefing required"


def _counts(state: dict[str, Any]) -> dict[str, int]:
    done = len(state.get("done", ())) + int(
        state.get("rolled_up", {}).get("done", {}).get("count", 0)
    )
    return {
        "done": done,
        "in progress": len(state.get("in_progress", ())),
        "blocked": len(state.get("blocked", ())),
        "open questions": len(state.get("open_questions", ())),
    }


def _not_folded(found: catalog.Thread) -> str:
    return (
        f"{found.thread_id}: {found.checkpoints} checkpoints, last {_when(found.newest_checkpoint)}"
        "; nothing folded yet, so the next run starts from the whole transcript"
    )


def _time_of(checkpoint_id: str) -> datetime | None:
    """The time in a checkpoint id, which is a version 6 UUID: 100 ns since 1582-10-15."""
    digits = checkpoint_id.replace("-", "")
    if len(digits) != 32 or digits[12:13] != "6":
        return None
    ticks = int(digits[:12] + digits[13:16], 16)
    return datetime.fromtimestamp(ticks / 1e7 - 12_219_292_800, tz=timezone.utc)


def _when(checkpoint_id: str) -> str:
    time = _time_of(checkpoint_id)
    if time is None:
        return "at an unknown time"
    return f"{time:%Y-%m-%d %H:%M} UTC ({_age(checkpoint_id)} ago)"


def _age(checkpoint_id: str) -> str:
    time = _time_of(checkpoint_id)
    if time is None:
        return "?"
    seconds = max(0, int((datetime.now(timezone.utc) - time).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


# -- the frame ---------------------------------------------------------------------------------


@contextmanager
def _database(path: str) -> Iterator[sqlite3.Connection]:
    with closing(catalog.open_readonly(path)) as conn:
        yield conn


def _print_json(verb: str, data: Any) -> None:
    click.echo(json.dumps({"handoff": JSON_VERSION, "verb": verb, "data": data}, indent=2))


def main() -> None:
    """Run the command; a `HandoffError` is one line on standard error and exit code 1."""
    try:
        cli(prog_name="handoff")
    except HandoffError as error:
        click.echo(f"handoff: {plain_line(str(error))}", err=True)
        sys.exit(1)
