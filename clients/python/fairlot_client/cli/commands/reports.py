"""Commands for shares, usage, limits, budgets and requests."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from fairlot_client.cli.app import App, talk, with_app
from fairlot_client.cli.arguments import chosen, own_team, period_options, team_option
from fairlot_client.cli.output import (
    Column,
    hours,
    limit_options,
    output_option,
    show_done,
    show_one,
    show_rows,
    taken,
    watchable,
    when,
)

GPU_HOURS = ["entitled", "received", "borrowed", "lent", "bought", "sold"]


@click.command()
@team_option
@click.option(
    "--period",
    type=click.Choice(["1h", "24h", "7d", "30d"]),
    default="24h",
    show_default=True,
    help="Time until now.",
)
@click.option("--cluster", help="Name of the cluster. Not needed if there is only one.")
@watchable
@with_app
def share(app: App, team: str | None, period: Any, cluster: str | None) -> None:
    """Show what a team was entitled to and received, in GPU-hours."""
    answer = app.client.get_share(team=own_team(app, team), period=period, **chosen({"cluster": cluster}))
    if app.output in {"json", "yaml"}:
        show_one(app, answer, [])
        return
    rows = [{"generation": one["generation"]} | one["total"] for one in answer["generations"]]
    columns: list[Column] = [("GPU TYPE", "generation"), *((name.upper(), hours(name)) for name in GPU_HOURS)]
    show_rows(app, rows, columns, name="generation")


@click.command()
@period_options
@click.option("-t", "--team", help="Slug of a team; by default all of yours.")
@click.option(
    "--by",
    type=click.Choice(["user", "job", "generation", "day", "label", "tenant"]),
    default="user",
    show_default=True,
    help="What each row stands for.",
)
@click.option("--label", help="Key of the label, for --by label.")
@click.option("--csv", is_flag=True, help="Write CSV.")
@watchable
@with_app
def usage(app: App, csv: bool, **options: Any) -> None:
    """Show GPU-hours and costs."""
    if csv:
        click.echo(app.client.get_usage_file(format="csv", **chosen(options)), nl=False)
        return
    answer = app.client.get_usage(**chosen(options))
    if app.output in {"json", "yaml"}:
        show_one(app, answer, [])
        return
    columns: list[Column] = [
        ("DAY", when("begins")), ("TEAM", "tenant"), ("USER", "user"), ("JOB", "job_id"), ("NAME", "job"),
        ("GPU TYPE", "generation"), ("LABEL", "label"), ("GPU-HOURS", hours("gpu_seconds")), ("COST", _cost),
        ("", "total"),
    ]  # fmt: skip
    rows: list[dict[str, Any]] = [
        *({**row} for row in answer["rows"]),
        *({**row, "total": "Total"} for row in answer["totals"]),
    ]
    filled = [column for column in columns if any(_has(row, column) for row in rows)]
    show_rows(app, rows, filled, name="gpu_seconds")
    for fact in answer["facts"]:
        talk(f"{fact['label']}: {fact['text']}")


def _cost(row: Any) -> str:
    return f"{float(row['cost']):.2f} {row['currency']}"


def _has(row: Any, column: Column) -> bool:
    _, of = column
    return bool(row.get(of) if isinstance(of, str) else of(row))


@click.command()
@period_options
@team_option
@click.option(
    "--format",
    type=click.Choice(["csv", "xlsx", "pdf"]),
    default="pdf",
    show_default=True,
    help="Kind of file.",
)
@click.option("--part", help="Table to write, for --format csv.")
@with_app
def statement(app: App, team: str | None, **options: Any) -> None:
    """Write the statement of a team, its bill for a period, to stdout.

    \b
    fairlot statement --period last-month > statement.pdf
    """
    if sys.stdout.isatty() and options["format"] != "csv":
        raise click.UsageError(f"Send the {options['format']} file elsewhere: fairlot statement … > FILE.")
    click.echo(app.client.get_statement_file(team=own_team(app, team), **chosen(options)), nl=False)


@click.command()
@click.option("-t", "--team", help="Slug of a team; by default all of yours.")
@click.option(
    "--period",
    type=click.Choice(["today", "1h", "24h", "7d", "30d", "this-month", "last-month"]),
    help="Time of the trades.",
)
@limit_options
@output_option
@with_app
def trades(app: App, limit: int, everything: bool, **options: Any) -> None:
    """List the trades of your teams, newest first."""
    columns: list[Column] = [
        ("ID", "id"), ("BEGAN", when("begins")), ("ENDED", when("ends")), ("FAST", "fast"), ("SLOW", "slow"),
        ("PRICE", lambda row: f"{row['price']:.2f}"), ("WITH", "counterpart"),
    ]  # fmt: skip
    show_rows(app, taken(app.client.list_trades(**chosen(options)), limit, everything), columns)


@click.command()
@period_options
@click.option("-t", "--team", help="Slug of a team; by default all of yours.")
@watchable
@with_app
def idle(app: App, **options: Any) -> None:
    """List running jobs that hold GPUs and do not use them."""
    columns: list[Column] = [
        ("JOB", "job"), ("NAME", "name"), ("TEAM", "team"), ("OWNER", "owner"), ("GPUS", "gpus"),
        ("IN USE", lambda row: f"{row['percent']:.0f} %"), ("IDLE SINCE", when("idle_since")),
        ("THEN", "then"), ("AT", when("acts_at")),
    ]  # fmt: skip
    show_rows(app, app.client.list_idle_jobs(**chosen(options)), columns, name="job")


def whom(row: Mapping[str, Any]) -> str:
    """Returns whom a limit is on."""
    if row["user"]:
        return f"{row['user']} (former member)" if row["of_former_member"] else str(row["user"])
    return "each member" if row["each_user"] else "whole team"


LIMITS: list[Column] = [
    ("ID", "id"), ("KIND", "kind"), ("LIMIT", "limit"), ("USED", "used"), ("TEAM", "team"),
    ("FOR", whom),
    ("GPU TYPE", "generation"), ("PERIOD", "period"), ("AT LIMIT", "at_limit"),
]  # fmt: skip
KINDS = ["gpus", "gpu_hours", "money", "queued_jobs", "longest_run", "borrowed", "storage"]


@click.command()
@team_option
@click.option("--mine", is_flag=True, help="List the limits that bind you in all your teams.")
@watchable
@with_app
def limits(app: App, team: str | None, mine: bool) -> None:
    """List limits, and what is used of them.

    Without --team, managers of one team see its limits. Everybody else sees those that bind them, as with --mine: those
    on the user, and those of the user's teams as a whole.
    """
    own = app.client.me()["teams"] if team is None and not mine else []
    if mine or (own and not (len(own) == 1 and own[0]["role"] == "manager")):
        show_rows(app, app.client.list_own_limits(), [*LIMITS, ("USED IN", "used_in")])
        return
    show_rows(app, app.client.list_limits(team=own_team(app, team)), LIMITS)


@click.group()
def limit() -> None:
    """Set and remove limits. For admins; managers set limits on members."""


@limit.command("set")
@click.argument("team")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("amount")
@click.option("--user", help="Limit this member only.")
@click.option("--each-user", is_flag=True, default=None, help="Limit each member.")
@click.option("--gpu-type", "generation", help="Limit only GPUs of this type.")
@click.option(
    "--period", type=click.Choice(["month", "quarter", "rolling"]), help="Period of hours and money."
)
@click.option("--days", type=int, help="Days of a rolling period.")
@click.option(
    "--at-limit", type=click.Choice(["block", "idle", "warn"]), help="What happens beyond the limit."
)
@output_option
@with_app
def set_limit(app: App, team: str, kind: Any, amount: str, **options: Any) -> None:
    """Set a limit of a team or of its members."""
    made = app.client.set_limit(team=team, kind=kind, limit=amount, **chosen(options))
    show_done(app, f"Limit {made['id']}: {team} may use {made['limit']} {kind}.", made)


@limit.command("remove")
@click.argument("limit_id", type=int)
@with_app
def remove_limit(app: App, limit_id: int) -> None:
    """Remove a limit, given by its id."""
    app.client.remove_limit(limit_id)
    talk(f"Removed limit {limit_id}.")


@click.command()
@team_option
@output_option
@with_app
def budgets(app: App, team: str | None) -> None:
    """List the budgets of a team, what is spent, and the forecast."""
    columns: list[Column] = [
        ("ID", "id"), ("TEAM", "team"), ("PERIOD", "period"), ("AMOUNT", "amount"), ("SPENT", "spent"),
        ("FORECAST", "forecast"), ("ENDS", when("ends")),
    ]  # fmt: skip
    show_rows(app, app.client.list_budgets(team=own_team(app, team)), columns)


@click.group()
def request() -> None:
    """Ask for tickets or limits, and decide on requests."""


REQUESTS: list[Column] = [
    ("ID", "id"), ("STATE", "state"), ("TEAM", "team"), ("KIND", "kind"), ("WANTED", "wanted"), ("BY", "asked_by"),
    ("ASKED", when("asked_at")),
]  # fmt: skip
REQUEST: list[Column] = [
    ("id", "id"), ("state", "state"), ("team", "team"), ("kind", "kind"), ("wanted", "wanted"), ("reason", "reason"),
    ("until", when("until")), ("by", "asked_by"), ("asked", when("asked_at")), ("decided by", "decided_by"),
    ("decided", when("decided_at")), ("answer", "answer"), ("granted", "granted"), ("ends", when("ends_at")),
]  # fmt: skip


@request.command("list")
@click.option(
    "-s",
    "--state",
    type=click.Choice(["open", "approved", "declined", "withdrawn"]),
    help="Only requests in this state.",
)
@limit_options
@watchable
@with_app
def list_requests(app: App, limit: int, everything: bool, **options: Any) -> None:
    """List requests, newest first."""
    show_rows(app, taken(app.client.list_requests(**chosen(options)), limit, everything), REQUESTS)


@request.command("show")
@click.argument("request_id", type=int)
@output_option
@with_app
def show_request(app: App, request_id: int) -> None:
    """Show a request, given by its id."""
    show_one(app, app.client.get_request(request_id), REQUEST)


@request.command("tickets")
@click.argument("tickets", type=int)
@team_option
@click.option("--reason", required=True, help="Why your team needs them.")
@click.option("--until", help="Time at which the grant ends, such as 2026-12-31T00:00Z.")
@output_option
@with_app
def ask_for_tickets(app: App, team: str | None, tickets: int, **options: Any) -> None:
    """Ask that your team has TICKETS tickets."""
    made = app.client.ask_for(team=own_team(app, team), kind="tickets", tickets=tickets, **chosen(options))
    show_done(app, f"Asked for {tickets} tickets for {made['team']}: request {made['id']}.", made)


@request.command("limit")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("amount")
@team_option
@click.option("--gpu-type", "generation", help="Only for GPUs of this type.")
@click.option("--reason", required=True, help="Why your team needs it.")
@click.option("--until", help="Time at which the grant ends, such as 2026-12-31T00:00Z.")
@output_option
@with_app
def ask_for_limit(
    app: App, *, team: str | None, kind: Any, amount: str, generation: str | None, **options: Any
) -> None:
    """Ask for another limit for your team."""
    terms: Any = {"kind": kind, "limit": amount} | chosen({"generation": generation})
    made = app.client.ask_for(team=own_team(app, team), kind="limit", limit=terms, **chosen(options))
    show_done(app, f"Asked for a limit of {amount} {kind} for {made['team']}: request {made['id']}.", made)


@request.command()
@click.argument("request_id", type=int)
@click.option("--answer", help="Text for the person who asked.")
@output_option
@with_app
def approve(app: App, request_id: int, **options: Any) -> None:
    """Approve a request, and grant what was asked for."""
    made = app.client.approve_request(request_id, **chosen(options))
    show_done(app, f"Approved request {request_id}.", made)


@request.command()
@click.argument("request_id", type=int)
@click.option("--answer", required=True, help="Why; the person who asked sees it.")
@output_option
@with_app
def decline(app: App, request_id: int, answer: str) -> None:
    """Decline a request."""
    made = app.client.decline_request(request_id, answer=answer)
    show_done(app, f"Declined request {request_id}.", made)


@request.command()
@click.argument("request_id", type=int)
@output_option
@with_app
def withdraw(app: App, request_id: int) -> None:
    """Withdraw your request."""
    made = app.client.withdraw_request(request_id)
    show_done(app, f"Withdrew request {request_id}.", made)
