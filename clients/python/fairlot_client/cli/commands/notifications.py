"""Commands for notifications: reading them, and choosing which events you want to know and where."""

from __future__ import annotations

import sys
from typing import Any

import click

from fairlot_client.cli.app import App, talk, with_app
from fairlot_client.cli.arguments import chosen
from fairlot_client.cli.output import Column, output_option, show_done, show_rows, watchable, when

EVENTS = [
    "job.failed", "job.ended", "job.waiting", "job.warned", "job.started", "job.suspended", "sweep.ended",
    "service.failed", "budget.warning", "request.open", "request.answered", "channel.failed", "token.revoked",
    "team.member",
]  # fmt: skip
OF_JOBS = EVENTS[:6]
WAITS = ["15", "60", "240", "1440"]


@click.command()
@click.option("--unread", is_flag=True, help="Only those that you have not read.")
@click.option("--read", "marks", is_flag=True, help="Mark all as read after showing them.")
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True, help="Most rows.")
@watchable
@with_app
def notices(app: App, unread: bool, marks: bool, limit: int) -> None:
    """List your notifications, newest first."""
    page = app.client.list_notifications(unread=unread, limit=limit)
    columns: list[Column] = [
        ("ID", "id"), ("", lambda row: "" if row["read_at"] else "*"), ("AT", when("at")), ("EVENT", "event"),
        ("TEAM", "team"), ("TITLE", "title"),
    ]  # fmt: skip
    show_rows(app, page["notifications"], columns)
    if marks:
        ids = [row["id"] for row in page["notifications"] if not row["read_at"]]
        app.client.mark_notifications(ids=ids)


@click.group()
def notify() -> None:
    """Choose which events you want to know, where and when."""


@notify.command("list")
@output_option
@with_app
def list_rules(app: App) -> None:
    """List your rules, and those of teams that you manage."""
    columns: list[Column] = [
        ("ID", "id"), ("ABOUT", lambda row: row["job"] or row["team"] or "me"), ("EVENTS", "events"),
        ("WHERE", lambda row: f"channel {row['channel']}" if row["channel"] else row["way"]), ("WHEN", "rhythm"),
    ]  # fmt: skip
    show_rows(app, app.client.list_notification_rules(), columns)


@notify.command("set")
@click.option("-t", "--team", help="Slug of a team; by default what concerns you.")
@click.option("--job", type=int, help="Number of a job; by default what concerns you.")
@click.option(
    "-e", "--event", "events", multiple=True, type=click.Choice(EVENTS), help="Event; repeat it for several."
)
@click.option("--none", is_flag=True, help="No event: switches the usual notifications in this place off.")
@click.option("--mail", is_flag=True, help="By mail; by default the bell in the portal.")
@click.option("--channel", type=int, help="In the channel with this id.")
@click.option("--hourly", "rhythm", flag_value="hourly", help="Together, every hour.")
@click.option("--daily", "rhythm", flag_value="daily", help="Together, every day at 8:00.")
@click.option("--wait", "wait_minutes", type=click.Choice(WAITS), help="Minutes until job.waiting.")
@output_option
@with_app
def set_rule(app: App, events: tuple[str, ...], none: bool, **options: Any) -> None:
    """Set a rule. It replaces an earlier one about the same subject in the same place."""
    given = chosen(options)
    by_mail = given.pop("mail")
    if bool(events) == none:
        raise click.UsageError("Give events with --event, or --none.")
    if {"team", "job"} <= given.keys() or (by_mail and "channel" in given):
        raise click.UsageError("Give one subject (--team or --job) and one place (--mail or --channel).")
    about = next((subject for subject in ("team", "job") if subject in given), "me")
    way = "mail" if by_mail else "channel" if "channel" in given else "bell"
    if "wait_minutes" in given:
        given["wait_minutes"] = int(given["wait_minutes"])
    given |= {"about": about, "events": list(events), "way": way}
    made = app.client.set_notification_rule(**given)
    show_done(app, f"Saved rule {made['id']}.", made)


@notify.command("follow")
@click.argument("job_id", type=int)
@output_option
@with_app
def follow(app: App, job_id: int) -> None:
    """Show all events of the job JOB_ID in your bell, from its first start to its end."""
    terms: dict[str, Any] = {"about": "job", "job": job_id, "events": OF_JOBS}
    made = app.client.set_notification_rule(**terms)
    show_done(app, f"Your bell shows the events of job {job_id}. Rule {made['id']}.", made)


@notify.command("remove")
@click.argument("rule_id", type=int)
@with_app
def remove_rule(app: App, rule_id: int) -> None:
    """Remove a rule."""
    app.client.remove_notification_rule(rule_id)
    talk(f"Removed rule {rule_id}.")


@notify.group()
def channel() -> None:
    """Manage channels: Slack, Microsoft Teams and signed webhooks."""


@channel.command("list")
@output_option
@with_app
def list_channels(app: App) -> None:
    """List your channels, and those of teams that you manage."""
    columns: list[Column] = [
        ("ID", "id"), ("NAME", "name"), ("KIND", "kind"), ("TEAM", "team"), ("HOST", "host"), ("STATE", "state"),
        ("ERROR", "error"),
    ]  # fmt: skip
    show_rows(app, app.client.list_notification_channels(), columns, name="name")


@channel.command("create")
@click.argument("kind", type=click.Choice(["slack", "teams", "webhook"]))
@click.argument("name")
@click.option("-t", "--team", help="Team that owns it; by default you.")
@output_option
@with_app
def create_channel(app: App, kind: str, name: str, team: str | None) -> None:
    """Create a channel. The address of its webhook is read from stdin or typed."""
    terms = chosen({"kind": kind, "name": name, "team": team})
    made = app.client.create_notification_channel(url=_address(app), **terms)
    show_done(app, f'Created channel {made["id"]} "{name}".', made)


@channel.command("test")
@click.argument("channel_id", type=int)
@with_app
def test_channel(app: App, channel_id: int) -> None:
    """Post a test to a channel. A success resumes a paused channel."""
    answer = app.client.test_notification_channel(channel_id)
    if not answer["works"]:
        raise click.ClickException(f"The channel did not take the test. {answer['error']}")
    talk("The channel took the test.")


@channel.command("remove")
@click.argument("channel_id", type=int)
@with_app
def remove_channel(app: App, channel_id: int) -> None:
    """Remove a channel with its rules."""
    app.client.remove_notification_channel(channel_id)
    talk(f"Removed channel {channel_id}.")


def _address(app: App) -> str:
    """Returns an address. It is no argument, because other users can see the arguments of programs."""
    if app.is_interactive():
        return str(click.prompt("Address", hide_input=True, err=True)).strip()
    return sys.stdin.readline().strip()
