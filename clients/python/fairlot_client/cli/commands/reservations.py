"""Commands for advance reservations."""

from __future__ import annotations

from typing import Any

import click

from fairlot_client.cli.app import App, talk, with_app
from fairlot_client.cli.arguments import chosen
from fairlot_client.cli.output import (
    Column,
    output_option,
    show_done,
    show_one,
    show_rows,
    watchable,
    when,
)

FIELDS: list[Column] = [
    ("ID", "id"), ("NAME", "name"), ("STATE", "state"), ("CLUSTER", "cluster"), ("TEAM", "team"),
    ("GPUS", "gpus"), ("GPU TYPE", "generation"), ("BEGINS", when("begins")), ("ENDS", when("ends")),
    ("WEEKLY UNTIL", when("weekly_until")), ("LENDS", "lends"),
    ("NODES", lambda one: ", ".join(f"{node} ({gpus})" for node, gpus in one["nodes"].items())),
]  # fmt: skip
EFFECT: list[Column] = [
    ("GPU-HOURS", lambda one: f"{one['effect']['gpu_hours']:g}"),
    ("COST AT MOST", lambda one: one["effect"]["most_cost"]),
    ("RUNNING JOBS", lambda one: ", ".join(f"{job['name']} of {job['team']}" for job in one["effect"]["running"])),
    ("WAITING JOBS", lambda one: ", ".join(f"{row['team']} {row['jobs']}" for row in one["effect"]["waiting"])),
    ("OTHERS LOSE", lambda one: ", ".join(f"{row['team']} {row['less']:.3g} GPUs" for row in one["effect"]["losses"])),
]  # fmt: skip


@click.group()
def reservation() -> None:
    """Read advance reservations of your teams; operators make and cancel them."""


@reservation.command("list")
@watchable
@with_app
def list_reservations(app: App) -> None:
    """List the advance reservations of your teams."""
    columns: list[Column] = [
        ("ID", "id"), ("NAME", "name"), ("STATE", "state"), ("TEAM", "team"), ("GPUS", "gpus"),
        ("GPU TYPE", "generation"), ("BEGINS", when("begins")), ("ENDS", when("ends")),
        ("WEEKLY UNTIL", when("weekly_until")),
    ]  # fmt: skip
    show_rows(app, app.client.list_advance_reservations(), columns)


@reservation.command("show")
@click.argument("reservation_id", type=int)
@output_option
@with_app
def show(app: App, reservation_id: int) -> None:
    """Show one advance reservation."""
    show_one(app, app.client.get_advance_reservation(reservation_id), FIELDS)


@reservation.command("create")
@click.argument("cluster")
@click.argument("team")
@click.option("--name", required=True, help="What it is for.")
@click.option("--gpu-type", "generation", required=True, help="Type of the GPUs.")
@click.option("--gpus", type=int, help="Number of GPUs, on nodes that Fairlot chooses.")
@click.option("--node", "nodes", multiple=True, help="All GPUs of this node instead. Repeat it for several.")
@click.option("--from", "begins", required=True, help="Time such as 2027-01-04T08:00Z.")
@click.option("--until", "ends", required=True, help="Time such as 2027-01-04T12:00Z.")
@click.option("--weekly-until", help="Repeat weekly until this time.")
@click.option("--zone", help="Time zone in which weekly windows keep their hours; by default UTC.")
@click.option("--keep-free", is_flag=True, help="Do not lend what the team leaves.")
@click.option("--dry-run", is_flag=True, default=None, help="Only show whom it would hit.")
@output_option
@with_app
def create(
    app: App, cluster: str, team: str, nodes: tuple[str, ...], keep_free: bool, **options: Any
) -> None:
    """Reserve GPUs of CLUSTER for TEAM. For operators."""
    made = app.client.create_advance_reservation(
        cluster=cluster, team=team, nodes=list(nodes), lends=not keep_free, **chosen(options)
    )
    if made["id"] is None:
        show_one(app, made, [*FIELDS, *EFFECT])
    else:
        show_done(app, f"Made advance reservation {made['id']}.", made)


@reservation.command("cancel")
@click.argument("reservation_id", type=int)
@with_app
def cancel(app: App, reservation_id: int) -> None:
    """Cancel an advance reservation. For operators."""
    app.client.cancel_advance_reservation(reservation_id)
    talk(f"Cancelled advance reservation {reservation_id}.")
