"""The command for the audit trail."""

from __future__ import annotations

from typing import Any, Literal

import click

from fairlot_client.cli.app import App, with_app
from fairlot_client.cli.arguments import chosen
from fairlot_client.cli.output import Column, limit_options, output_option, show_rows, taken, when

FILES: dict[str, Literal["audit.csv", "audit.jsonl"]] = {"csv": "audit.csv", "jsonl": "audit.jsonl"}


@click.command()
@click.option("--by", "actor", help="Part of the name of the user who made the change.")
@click.option("--kind", help="Kind of change, such as members or limits.")
@click.option("--action", "verb", help="What was done, such as quota.set.")
@click.option("--object", "target", help="Words in the name of the changed object, or the name of its team.")
@click.option("--search", "q", metavar="TEXT", help="Words in names and values.")
@click.option("--from", "from_", help="First day, such as 2026-11-01.")
@click.option("--to", help="Last day, such as 2026-11-30.")
@click.option("--zone", help="Time zone of the days, such as Europe/Berlin; by default UTC.")
@click.option("--export", "form", type=click.Choice([*FILES]), help="Write all as a file to stdout.")
@limit_options
@output_option
@with_app
def audit(app: App, form: str | None, limit: int, everything: bool, **options: Any) -> None:
    """List who changed what, newest first. For operators, and for managers about their teams.

    \b
    fairlot audit --object Astro --kind members
    fairlot audit --from 2026-11-01 --export csv > audit.csv
    """
    if form is not None:
        click.echo(app.client.export_audit_events(FILES[form], **chosen(options)), nl=False)
        return
    columns: list[Column] = [
        ("ID", "id"), ("AT", when("at")), ("BY", "actor"), ("ACTION", "action"), ("TYPE", "target_type"),
        ("OBJECT", "target"), ("TEAM", "team"),
    ]  # fmt: skip
    show_rows(app, taken(app.client.list_audit_events(**chosen(options)), limit, everything), columns)
