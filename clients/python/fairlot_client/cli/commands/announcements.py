"""Commands for the announcements that pages show above their content."""

from __future__ import annotations

from typing import Any

import click

from fairlot_client.cli.app import App, talk, with_app
from fairlot_client.cli.arguments import chosen
from fairlot_client.cli.output import Column, output_option, show_done, show_rows, watchable, when


@click.group()
def announcement() -> None:
    """Read announcements; operators make and withdraw them."""


@announcement.command("list")
@click.option("--all", "every", is_flag=True, help="All announcements, also past ones. For operators.")
@watchable
@with_app
def list_announcements(app: App, every: bool) -> None:
    """List the announcements that concern you now."""
    columns: list[Column] = [
        ("ID", "id"), ("SEVERITY", "severity"), ("FROM", when("begins_at")), ("UNTIL", when("ends_at")),
        ("WITHDRAWN", when("withdrawn_at")), ("TEXT", "text"),
    ]  # fmt: skip
    show_rows(app, app.client.list_announcements(every=every), columns)


@announcement.command("create")
@click.argument("text")
@click.option("--severity", type=click.Choice(["info", "warning", "critical"]), help="By default info.")
@click.option("--from", "begins_at", help="Time such as 2026-12-01T08:00Z; by default now.")
@click.option("--until", "ends_at", help="Time such as 2026-12-01T18:00Z; by default until it is withdrawn.")
@click.option("--stays", is_flag=True, help="Users cannot dismiss it.")
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice(["viewer", "member", "manager", "operator", "admin"]),
    help="Only for users with this role. Repeat it for several.",
)
@click.option("--team", "teams", multiple=True, help="Only for this team. Repeat it for several.")
@click.option(
    "--cluster", "clusters", multiple=True, help="Only for users of this cluster. Repeat it for several."
)
@output_option
@with_app
def create(app: App, text: str, stays: bool, **options: Any) -> None:
    """Announce TEXT to the users whom it concerns. For operators."""
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    made = app.client.create_announcement(text=text, dismissible=not stays, **chosen(given))
    show_done(app, f"Made announcement {made['id']}.", made)


@announcement.command("withdraw")
@click.argument("announcement_id", type=int)
@with_app
def withdraw(app: App, announcement_id: int) -> None:
    """Withdraw an announcement, so that no page shows it any more. For operators."""
    app.client.withdraw_announcement(announcement_id)
    talk(f"Withdrew announcement {announcement_id}.")


@announcement.command("dismiss")
@click.argument("announcement_id", type=int)
@with_app
def dismiss(app: App, announcement_id: int) -> None:
    """Remove an announcement from your own pages."""
    app.client.dismiss_announcement(announcement_id)
    talk(f"Dismissed announcement {announcement_id}.")
