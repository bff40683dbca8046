"""Small helpers for the arguments of commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from fairlot_client.cli.app import App

C = TypeVar("C", bound=Callable[..., Any])


def chosen(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that are given, as arguments of a client's method."""
    return {name: value for name, value in options.items() if value is not None and value != ()}


def own_team(app: App, team: str | None) -> str:
    """Returns the given team, or the user's only one. Raises UsageError if there are several."""
    if team:
        return team
    own = [one["team"] for one in app.client.me()["teams"]]
    if len(own) == 1:
        return own[0]
    raise click.UsageError(f"Give a team with --team. Yours: {', '.join(own) or 'none'}.")


def team_option(command: C) -> C:
    return click.option("-t", "--team", help="Slug of a team. Not needed if you are in only one.")(command)


def period_options(command: C) -> C:
    """Adds the options of the period of a report."""
    for option in (
        click.option("--zone", help="Time zone of the days, such as Europe/Berlin; by default UTC."),
        click.option("--to", help="Last day, such as 2026-11-30; by default today."),
        click.option(
            "--from", "from_", help="First day, such as 2026-11-01; by default the first of this month."
        ),
        click.option(
            "--period",
            type=click.Choice(["today", "this-month", "last-month"]),
            help="A day or calendar month.",
        ),
    ):
        command = option(command)
    return command
