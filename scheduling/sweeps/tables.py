"""The members of a sweep as a table: ordered by any column, and as CSV lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from django.db.models import BooleanField, ExpressionWrapper, F, Q, Window
from django.db.models.fields.json import KeyTransform
from django.db.models.functions import RowNumber

from accounting.core.csv_lines import csv_line, escape_cell
from scheduling.models import Sweep, SweepMember

PARAMETER, METRIC = "p.", "m."  # prefixes of the columns of parameters and metrics
CHUNK = 1000
FIXED = ("index", "state", "attempts", "job")


def best_of(sweep: Sweep, most: int) -> list[SweepMember]:
    """Returns members that have a value of the sweep's metric, the best first: the `most` best of those that succeeded,
    and the `most` best of the others."""
    if not sweep.metric or sweep.metric not in sweep.metric_names:
        return []
    key = expression_of(f"{METRIC}{sweep.metric}")
    order = [key.desc() if sweep.goal == Sweep.Goal.MAX else key.asc(), F("index").asc()]
    succeeded = Q(state=SweepMember.State.SUCCEEDED)
    place = Window(RowNumber(), partition_by=[ExpressionWrapper(succeeded, BooleanField())], order_by=order)
    found = sweep.members.filter(metrics__has_key=sweep.metric).annotate(place=place)
    return list(found.filter(place__lte=most).order_by(*order))


def best_succeeded(members: Iterable[SweepMember]) -> SweepMember | None:
    """Returns the first member that succeeded; None if there is none."""
    return next((one for one in members if one.state == SweepMember.State.SUCCEEDED), None)


def csv_of(sweep: Sweep) -> Iterator[str]:
    """Yields the lines of a CSV file with all members of a sweep, without loading them all into memory."""
    yield csv_line(
        [
            *FIXED,
            *(escape_cell(name) for name in sweep.names),
            *(escape_cell(f"metric {name}") for name in sweep.metric_names),
        ]
    )
    for member in sweep.members.order_by("index").iterator(chunk_size=CHUNK):
        yield csv_line(
            [
                member.index,
                member.state,
                member.attempts,
                member.job_id or "",
                *(escape_cell(member.parameters.get(name, "")) for name in sweep.names),
                *(
                    float(member.metrics[name]) if name in member.metrics else ""
                    for name in sweep.metric_names
                ),
            ]
        )


def expression_of(column: str) -> KeyTransform:
    """Returns the SQL expression of the column of a parameter or metric. `column` is its name after its prefix."""
    if column.startswith(PARAMETER):
        return KeyTransform(column.removeprefix(PARAMETER), "parameters")
    return KeyTransform(column.removeprefix(METRIC), "metrics")
