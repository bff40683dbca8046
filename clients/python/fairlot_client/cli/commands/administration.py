"""Commands for teams, members, secrets and volumes, and for calls of the API that have no command."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from fairlot_client.cli.app import App, talk, with_app
from fairlot_client.cli.arguments import chosen, own_team
from fairlot_client.cli.output import (
    Column,
    output_option,
    role_in_words,
    show_done,
    show_rows,
    watchable,
    when,
)
from fairlot_client.cli.spec import PAIR


@click.group()
def team() -> None:
    """Show and change teams and their members."""


ROLES = click.Choice(["viewer", "member", "manager"])


@team.command("members")
@click.argument("name", required=False)
@watchable
@with_app
def members(app: App, name: str | None) -> None:
    """List the members of a team."""
    columns: list[Column] = [
        ("USER", "user"),
        ("ROLE", "role"),
        ("TICKETS", lambda one: "" if one["role"] == "viewer" else one["tickets"]),
        ("ACTIVE", "is_active"),
    ]
    show_rows(app, app.client.list_members(own_team(app, name)), columns, name="user")


@team.command("add")
@click.argument("name")
@click.argument("user")
@click.option("--role", type=ROLES, help="Role in the team; by default member.")
@click.option("--tickets", type=int, help="Weight among the members.")
@output_option
@with_app
def add_member(app: App, name: str, user: str, **options: Any) -> None:
    """Add USER to the team NAME."""
    made = app.client.add_member(name, user=user, **chosen(options))
    show_done(app, f"{user} is a {made['role']} of {name}.", made, name="user")


@team.command("change")
@click.argument("name")
@click.argument("user")
@click.option("--role", type=ROLES, help="Role in the team.")
@click.option("--tickets", type=int, help="Weight among the members.")
@output_option
@with_app
def change_member(app: App, name: str, user: str, **options: Any) -> None:
    """Change the role or the tickets of a member."""
    made = app.client.change_member(name, user, **chosen(options))
    show_done(app, f"{user} is now in {name}: {role_in_words(made)}.", made, name="user")


@team.command("remove")
@click.argument("name")
@click.argument("user")
@with_app
def remove_member(app: App, name: str, user: str) -> None:
    """Remove USER from the team NAME."""
    app.client.remove_member(name, user)
    talk(f"{user} is no member of {name} any more.")


@team.command("invite")
@click.argument("name")
@click.option("--email", help="Address to which the portal sends the link.")
@click.option("--role", type=ROLES, help="Role in the team; by default member.")
@click.option("--tickets", type=int, help="Weight among the members.")
@click.option("--people", "most_uses", type=int, help="How many people can use the link; by default 1.")
@click.option("--days", type=int, help="How many days the link works; by default 7.")
@output_option
@with_app
def invite(app: App, name: str, **options: Any) -> None:
    """Create a link with which people join the team NAME."""
    made = app.client.create_invitation(name, **chosen(options))
    show_done(app, made["link"], made)


@team.command("invitations")
@click.argument("name", required=False)
@watchable
@with_app
def invitations(app: App, name: str | None) -> None:
    """List the open invitations to a team."""
    columns: list[Column] = [
        ("ID", "id"), ("SENT TO", "email"), ("ROLE", "role"), ("TICKETS", "tickets"), ("JOINED", "uses"),
        ("PEOPLE", "most_uses"), ("VALID UNTIL", when("expires_at")), ("BY", "invited_by"),
    ]  # fmt: skip
    show_rows(app, app.client.list_invitations(own_team(app, name)), columns)


@team.command("revoke")
@click.argument("name")
@click.argument("invitation_id", type=int)
@with_app
def revoke_invitation(app: App, name: str, invitation_id: int) -> None:
    """Revoke an invitation to the team NAME, so that its link no longer works."""
    app.client.revoke_invitation(name, invitation_id)
    talk(f"Revoked invitation {invitation_id}.")


@team.command("join")
@click.argument("link")
@output_option
@with_app
def join(app: App, link: str) -> None:
    """Join the team to which LINK invites you."""
    made = app.client.accept_invitation(invitation=link)
    show_done(app, f"You are a {made['role']} of {made['team']}.", made, name="team")


SHARES: list[Column] = [("TEAM", "name"), ("SHARE NOW", lambda row: _percent(row["before"])),
    ("THEN", lambda row: _percent(row["after"]))]  # fmt: skip


def _percent(part: float | None) -> str:
    return "" if part is None else f"{100 * part:.1f} %"


def _changed(app: App, answer: Any, text: str, *, dry_run: bool) -> None:
    """Says what was changed. With --dry-run, shows how shares would change."""
    if dry_run:
        show_rows(app, answer["shares"], SHARES, name="name")
    else:
        show_done(app, text, answer["team"], name="team")


@team.command("create")
@click.argument("title")
@click.option("--parent", help="Slug of the team above; by default none.")
@click.option("--tickets", type=int, required=True, help="Weight among the teams with the same parent.")
@click.option("--dry-run", is_flag=True, help="Only show how shares would change.")
@output_option
@with_app
def create_team(app: App, title: str, parent: str | None, tickets: int, dry_run: bool) -> None:
    """Create a team. For admins."""
    answer = app.client.create_team(name=title, parent=parent, tickets=tickets, dry_run=dry_run)
    _changed(app, answer, f"Created the team {title}.", dry_run=dry_run)


@team.command("tickets")
@click.argument("name")
@click.argument("tickets", type=int)
@click.option("--dry-run", is_flag=True, help="Only show how shares would change.")
@output_option
@with_app
def set_tickets(app: App, name: str, tickets: int, dry_run: bool) -> None:
    """Set the tickets of a team. For admins."""
    answer = app.client.set_team_tickets(name, tickets=tickets, dry_run=dry_run)
    _changed(app, answer, f"{name} has {tickets} tickets.", dry_run=dry_run)


@team.command("archive")
@click.argument("name")
@click.option("--undo", is_flag=True, help="Bring the team back.")
@click.option("--dry-run", is_flag=True, help="Only show how shares would change.")
@output_option
@with_app
def archive(app: App, name: str, undo: bool, dry_run: bool) -> None:
    """Archive a team. For admins."""
    answer = app.client.set_team_archived(name, archived=not undo, dry_run=dry_run)
    _changed(app, answer, f"{name} is {'active again' if undo else 'archived'}.", dry_run=dry_run)


@click.group()
def secret() -> None:
    """Keep passwords and keys for jobs."""


@secret.command("list")
@output_option
@with_app
def list_secrets(app: App) -> None:
    """List the secrets that your jobs can use. Values are never shown."""
    columns: list[Column] = [
        ("ID", "id"), ("NAME", "name"), ("TEAM", "team"), ("KEYS", "keys"), ("CHANGED", when("changed_at")),
    ]  # fmt: skip
    show_rows(app, app.client.list_secrets(), columns)


@secret.command("create")
@click.argument("name")
@click.option("-t", "--team", help="Team that may use it; by default only you.")
@output_option
@with_app
def create_secret(app: App, name: str, **options: Any) -> None:
    """Create a secret, whose value is read from stdin or typed."""
    made = app.client.create_secret(name=name, value=_value(app), **chosen(options))
    show_done(app, f'Created secret {made["id"]} "{name}".', made)


@secret.command("replace")
@click.argument("secret_id", type=int)
@output_option
@with_app
def replace_secret(app: App, secret_id: int) -> None:
    """Replace the value of a secret. The new value is read from stdin or typed."""
    show_done(app, f"Replaced secret {secret_id}.", app.client.replace_secret(secret_id, value=_value(app)))


@secret.command("delete")
@click.argument("secret_id", type=int)
@with_app
def delete_secret(app: App, secret_id: int) -> None:
    """Delete a secret."""
    app.client.delete_secret(secret_id)
    talk(f"Deleted secret {secret_id}.")


def _value(app: App) -> str:
    """Returns the value of a secret. It is no argument, because other users can see the arguments of programs."""
    if app.is_interactive():
        return str(click.prompt("Value", hide_input=True, err=True))
    return sys.stdin.read().removesuffix("\n")


@click.command()
@output_option
@with_app
def volumes(app: App) -> None:
    """List the volumes that your jobs can mount."""
    columns: list[Column] = [
        ("ID", "id"), ("NAME", "name"), ("CLUSTER", "cluster"), ("TEAM", "team"), ("READ ONLY", "read_only"),
    ]  # fmt: skip
    show_rows(app, app.client.list_volumes(), columns)


@click.command("api")
@click.argument("method", type=click.Choice(["GET", "POST", "PUT", "PATCH", "DELETE"], case_sensitive=False))
@click.argument("path")
@click.option("-q", "--query", type=PAIR, multiple=True, help="Parameter of the query.")
@click.option("-d", "--data", type=click.File(), help="JSON body; - is stdin.")
@with_app
def call(app: App, method: str, path: str, query: Any, data: Any) -> None:
    """Call the API, and write its answer. The page /api/v1/docs of the portal describes it.

    \b
    fairlot api GET /jobs -q state=running
    """
    from fairlot_client.calls import UNSET, Call  # noqa: PLC0415 - the program must start quickly

    try:
        body = json.load(data) if data else UNSET
    except ValueError as error:
        raise click.UsageError(f"{data.name} is not valid JSON: {error}") from None
    place = f"/{path.removeprefix('/api/v1').lstrip('/')}"
    answer: Call[bytes] = Call(method.upper(), place, query=dict(query), body=body, is_file=True)
    content = app.client.do(answer)
    click.echo(content, nl=not content.endswith(b"\n"))
