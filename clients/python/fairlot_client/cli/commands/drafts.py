"""Commands for drafts: jobs, sweeps and pipelines that are not submitted yet."""

from __future__ import annotations

import click

from fairlot_client.cli.app import App, talk, with_app
from fairlot_client.cli.output import Column, output_option, show_one, show_rows, watchable, when

COLUMNS: list[Column] = [
    ("ID", "id"), ("NAME", "name"), ("KIND", "kind"), ("CHANGED", when("saved_at")),
]  # fmt: skip
FIELDS: list[Column] = [
    ("id", "id"), ("name", "name"), ("kind", "kind"), ("team", "team"), ("cluster", "cluster"),
    ("changed", when("saved_at")), ("parameters", "parameters"),
    ("problems", lambda one: [f"{name} {text}".strip() for name, text in one["problems"].items()]),
    ("yaml", "yaml"),
]  # fmt: skip


@click.group()
def drafts() -> None:
    """Read, submit and delete your drafts. `fairlot submit --draft` keeps one."""


@drafts.command("list")
@watchable
@with_app
def list_drafts(app: App) -> None:
    """List your drafts."""
    show_rows(app, app.client.list_drafts(), COLUMNS)


@drafts.command("show")
@click.argument("draft", type=int)
@output_option
@with_app
def show(app: App, draft: int) -> None:
    """Show a draft, and what must change before it can be submitted."""
    show_one(app, app.client.get_draft(draft), FIELDS)


@drafts.command("submit")
@click.argument("draft", type=int)
@click.option("--even-if-never", is_flag=True, help="Queue the job even if it can never run here now.")
@with_app
def submit(app: App, draft: int, even_if_never: bool) -> None:
    """Submit the job of a draft, and print the job's id. The draft is then gone.

    Drafts of sweeps and pipelines are submitted on their page.
    """
    kept = app.client.get_draft(draft)
    if kept["kind"] != "job":
        raise click.UsageError(
            f"Draft {draft} is of a {kept['kind']}. Submit it on the portal's page, under Drafts."
        )
    job = app.client.submit_job(
        spec=kept["yaml"],
        team=kept["team"],
        cluster=kept["cluster"],
        even_if_never=even_if_never,
        idempotency_key=kept["request_key"],
    )
    talk(f'Submitted job {job["id"]} "{job["name"]}" for {job["team"]}.')
    click.echo(job["id"])


@drafts.command("delete")
@click.argument("draft", type=int)
@with_app
def delete(app: App, draft: int) -> None:
    """Delete a draft."""
    app.client.delete_draft(draft)
    talk(f"Deleted draft {draft}.")
