"""The members of a sweep as a table: ordered by any column, and as CSV lines."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import QuerySet
from django.db.models.fields.json import KeyTransform

from accounting.core.csv_lines import csv_line, escape_cell
from scheduling.models import Sweep, SweepMember

PARAMETER, METRIC = "p.", "m."  # prefixes of the columns of parameters and metrics
CHUNK = 1000
FIXED = ("index", "state", "attempts", "job")


def best_first(sweep: Sweep, members: QuerySet[SweepMember]) -> QuerySet[SweepMember]:
    """Returns the members with the best value of the sweep's metric first. Members without a value come last."""
    key = expression_of(f"{METRIC}{sweep.metric}")
    best = key.desc(nulls_last=True) if sweep.goal == Sweep.Goal.MAX else key.asc(nulls_last=True)
    return members.order_by(best, "index")


def best_of(sweep: Sweep) -> SweepMember | None:
    """Returns the succeeded member with the best value of the sweep's metric; None if there is none."""
    if sweep.metric not in sweep.metric_names:
        return None
    found = sweep.members.filter(state=SweepMember.State.SUCCEEDED, metrics__has_key=sweep.metric)
    return best_first(sweep, found).first()


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
