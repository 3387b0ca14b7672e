"""The verbs by which a person changes a task: `handoff review` and `handoff retire`."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Mapping
from typing import Any

import click

from handoff_graph import catalog, console, constraints
from handoff_graph import review as reviews
from handoff_graph.cli_options import answer_options, database_option
from handoff_graph.errors import HandoffError
from handoff_graph.reader import open_readonly
from handoff_graph.standing import ledger_path

__all__ = ["retire", "review"]

Change = Callable[[dict[str, Any]], Mapping[str, Any]]


def _by_option(command: Any) -> Any:
    return click.option("--by", default="", metavar="NAME", help="Who says so; default: you.")(
        command
    )


def _said(_: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """What an option says, which must be more than blanks."""
    if value is not None and not value.strip():
        raise click.BadParameter("it must say something; it is kept", param=option)
    return value


@click.command()
@click.argument("thread")
@click.option("--sign", is_flag=True, help="Sign it off.")
@click.option("--reject", metavar="WHY", callback=_said, help="Say what is wrong with it.")
@click.option("--note", default="", help="What to keep with the signature.")
@_by_option
@answer_options
def review(
    thread: str, sign: bool, reject: str | None, note: str, by: str, db: str, as_json: bool
) -> None:
    """Show what is new in THREAD since the last review, or sign it off.

    \b
    Example:
      handoff review migration-postgres-west
      handoff review migration-postgres-west --sign --note "lag figures checked"
      handoff review migration-postgres-west --reject "users was not copied"
    """
    if sign and reject:
        raise click.UsageError("--sign or --reject, not both")
    if note and not sign:
        raise click.UsageError("--note goes with --sign; --reject says itself what to keep")
    state = _state(thread, db)
    if not sign and not reject:
        found = reviews.report(state)
        if as_json:
            console.answer("review", {"thread": thread, **found})
        else:
            _print_report(found)
        return
    verdict: reviews.Verdict = "rejected" if reject else "approved"
    revision = _change(
        thread,
        db,
        lambda now: reviews.signed(now, by=by or _you(), note=reject or note, verdict=verdict),
        "review",
    )
    if as_json:
        console.answer("review", {"thread": thread, "verdict": verdict, "revision": revision})
    else:
        console.line(f"{verdict} as of revision {revision}")


@click.command()
@click.argument("thread")
@click.argument("constraint")
@click.option("--why", required=True, callback=_said, help="The reason, which the journal keeps.")
@_by_option
@database_option
def retire(thread: str, constraint: str, why: str, by: str, db: str) -> None:
    """Retire a CONSTRAINT of THREAD, or confirm that an agent's proposal to is right.

    It stays in the journal and in the ledger, with who, when and why, and binds no more.

    \b
    Example:
      handoff retire migration-postgres-west c7q2mxa --why "the freeze is over"
    """
    said = {c["id"]: c["text"] for c in _state(thread, db)["constraints"]}
    revision = _change(
        thread,
        db,
        lambda now: constraints.retire(now, constraint, why=why, by=by or _you()),
        "edit",
    )
    console.line(f"retired as of revision {revision}: {said[constraint]}")


def _you() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such user, as in some containers
        return "human"


def _state(thread: str, db: str) -> dict[str, Any]:
    with open_readonly(db) as reader:
        found = catalog.thread(reader, thread)
    if found.state is None:
        raise HandoffError(f"thread {thread!r} has no task yet: nothing has been folded")
    return found.state


def _change(thread: str, db: str, change: Change, reason: str) -> int:
    from handoff_graph import upkeep

    with open_readonly(db) as reader:
        known = catalog.thread(reader, thread).ledger
    ledger = None if known is None else ledger_path(known, db)
    with upkeep.opened(db) as store:
        return upkeep.changed(store, thread, change, reason=reason, ledger=ledger)


def _print_report(found: Mapping[str, Any]) -> None:
    since = f" since {found['since'][:16].replace('T', ' ')} UTC" if found["since"] else ""
    console.line(f"{found['folds']} folds not reviewed{since}")
    for name, items in found["changes"].items():
        console.line(name.replace("_", " ") + ":")
        for key, text in items:
            console.line(f"  [{key}] {text}")
    for rule, why in found["proposals"]:
        console.line(f"proposed: retire [{rule}]: {why} (confirm with handoff retire)")
    for line in found["refused"]:
        console.line(f"refused: {line}")
    if found["missing"]:
        console.line("not in the record: " + ", ".join(found["missing"]))
