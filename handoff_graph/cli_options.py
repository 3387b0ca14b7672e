"""The options that several verbs of the command take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["answer_options", "database_option"]

F = TypeVar("F", bound=Callable[..., Any])


def database_option(command: F) -> F:
    """Which database."""
    return click.option(
        "--db",
        default="handoff.db",
        envvar="HANDOFF_DB",
        show_default=True,
        show_envvar=True,
        metavar="FILE|URL",
        help="The saver's SQLite file, or a postgresql:// URL.",
    )(command)


def answer_options(command: F) -> F:
    """Which database, and whether to answer in JSON."""
    return database_option(
        click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")(command)
    )
