"""Commands for pipelines: jobs that need the ends of other jobs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import click

from fairlot_client.cli import finding
from fairlot_client.cli.app import App, with_app
from fairlot_client.cli.output import (
    Column,
    list_options,
    money,
    output_option,
    show_created,
    show_done,
    show_one,
    show_rows,
    taken,
    watchable,
    when,
)


def counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in counts.items())


def costs(item: dict[str, Any]) -> str:
    return ", ".join(money(amount, currency) for currency, amount in item["costs"].items())


def lasting(key: str) -> Callable[[dict[str, Any]], str]:
    """Returns a function that shows the seconds in the field `key` as hours, minutes and seconds."""
    return lambda item: "" if item[key] is None else str(timedelta(seconds=round(item[key])))


COLUMNS: list[Column] = [
    ("ID", "id"), ("NAME", "name"), ("STATE", "state"), ("STEPS", lambda one: counted(one["counts"])),
    ("TEAM", "team"), ("OWNER", "owner"), ("CREATED", when("created_at")),
]  # fmt: skip
FIELDS: list[Column] = [
    ("id", "id"), ("name", "name"), ("state", "state"), ("steps", lambda one: counted(one["counts"])),
    ("team", "team"),
    ("owner", "owner"), ("cluster", "cluster"), ("trouble", "trouble"), ("created", when("created_at")),
    ("ended", when("ended_at")), ("expected end", when("expected_end")),
    ("GPU-hours", lambda one: f"{one['gpu_hours']:.2f}"), ("cost", costs),
]  # fmt: skip
STEPS: list[Column] = [
    ("STEP", "name"), ("STATE", "state"), ("GPUS", "gpus"), ("WAITED", lasting("waited_seconds")),
    ("ON GPUS", lasting("held_seconds")), ("GPU-HOURS", lambda one: f"{one['gpu_hours']:.2f}"), ("COST", costs),
    ("JOB", "job_id"), ("EXPECTED END", when("expected_end")), ("REASON", "reason"),
]  # fmt: skip


@click.group()
def pipeline() -> None:
    """Run jobs that need the ends and the files of other jobs."""


@pipeline.command("submit")
@click.argument("file", type=click.File())
@click.option("-t", "--team", help="Team that the jobs are billed to.")
@click.option("-c", "--cluster", help="Cluster on which to run.")
@click.option("--even-if-never", is_flag=True, help="Accept it even if a step can never run.")
@output_option
@with_app
def submit(app: App, file: Any, team: str | None, cluster: str | None, even_if_never: bool) -> None:
    """Submit the pipeline in a YAML file, and print its id.

    \b
    name: digits
    steps:
      prepare: {command: python prepare.py}
      train:
        needs: [prepare]
        command: python train.py --data $FAIRLOT_INPUT_PREPARE/checkpoint
    """
    made = app.client.create_pipeline(
        pipeline=file.read(), even_if_never=even_if_never, team=team or "", cluster=cluster or ""
    )
    show_created(
        app, f'Submitted pipeline {made["id"]} "{made["name"]}" with {len(made["steps"])} steps.', made
    )


@pipeline.command("list")
@list_options
@watchable
@with_app
def list_pipelines(app: App, limit: int, everything: bool, **filters: Any) -> None:
    """List the pipelines of your teams, newest first or as --sort says."""
    found = app.client.list_pipelines(page_size=min(200, limit + 1), **filters)
    show_rows(app, taken(found, limit, everything), COLUMNS)


@pipeline.command("show")
@finding.argument("pipeline")
@click.option("--yaml", "as_yaml", is_flag=True, help="Write its definition as YAML.")
@watchable
@with_app
def show(app: App, pipeline: str, as_yaml: bool) -> None:
    """Show a pipeline, given by its id or name, with the times and costs of its steps."""
    found = app.client.get_pipeline(finding.pipeline_id_of(app, pipeline))
    if as_yaml:
        click.echo(found["definition"], nl=False)
    else:
        show_one(app, found, FIELDS)
        if app.output == "table":
            show_rows(app, found["steps"], STEPS)


@pipeline.command("rerun")
@finding.argument("pipeline")
@click.option(
    "--from", "step", default="", help="Begin with this step; the steps before it keep their results."
)
@output_option
@with_app
def rerun(app: App, pipeline: str, step: str) -> None:
    """Run the failed steps of a pipeline again, with all steps that need them."""
    made = app.client.run_pipeline_again(finding.pipeline_id_of(app, pipeline), step=step)
    show_done(app, f"Pipeline {made['id']} runs again.", made)


@pipeline.command("cancel")
@finding.argument("pipeline")
@output_option
@with_app
def cancel(app: App, pipeline: str) -> None:
    """Cancel a pipeline: its jobs are cancelled, and no more are submitted."""
    made = app.client.cancel_pipeline(finding.pipeline_id_of(app, pipeline))
    show_done(app, f"Pipeline {made['id']} is being cancelled.", made)
