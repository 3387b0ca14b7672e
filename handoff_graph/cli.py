"""The `handoff` command: look at tasks from a shell, without LangGraph.

Exit codes: 0 all is well; 1 what was asked for is not there or not readable (no such database
or thread), or could not be printed; 2 the command line is wrong; 10 the answer is there, but
the ledger is not in step with it.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import Any

import click

from handoff_graph import catalog, cli_storage, cli_tasks, console
from handoff_graph.cli_options import answer_options
from handoff_graph.constraints import active
from handoff_graph.errors import HandoffError, UnreadableRow
from handoff_graph.reader import open_readonly
from handoff_graph.review import folds_since
from handoff_graph.standing import Standing, ledger_standing

__all__ = ["main"]

OUT_OF_STEP = 10


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
@click.option("--status", default="", help="Only tasks of this status, such as blocked.")
@click.option("--owner", default="", help="Only tasks of this owner.")
@click.option(
    "--sort",
    type=click.Choice(["age", "status", "owner"]),
    default="age",
    show_default=True,
    help="What to sort by.",
)
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="How many.")
@click.option("--page", type=click.IntRange(1), default=1, help="Which page of that many.")
@answer_options
def list_threads(
    status: str, owner: str, sort: catalog.Sort, limit: int, page: int, db: str, as_json: bool
) -> None:
    """List threads: status, revision, age, owner, ledger.

    \b
    Example:
      handoff list --db handoff.db
      handoff list --status blocked --sort owner
    """
    with open_readonly(db) as reader:
        found = catalog.threads(
            reader,
            status=status,
            owner=owner,
            sort=sort,
            limit=limit + 1,
            offset=limit * (page - 1),
        )
    rows = [_row(thread, db) for thread in found[:limit]]
    if as_json:
        console.answer("list", rows)
    elif not rows:
        console.line(
            f"no such threads in {db}" if status or owner or page > 1 else f"no threads in {db} yet"
        )
    else:
        console.table(
            ("thread", "status", "rev", "age", "owner", "ledger", "unreviewed", "title"),
            [
                (
                    r["thread"],
                    r["status"] or "not folded",
                    str(r["revision"] or "-"),
                    r["age"],
                    r["owner"],
                    r["ledger"],
                    str(r["folds_since_review"] or "-"),
                    r["title"],
                )
                for r in rows
            ],
        )
        if len(found) > limit:
            console.line(f"there are more: --page {page + 1}")


@cli.command()
@click.argument("thread")
@answer_options
def show(thread: str, db: str, as_json: bool) -> None:
    """Show the task state of THREAD.

    \b
    Example:
      handoff show migration-postgres-west
    """
    found = _found(thread, db)
    if as_json:
        console.answer("show", {"thread": thread, "state": found.state})
    elif found.state is None:
        console.line(_not_folded(found))
    else:
        console.state(found.state, thread)


@cli.command()
@click.argument("thread")
@answer_options
def resume(thread: str, db: str, as_json: bool) -> None:
    """Say what the next run on THREAD starts from: its ledger, constraints, next action.

    \b
    Exits with 10 where the ledger does not show the newest revision.
    Example:
      handoff resume migration-postgres-west
    """
    found = _found(thread, db)
    standing = ledger_standing(found, db)
    if as_json:
        console.answer("resume", _resume_data(found, standing, db))
    else:
        for line in _resume_lines(found, standing):
            console.line(line)
    if standing.out_of_step:
        sys.exit(OUT_OF_STEP)


@cli.command()
@click.argument("thread")
@answer_options
def log(thread: str, db: str, as_json: bool) -> None:
    """Show the journal of THREAD: every revision and what it changed.

    \b
    Example:
      handoff log migration-postgres-west
    """
    with open_readonly(db) as reader:
        catalog.thread(reader, thread)
        with _readable(thread, "handoff_journal"):
            revisions = [_checked(revision) for revision in catalog.revisions(reader, thread)]
    if as_json:
        console.answer("log", [vars(revision) for revision in revisions])
    elif not revisions:
        console.line(f"{thread} has no revision yet: nothing has been folded")
    else:
        for revision in revisions:
            console.revision(revision)


cli.add_command(cli_storage.prune)
cli.add_command(cli_storage.copy)
cli.add_command(cli_tasks.review)
cli.add_command(cli_tasks.retire)


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
        "folds_since_review": folds_since(thread.state or {}),
    }


def _resume_data(found: catalog.Thread, standing: Standing, db: str) -> dict[str, Any]:
    state = found.state or {}
    return {
        **_row(found, db),
        "ledger_path": found.ledger,
        "ready": found.state is not None,
        "constraints": [item["text"] for item in active(state)],
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
    if found.newest_checkpoint > found.checkpoint_id:
        yield f"the run went on since revision {found.revision}: that is in its checkpoint only"
    for item in state["blocked"]:
        needs = f" (needs: {item['needs']})" if item.get("needs") else ""
        yield f"blocked: {item['text']}{needs}"
    for item in active(state):
        yield f"constraint: {item['text']}"
    if state["next_action"]:
        yield f"next: {state['next_action']}"
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
def _readable(thread: str | None, table: str) -> Iterator[None]:
    """Name the row, if what is read of it is not what a saver writes."""
    try:
        yield
    except (ValueError, TypeError) as error:  # also InvalidTask, and what json raises
        raise UnreadableRow(thread, table, str(error)) from error


def _found(thread: str, db: str) -> catalog.Thread:
    with open_readonly(db) as reader:
        return catalog.thread(reader, thread)


def _checked(revision: catalog.Revision) -> catalog.Revision:
    """The same revision, if its change can be shown."""
    change: Any = revision.change
    if not isinstance(change, dict):
        raise ValueError("its change is not an object")
    for part in ("set", "in", "items", "unlisted", "gone"):
        if not isinstance(change.get(part, {}), dict):
            raise ValueError(f"{part!r} of its change is not an object")
    for items in (*change.get("items", {}).values(), *change.get("unlisted", {}).values()):
        if not all(isinstance(item, dict) and "id" in item for item in items):
            raise ValueError("its change lists something else than items")
    for ids in change.get("gone", {}).values():
        if not all(isinstance(gone, str) for gone in ids):
            raise ValueError("its change takes out something else than ids")
    return revision


def _complain(*lines: str) -> None:
    with suppress(OSError):
        for line in lines:
            console.line(line, err=True)


def _drop_output() -> None:
    """Send what is still buffered nowhere: the interpreter flushes it at its end, and would
    report once more what has just been reported."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage(error: click.ClickException) -> list[str]:
    """What click says of a wrong command line; it quotes arguments as they are."""
    context = getattr(error, "ctx", None)
    said = f"Error: {error.format_message()}"
    if context is None:
        return [said]
    return [context.get_usage(), f"Try '{context.command_path} --help' for help.", "", said]


def main() -> None:
    """Run the command; what goes wrong is one line on standard error and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        sys.exit(cli.main(prog_name="handoff", standalone_mode=False))
    except HandoffError as error:
        _complain(f"handoff: {error}")
        sys.exit(1)
    except click.ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # which click has from 8.2 on
            click.echo(error.format_message())
            sys.exit(0)
        _complain(*_usage(error))
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except OSError as error:
        _complain(f"handoff: {error.strerror or error}")
        _drop_output()
        sys.exit(1)
