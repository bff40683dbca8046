"""The queries that bring what a report adds up: of sums, and of usage segments where there are none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Count, F, Q, QuerySet, Sum, Value

from accounting.models.usage import UsageSegmentQuerySet
from accounting.usage.aggregate import SUMS, AnyValue
from accounting.usage.clipping import (
    LOWER,
    UPPER,
    cost_between,
    cost_of_each,
    earliest,
    gpu_seconds_between,
    gpu_seconds_of_each,
    latest,
    moment,
    part_of_each,
    start_of,
)
from accounting.usage.plan import Scope, Sources

EVERYTHING = Q()


@dataclass(frozen=True, slots=True)
class Groups:
    """What is told apart: columns by name, of which those `given` are alike in a group, and currencies always.

    With a `unit`, "day" or "hour" of `time_zone`, also each of these, by when it `begins`.
    """

    columns: Mapping[str, Any]
    given: Sequence[str]
    unit: str | None
    time_zone: str

    def named(self, **more: Any) -> dict[str, Any]:
        return {
            f"by_{name}": source
            for name, source in {**self.columns, **more, "currency": F("currency")}.items()
        }


def grouped_rows(
    sources: Sources, scope: Scope, groups: Groups, *, add_sums: bool = True, only: Q = EVERYTHING
) -> list[QuerySet[Any]]:
    """Rows that name the group by_NAME, and have gpu_seconds_sum, cost_sum and segments_sum; of what `only` means.

    Added up within a query; sums of hours and days that are not to be (`add_sums`) as they are.
    """
    return [
        *(
            _added_up_of_sums(sources, groups, only)
            if add_sums
            else _each_of_sums(sources, groups, SUMS, only)
        ),
        *(_added_up(found, groups, begins) for found, begins in _pieces(sources, scope, groups, only)),
    ]


def each_row(
    sources: Sources, scope: Scope, groups: Groups, amounts: Sequence[str], *, only: Q = EVERYTHING
) -> list[QuerySet[Any]]:
    """Rows that name the group by_NAME, and each of `amounts` NAME_sum, none of them added up.

    Nobody knows when in a segment it was idle: what the edge of a period or day cuts has as much of it as if it were
    even, to a microsecond.
    """
    start, end = F("part_start"), F("part_end")
    of_each = {
        "gpu_seconds": gpu_seconds_of_each(start, end),
        "assembling": part_of_each("assembling", start, end),
        "idle": part_of_each("idle", start, end),
        "cost": cost_of_each(start, end),
        "segments": Value(1),
    }
    told = {f"{name}_sum": of_each[name] for name in amounts}
    segments = [
        found.values(**groups.named(**begins), **told)
        for found, begins in _pieces(sources, scope, groups, only)
    ]
    return [*_each_of_sums(sources, groups, amounts, only), *segments]


def _each_of_sums(
    sources: Sources, groups: Groups, amounts: Sequence[str], only: Q
) -> Iterator[QuerySet[Any]]:
    named = groups.named(**_begins_of_sums(groups))
    for found in sources.sums():
        yield found.filter(only).values(**named, **{f"{name}_sum": F(name) for name in amounts})


def _added_up_of_sums(sources: Sources, groups: Groups, only: Q) -> Iterator[QuerySet[Any]]:
    for found in sources.sums():
        sums = {f"{name}_sum": Sum(name) for name in SUMS}
        yield _grouped(found.filter(only), groups, _begins_of_sums(groups), **sums)


def _begins_of_sums(groups: Groups) -> dict[str, Any]:
    return {"begins": start_of(groups.unit, F("hour"), groups.time_zone)} if groups.unit else {}


def _pieces(
    sources: Sources, scope: Scope, groups: Groups, only: Q
) -> Iterator[tuple[UsageSegmentQuerySet, dict[str, Any]]]:
    """Segments, clipped, and of which day or hour each is; what lies in two of them comes as two parts."""
    unit, zone = groups.unit, groups.time_zone
    for found in (some.filter(only) for some in sources.segments()):
        if unit is None:
            yield clipped(found, LOWER, UPPER, scope), {}
            continue
        # A segment keeps to one UTC hour, but where clocks differ from UTC by half hours it may reach into
        # a second local hour or day, never a third: the last parts come first, then the parts before those.
        last = start_of(unit, UPPER - timedelta(microseconds=1), zone)
        yield clipped(found, latest(LOWER, last), UPPER, scope), {"begins": last}
        crossing = found.annotate(last_part=last).filter(last_part__gt=LOWER)
        # Where a midnight comes twice its day begins, as the database has it, only after some of its time.
        yield clipped(crossing, LOWER, earliest(UPPER, last), scope), {"begins": start_of(unit, LOWER, zone)}


def clipped(found: UsageSegmentQuerySet, start: Any, end: Any, scope: Scope) -> UsageSegmentQuerySet:
    """Segments with the part of each between `start` and `end` that is in the period, without those of no such part."""
    start = latest(start, moment(scope.begins) if scope.begins else None)
    end = earliest(end, moment(scope.ends) if scope.ends else None)
    return found.annotate(part_start=start, part_end=end).filter(part_start__lt=F("part_end"))


def _added_up(found: UsageSegmentQuerySet, groups: Groups, begins: dict[str, Any]) -> QuerySet[Any]:
    start, end = F("part_start"), F("part_end")
    return _grouped(
        found,
        groups,
        begins,
        gpu_seconds_sum=gpu_seconds_between(start, end),
        cost_sum=cost_between(start, end),
        segments_sum=Count("pk"),
    )


def _grouped(found: QuerySet[Any], groups: Groups, begins: dict[str, Any], **sums: Any) -> QuerySet[Any]:
    """One row for each group that the columns and the currency make."""
    named, given = groups.named(**begins), {f"by_{name}" for name in groups.given}
    keys = {name: source for name, source in named.items() if name not in given}
    rest = {name: AnyValue(source) for name, source in named.items() if name in given}
    grouped: QuerySet[Any] = found.values(**keys).annotate(**rest, **sums)
    return grouped
