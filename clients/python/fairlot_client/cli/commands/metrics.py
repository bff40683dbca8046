"""The command that shows the metrics of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from fairlot_client.cli import finding
from fairlot_client.cli.app import App, talk, with_app
from fairlot_client.cli.output import Column, points_option, show_rows, watchable

BARS = "▁▂▃▄▅▆▇█"
BYTES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
WORDS = {
    "names": "values of further metrics",
    "long_names": "values with too long names",
    "not_numbers": "values that are no numbers, such as NaN",
    "bytes": "bytes of output that came too fast",
    "damaged": "damaged event files",
    "files": "further event files",
}
COLUMNS: list[Column] = [
    ("METRIC", "name"), ("GPU", "gpu"), ("LAST", lambda one: number(one, "last")),
    ("MEAN", lambda one: number(one, "mean")), ("LOWEST", lambda one: number(one, "lowest")),
    ("HIGHEST", lambda one: number(one, "highest")),
]  # fmt: skip


@click.command()
@finding.argument("job")
@click.option("--from", "from_", help="Begin of the period, such as 2026-03-01T12:00:00Z.")
@click.option("--to", help="End of the period.")
@click.option("-n", "--name", "names", multiple=True, help="Only this metric. Repeat for several.")
@click.option("--by-step", is_flag=True, help="By the steps that the program reports, instead of by time.")
@points_option
@watchable
@with_app
def metrics(
    app: App, job: str, *, names: tuple[str, ...], by_step: bool, points: int, **period: str | None
) -> None:
    """Show what the GPUs and the program of a job did over time, or at each step.

    \b
    fairlot metrics train
    fairlot metrics train --by-step
    fairlot metrics 42 --name loss --points 500 -o json
    """
    answer = app.client.get_job_metrics(
        finding.job_id_of(app, job), by="step" if by_step else "time", most_points=points, **period
    )
    rows = [one for one in answer["series"] if not names or one["name"] in names]
    over: Column = (f"OVER {answer['axis'].upper()}".strip(), lambda one: sparkline(one["points"]))
    show_rows(app, rows, [*COLUMNS, over], name="name")
    if app.output == "table":
        if not answer["axis"]:
            talk("The program reports no steps.")
        for word, count in answer["left_out"].items():
            talk(f"Left out: {count} {WORDS.get(word, word)}.")


def number(series: Mapping[str, Any], key: str) -> str:
    """Returns a figure of the whole period with its unit."""
    value, unit = series["whole"][key], series["unit"]
    if unit == "bytes":
        size, unit = next((one for one in BYTES if abs(value) >= one[0]), (1, "bytes"))
        value /= size
    return f"{value:.4g} {unit}".strip()


def sparkline(points: Sequence[Mapping[str, Any]]) -> str:
    """Returns the means of the points as a line of bars, from the lowest to the highest."""
    means = [point["mean"] for point in points]
    if not means:
        return ""
    low, high = min(means), max(means)
    if high <= low:
        return BARS[0] * len(means)
    # Halves, because the difference of two finite numbers may be infinite.
    return "".join(BARS[round((len(BARS) - 1) * (one / 2 - low / 2) / (high / 2 - low / 2))] for one in means)
