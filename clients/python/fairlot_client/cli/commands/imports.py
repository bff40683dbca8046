"""Converts files of other systems, and submits what they describe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import click

from fairlot_client.cli.app import App, talk, with_app
from fairlot_client.cli.output import Column, output_option, plural, show_created, show_one, show_rows
from fairlot_client.cli.spec import place_of

REPORT: list[Column] = [("FATE", "fate"), ("SOURCE", "source"), ("TARGET", "target"), ("MEANING", "text")]


def described(options: Any) -> str:
    """Returns how many members the options of a sweep describe, and how many are at work at once."""
    parameters, at_once = options["parameters"], options.get("at_once")
    grid = parameters.get("grid")
    size = math.prod(map(len, grid.values())) if grid else parameters.get("count") or len(parameters["rows"])
    return plural(size, "member") + (f", {at_once} at once" if at_once else "")


@click.command()
@click.argument("file", type=click.File())
@click.option("--format", help="Format of the file, such as slurm. By default it is recognised.")
@click.option("--report", is_flag=True, help="Only show what became of each field.")
@click.option("--submit", is_flag=True, help="Submit the jobs, sweeps and pipelines that the file describes.")
@click.option("-t", "--team", help="Team that pays. Not needed if you are in only one.")
@click.option("--cluster", help="Cluster to run on. Not needed if there is only one.")
@output_option
@with_app
def convert(app: App, file: Any, format: str | None, report: bool, submit: bool, **place: str | None) -> None:  # noqa: A002 - the option's name
    """Convert a file of another system, such as a Slurm script or a Kubernetes Job, to job specifications.

    The report goes to stderr, the specifications as YAML go to stdout; with --submit, what was created instead. Refused
    fields end with exit code 1.
    """
    asked = {"format": format, "cluster": place["cluster"]}
    found = app.client.convert_file(
        text=file.read(), **{name: value for name, value in asked.items() if value}
    )
    if app.output != "table" and not submit:
        show_one(app, found, [], name="format")
    elif report:
        show_rows(app, found["report"], REPORT, name="source")
    else:
        show_result(found, specifications=not submit)
    if not found["works"]:
        click.get_current_context().exit(1)
    if submit:
        create_all(app, found["works"], place_of(place))


def show_result(found: Any, *, specifications: bool) -> None:
    """Says what needs attention, and prints the specifications if asked."""
    for line in found["report"]:
        if line["fate"] != "mapped":
            talk(f"{line['fate']}: {line['source'] or line['target']}: {line['text']}")
    if not specifications:
        return
    for work in found["works"]:
        if work["kind"] == "sweep":
            size = described(work["options"])
            talk(f"{work['name']} is a sweep of {size}. Create it with --submit.")
        elif work["kind"] == "pipeline":
            steps = plural(len(work["options"]["pipeline"]["steps"]), "step")
            talk(f"{work['name']} is a pipeline of {steps}. Create it with --submit.")
    click.echo("---\n".join(work["yaml"] for work in found["works"]), nl=False)


def create_all(app: App, works: Sequence[Any], place: dict[str, Any]) -> None:
    """Creates the jobs, services, schedules, sweeps and pipelines that were found, and writes each of them."""
    written = 0
    for work in works:
        made, text = create(app, work, place)
        if made is None:
            talk(text)
            continue
        if written and app.output == "yaml":
            click.echo("---")
        show_created(app, text, made)
        written += 1


def create(app: App, work: Any, place: dict[str, Any]) -> tuple[Any, str]:
    """Creates what was found. Returns it, or None if this version of the command cannot, and a sentence about it."""
    spec, options, client = work["spec"], work["options"], app.client
    match work["kind"]:
        case "job":
            made: Any = client.submit_job(spec=spec, **place)
            return made, f'Submitted job {made["id"]} "{made["name"]}" for {made["team"]}.'
        case "sweep":
            made = client.create_sweep(spec=spec, **options, **place)
            size = plural(made["size"], "member")
            return made, f'Created sweep {made["id"]} "{made["name"]}" with {size}.'
        case "pipeline":
            made = client.create_pipeline(**options, **place)
            steps = plural(len(made["steps"]), "step")
            return made, f'Created pipeline {made["id"]} "{made["name"]}" with {steps}.'
        case "service":
            made = client.create_service(spec=spec, **options, **place)
        case "schedule":
            made = client.create_schedule(spec=spec, **options, **place)
        case kind:
            return None, f"{work['name']} is a {kind}, which this version of the command does not create."
    return made, f'Created {work["kind"]} {made["id"]} "{made["name"]}" for {made["team"]}.'


def foreign_works(app: App, text: str, place: dict[str, Any]) -> list[Any] | None:
    """Converts a file of another system, says what needs attention, and returns what it describes.

    Returns None, without a word, if the format of the text is not recognised. If a field is refused, says why and ends
    with exit code 1.
    """
    found: Any = app.client.convert_file(
        text=text, **{name: value for name, value in place.items() if name == "cluster"}
    )
    if not found["format"]:
        return None
    talk(f"Format of the file: {found['label']}.")
    show_result(found, specifications=False)
    if not found["works"]:
        click.get_current_context().exit(1)
    return list(found["works"])


def specs_of(work: Any) -> dict[str, Any]:
    """Returns the job specifications of what a file describes, by the names of the jobs."""
    if work["kind"] == "pipeline":
        return dict(work["options"]["pipeline"]["steps"])
    return {work["name"]: work["spec"]}
