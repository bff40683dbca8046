"""Commands for the prices of GPU types."""

from __future__ import annotations

from typing import Any

import click

from fairlot_client.cli.app import App, talk, with_app
from fairlot_client.cli.arguments import chosen
from fairlot_client.cli.output import Column, output_option, show_done, show_rows, watchable, when


@click.group()
def price() -> None:
    """Show, set and remove the prices of GPU types. For admins."""


@price.command("list")
@watchable
@with_app
def list_prices(app: App) -> None:
    """List past, present and planned prices."""
    columns: list[Column] = [
        ("ID", "id"), ("GPU TYPE", "generation"), ("STATE", "state"), ("SINCE", when("since")),
        ("UNTIL", when("until")), ("PER GPU-HOUR", "per_gpu_hour"), ("IDLE", "idle"),
        ("PREEMPTIBLE", "preemptible"), ("BORROWED", "borrowed"), ("CURRENCY", "currency"),
    ]  # fmt: skip
    show_rows(app, app.client.list_prices(), columns)


@price.command("set")
@click.argument("gpu_type")
@click.argument("per_gpu_hour")
@click.option("--idle", help="Separate price of idle time.")
@click.option("--preemptible", help="Separate price of preemptible time.")
@click.option("--borrowed", help="Separate price of borrowed time.")
@click.option("--from", "since", help="Time such as 2027-01-01T00:00Z; by default now.")
@output_option
@with_app
def set_price(app: App, gpu_type: str, per_gpu_hour: str, **options: Any) -> None:
    """Set the price of a GPU-hour of GPU_TYPE."""
    made = app.client.set_price(generation=gpu_type, per_gpu_hour=per_gpu_hour, **chosen(options))
    show_done(app, f"Set price {made['id']} of {gpu_type}.", made)


@price.command("remove")
@click.argument("price_id", type=int)
@with_app
def remove_price(app: App, price_id: int) -> None:
    """Remove a planned price, so that the price before it stays valid."""
    app.client.remove_price(price_id)
    talk(f"Removed price {price_id}.")
