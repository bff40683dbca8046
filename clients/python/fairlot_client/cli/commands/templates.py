"""Commands for templates: jobs with parameters that managers and admins publish for others."""

from __future__ import annotations

from typing import Any

import click

from fairlot_client.cli import finding
from fairlot_client.cli.app import App, talk, with_app
from fairlot_client.cli.output import (
    Column,
    limit_options,
    output_option,
    show_created,
    show_one,
    show_rows,
    taken,
    watchable,
    when,
)
from fairlot_client.cli.spec import read_file

COLUMNS: list[Column] = [
    ("ID", "id"), ("NAME", "name"), ("TEAM", lambda one: one["team"] or "all teams"), ("VERSION", "version"),
    ("GPUS", "gpus"), ("DESCRIPTION", "description"),
]  # fmt: skip
FIELDS: list[Column] = [
    ("id", "id"), ("name", "name"), ("team", lambda one: one["team"] or "all teams"),
    ("version", lambda one: f"{one['version']} of {one['latest']}"), ("description", "description"),
    ("parameters", lambda one: [described(parameter) for parameter in one["parameters"]]),
    ("published", when("made_at")), ("withdrawn", when("withdrawn_at")), ("yaml", "yaml"),
]  # fmt: skip


def described(parameter: dict[str, Any]) -> str:
    """Returns a parameter on one line: its name, its type, its default and what it means."""
    default = parameter.get("default")
    parts = [f"{parameter['name']} ({parameter['type']})", "" if default is None else f"= {default}"]
    return " ".join(part for part in (*parts, parameter.get("description", "")) if part)


@click.group()
def templates() -> None:
    """Find, publish and withdraw templates. `fairlot submit --template` uses one."""


@templates.command("list")
@click.option("-t", "--team", help="Only templates of this team.")
@click.option("-q", "--search", "q", help="Only templates whose name or description contains this text.")
@limit_options
@watchable
@with_app
def list_templates(app: App, limit: int, everything: bool, **filters: Any) -> None:
    """List the templates that you may use, newest first."""
    found = app.client.list_templates(page_size=min(200, limit + 1), **filters)
    show_rows(app, taken(found, limit, everything), COLUMNS)


@templates.command("show")
@finding.argument("template")
@click.option("--version", type=int, help="Number of a version; by default the latest.")
@output_option
@with_app
def show(app: App, template: str, version: int | None) -> None:
    """Show a template, given by its id or name: its parameters and its job specification."""
    number = finding.template_id_of(app, template)
    show_one(app, app.client.get_template(number, version=version), FIELDS)


@templates.command("publish")
@click.argument("name", required=False)
@click.option(
    "-f", "--file", type=click.File(), required=True, help="Job specification with {names}, as YAML."
)
@click.option("--parameters", type=click.File(), help="List of parameters, as YAML.")
@click.option("-d", "--description", required=True, help="What it does, in plain words.")
@click.option("-t", "--team", help="Team whose members may use it.")
@click.option("--for-all", is_flag=True, help="All teams may use it. For admins.")
@click.option("--version-of", help="Id or name of a template: publish a new version of it.")
@output_option
@with_app
def publish(
    app: App,
    *,
    name: str | None,
    file: Any,
    parameters: Any,
    description: str,
    team: str | None,
    for_all: bool,
    version_of: str | None,
) -> None:
    """Publish a template for your team, or a new version of one. For managers and admins."""
    content: dict[str, Any] = {
        "description": description,
        "spec": read_file(file),
        "parameters": _list_in(parameters) if parameters else [],
    }
    if version_of:
        if name or team or for_all:
            raise click.UsageError("A new version keeps name and team: give only --version-of.")
        made = app.client.publish_template_version(finding.template_id_of(app, version_of), **content)
    elif not name or bool(team) == for_all:
        raise click.UsageError("Give the NAME, and --team or --for-all.")
    else:
        made = app.client.publish_template(name=name, team=team or "", for_all=for_all, **content)
    show_created(app, f'Published version {made["version"]} of template {made["id"]} "{made["name"]}".', made)


@templates.command("withdraw")
@finding.argument("template")
@with_app
def withdraw(app: App, template: str) -> None:
    """Withdraw a template, so that nobody can use it any more. It stays readable."""
    number = finding.template_id_of(app, template)
    app.client.withdraw_template(number)
    talk(f"Withdrew template {number}.")


def _list_in(file: Any) -> list[Any]:
    from fairlot_client.cli.yaml_core import NotYaml, read  # noqa: PLC0415 - the program must start quickly

    try:
        found = read(file.read()) or []
    except NotYaml as error:
        raise click.UsageError(f"{file.name} is not valid YAML: {error}") from None
    if not isinstance(found, list):
        raise click.UsageError(f"{file.name} must be a list of parameters, each with a name and a type.")
    return found
