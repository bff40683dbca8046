"""Commands for sweeps: many jobs that differ in their parameters."""

from __future__ import annotations

import csv
import json
import re
from typing import Any

import click

from fairlot_client.cli import finding
from fairlot_client.cli.app import App, talk, with_app
from fairlot_client.cli.code import spec_with_code
from fairlot_client.cli.output import (
    Column,
    limit_options,
    list_options,
    output_option,
    plural,
    show_created,
    show_done,
    show_one,
    show_rows,
    taken,
    watchable,
    when,
)
from fairlot_client.cli.spec import PAIR, job_options

NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
WORDS = {"ignore_unknown_options": False, "allow_interspersed_args": False}
STATES = ["pending", "active", "succeeded", "failed", "cancelled", "stopped", "skipped"]
COLUMNS: list[Column] = [
    ("ID", "id"), ("NAME", "name"), ("STATE", "state"), ("MEMBERS", "size"),
    ("COUNTS", lambda one: counted(one["counts"])), ("TEAM", "team"), ("OWNER", "owner"),
    ("CREATED", when("created_at")),
]  # fmt: skip
FIELDS: list[Column] = [
    ("id", "id"), ("name", "name"), ("state", "state"), ("members", "size"),
    ("counts", lambda one: counted(one["counts"])), ("team", "team"), ("owner", "owner"), ("cluster", "cluster"),
    ("parameters", lambda one: ", ".join(one["names"])), ("metric", "metric"), ("stops at", "stop_at"),
    ("median after", "median_after"),
    ("best", lambda one: one["best"] and described(one["best"])), ("trouble", "trouble"),
    ("created", when("created_at")), ("ended", when("ended_at")),
]  # fmt: skip
MEMBERS: list[Column] = [
    ("INDEX", "index"), ("STATE", "state"), ("JOB", "job_id"), ("ATTEMPTS", "attempts"),
    ("PARAMETERS", lambda one: pairs(one["parameters"])), ("METRICS", lambda one: pairs(one["metrics"])),
    ("CAUSE", "cause"),
]  # fmt: skip


def counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in counts.items())


def pairs(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def described(member: dict[str, Any]) -> str:
    return f"member {member['index']} ({pairs(member['parameters'])}): {pairs(member['metrics'])}"


@click.group()
def sweep() -> None:
    """Run a job many times with different parameters."""


@sweep.command("create", context_settings=WORDS)
@job_options
@click.option(
    "--grid", type=PAIR, multiple=True, help="Values of a parameter: lr=0.1,0.01. Repeat for a grid."
)
@click.option(
    "--random",
    type=PAIR,
    multiple=True,
    help="Distribution of a parameter: lr=log_uniform:1e-5:0.1, depth=int:2:8, or opt=choice:sgd:adam. In quotes, also "
    "as the form writes it: 'lr=log_uniform(1e-5, 0.1)'.",
)
@click.option("--list", "rows", type=click.File(), help="CSV file with a column for each parameter.")
@click.option("--count", type=int, help="Number of random members, or of members without parameters.")
@click.option("--seed", type=int, help="Seed of random parameters.")
@click.option("--at-once", type=int, help="Most members that wait or run at the same time.")
@click.option("--metric", help="Metric that the programs print as name=value.")
@click.option("--goal", type=click.Choice(["min", "max"]), help="Whether lower or higher values are better.")
@click.option(
    "--stop-at",
    type=float,
    help="Stop the whole sweep once a member has this value of the metric, or a better one.",
)
@click.option(
    "--stop-cancels", is_flag=True, help="With --stop-at, cancel the other members that wait or run then."
)
@click.option(
    "--median-after",
    type=int,
    metavar="STEP",
    help="From this step on, stop each member whose metric is worse than the median of the others at the same step.",
)
@click.option(
    "--check",
    "--dry-run",
    is_flag=True,
    help="Only show the number of members, the first commands, and what all would cost.",
)
@output_option
@with_app
def create(
    app: App, check: bool, even_if_never: bool, file: Any, command: tuple[str, ...], **options: Any
) -> None:
    """Create a sweep, and print its id.

    The command contains parameters in braces; each member gets its own values.

    \b
    fairlot sweep create --grid lr=0.1,0.01 --grid depth=2,4 -- python train.py --lr {lr} --depth {depth}
    """
    rules = {name: options.pop(name) for name in ("at_once", "metric", "goal", "stop_at", "median_after")}
    rules["stop_cancels"] = options.pop("stop_cancels") or None
    described = {name: options.pop(name) for name in ("grid", "random", "rows", "count", "seed")}
    parameters = parameters_of(**described)
    spec, place = spec_with_code(
        app,
        file=file,
        command=command,
        options=options,
        uploads=not check,
        parameters=names_of(parameters),
    )
    answer = app.client.preview_sweep(spec=spec, parameters=parameters, at_once=rules["at_once"], **place)
    for note in answer["notes"]:
        talk(note)
    if check:
        for line in estimated(answer):
            talk(line)
        talk("The first members:")
        show_rows(app, answer["first"], [("NAME", "name"), ("COMMAND", "command")], name="name")
        return
    given = {name: value for name, value in rules.items() if value is not None}
    made = app.client.create_sweep(
        spec=spec, parameters=parameters, even_if_never=even_if_never, **place, **given
    )
    show_created(
        app, f'Created sweep {made["id"]} "{made["name"]}" with {plural(made["size"], "member")}.', made
    )


def estimated(preview: Any) -> list[str]:
    """Returns in sentences what a sweep would use and cost."""
    found = preview["estimate"]
    if found is None:
        return [f"{preview['size']} members. Name --team and --cluster to see what they would cost."]
    bound = f", at most {found['at_once']} at once" if found["at_once"] else ""

    def costs(name: str) -> str:
        pairs = (
            f"{float(cost):.2f} {found['currencies'][gpu]} on {gpu}" for gpu, cost in found[name].items()
        )
        return ", ".join(pairs) or "no cost"

    return [
        f"{plural(preview['size'], 'member')} with {plural(found['gpus_per_member'], 'GPU')} each{bound}.",
        f"An hour of a member: {costs('cost_per_hour')}.",
        f"If each runs {found['hours']:g} h ({found['assumption']}):"
        f" {found['gpu_hours']:g} GPU-hours, {costs('cost')}.",
    ]


def parameters_of(
    *, grid: tuple[Any, ...], random: tuple[Any, ...], rows: Any, count: int | None, seed: int | None
) -> Any:
    """Returns the parameters that the options describe. Raises UsageError unless they have exactly one form."""
    given = [name for name, value in (("--grid", grid), ("--random", random), ("--list", rows)) if value]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} cannot be combined.")
    if grid:
        return {
            "kind": "grid",
            "grid": {name: [value_of(one) for one in text.split(",")] for name, text in grid},
        }
    if random:
        return {"kind": "random", "random": dict(random), "count": count, "seed": seed}
    if rows:
        read = csv.DictReader(rows)
        return {
            "kind": "list",
            "rows": [{name: value_of(text or "") for name, text in row.items()} for row in read],
        }
    if count is None:
        raise click.UsageError(
            "Give the parameters: --grid, --random, --list, or only --count for equal members."
        )
    return {"kind": "array", "count": count}


def names_of(parameters: Any) -> list[str]:
    """Returns the names that stand for values in the command of a sweep with these parameters."""
    rows = parameters.get("rows") or [{}]
    return [*(parameters.get("grid") or parameters.get("random") or rows[0]), "index"]


def value_of(text: str) -> Any:
    """Returns the number that the text is in JSON's notation, otherwise the text itself.

    A text such as 3.10, which the number would change to 3.1, stays a text: it may be a version.
    """
    if NUMBER.fullmatch(text):
        number = json.loads(text)
        if repr(number) == text or "e" in text.lower():
            return number
    return text


@sweep.command("list")
@list_options
@watchable
@with_app
def list_sweeps(app: App, limit: int, everything: bool, **filters: Any) -> None:
    """List the sweeps of your teams, newest first or as --sort says."""
    found = app.client.list_sweeps(page_size=min(200, limit + 1), **filters)
    show_rows(app, taken(found, limit, everything), COLUMNS)


@sweep.command("show")
@finding.argument("sweep")
@watchable
@with_app
def show(app: App, sweep: str) -> None:
    """Show a sweep, given by its id or name."""
    show_one(app, app.client.get_sweep(finding.sweep_id_of(app, sweep)), FIELDS)


@sweep.command("members")
@finding.argument("sweep")
@click.option("-s", "--state", type=click.Choice(STATES), help="Only members in this state.")
@click.option("--csv", "as_csv", is_flag=True, help="Write all members as CSV.")
@limit_options
@watchable
@with_app
def members(app: App, sweep: str, as_csv: bool, limit: int, everything: bool, **filters: Any) -> None:
    """List the members of a sweep with their parameters and metrics, and why members failed."""
    number = finding.sweep_id_of(app, sweep)
    if as_csv:
        click.echo(app.client.list_sweep_members_file(number, format="csv").decode(), nl=False)
        return
    show_rows(
        app,
        taken(app.client.list_sweep_members(number, **filters), limit, everything),
        MEMBERS,
        name="index",
    )


@sweep.command("cancel")
@finding.argument("sweep")
@output_option
@with_app
def cancel(app: App, sweep: str) -> None:
    """Cancel a sweep: its jobs are cancelled, and no more are submitted."""
    made = app.client.cancel_sweep(finding.sweep_id_of(app, sweep))
    show_done(app, f"Sweep {made['id']} is being cancelled.", made)


@sweep.command("rerun")
@finding.argument("sweep")
@output_option
@with_app
def rerun(app: App, sweep: str) -> None:
    """Run the failed members of a sweep again."""
    made = app.client.run_failed_members(finding.sweep_id_of(app, sweep))
    show_done(app, f"The failed members of sweep {made['id']} run again.", made)
