"""Builds the queries whose rows a report sums: rollups, and usage segments for time without rollups."""

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
from accounting.usage.plan import UsagePlan
from accounting.usage.scope import Buckets, Scope

EVERYTHING = Q()


@dataclass(frozen=True, slots=True)
class Groups:
    """Represents the columns by which rows are grouped, in addition to the currency and to the plan's days or hours.

    `given`: columns that have only one value in each group, such as the job's name if rows are grouped by job id.
    """

    columns: Mapping[str, Any]
    given: Sequence[str] = ()

    def named(self, **more: Any) -> dict[str, Any]:
        return {
            f"by_{name}": source
            for name, source in {**self.columns, **more, "currency": F("currency")}.items()
        }


def grouped_rows(
    plan: UsagePlan, groups: Groups, *, sum_rollups: bool = True, only: Q = EVERYTHING
) -> list[QuerySet[Any]]:
    """Returns queries with one row per group. If `sum_rollups` is False, queries of rollups have one row per rollup.

    The columns are by_NAME for each column NAME in `groups`, and gpu_seconds_sum, cost_sum and segments_sum. `only`: a
    condition that all rows must fulfil.
    """
    rollups = (
        _summed_rollups(plan, groups, only) if sum_rollups else _each_of_rollups(plan, groups, SUMS, only)
    )
    return [*rollups, *(_summed(found, groups, begins) for found, begins in _pieces(plan, only))]


def each_row(
    plan: UsagePlan, groups: Groups, amounts: Sequence[str], *, only: Q = EVERYTHING
) -> list[QuerySet[Any]]:
    """Returns queries that do not sum rows: each rollup is one row, and so is each segment.

    The columns are by_NAME for each column NAME in `groups`, and NAME_sum for each NAME in `amounts`. `only`: a
    condition that all rows must fulfil.

    A segment is cut where the report's period, or one of its days or hours, begins or ends. Each part gets idle and
    assembling time (not all workers of the gang ran yet) in proportion to its length.
    """
    start, end = F("part_start"), F("part_end")
    of_each = {
        "gpu_seconds": gpu_seconds_of_each(start, end),
        "assembling": part_of_each("assembling", start, end),
        "idle": part_of_each("idle", start, end),
        "cost": cost_of_each(start, end),
        "segments": Value(1),
    }
    wanted = {f"{name}_sum": of_each[name] for name in amounts}
    segments = [found.values(**groups.named(**begins), **wanted) for found, begins in _pieces(plan, only)]
    return [*_each_of_rollups(plan, groups, amounts, only), *segments]


def _each_of_rollups(
    plan: UsagePlan, groups: Groups, amounts: Sequence[str], only: Q
) -> Iterator[QuerySet[Any]]:
    named = groups.named(**_bucket_of_rollups(plan.buckets))
    for found in plan.rollups():
        yield found.filter(only).values(**named, **{f"{name}_sum": F(name) for name in amounts})


def _summed_rollups(plan: UsagePlan, groups: Groups, only: Q) -> Iterator[QuerySet[Any]]:
    for found in plan.rollups():
        sums = {f"{name}_sum": Sum(name) for name in SUMS}
        yield _grouped(found.filter(only), groups, _bucket_of_rollups(plan.buckets), **sums)


def _bucket_of_rollups(buckets: Buckets) -> dict[str, Any]:
    return {"begins": start_of(buckets.unit, F("hour"), buckets.time_zone)} if buckets.unit else {}


def _pieces(plan: UsagePlan, only: Q) -> Iterator[tuple[UsageSegmentQuerySet, dict[str, Any]]]:
    """Yields pairs (query, columns). Each query returns usage segments, clipped to the report's period.

    If the report is divided into days or hours, the segments are cut at these too. A segment that is cut into two parts
    is in two queries, once with each part. `columns` then has one entry, "begins": the expression for the start of the
    segment's day or hour. If the report is not divided, `columns` is empty.

    `only`: a condition that all segments must fulfil.
    """
    scope, unit, zone = plan.scope, plan.buckets.unit, plan.buckets.time_zone
    for found in (some.filter(only) for some in plan.segments()):
        if unit is None:
            yield clipped(found, LOWER, UPPER, scope), {}
            continue
        # A segment lies within one UTC hour. In time zones with offsets of half hours it may reach into a second local
        # hour or day, but never a third. The first query yields the last parts, the second query the parts before.
        last = start_of(unit, UPPER - timedelta(microseconds=1), zone)
        yield clipped(found, latest(LOWER, last), UPPER, scope), {"begins": last}
        crossing = found.annotate(last_part=last).filter(last_part__gt=LOWER)
        # On a day with two midnights, date_trunc returns the second midnight, which is after part of the day.
        yield clipped(crossing, LOWER, earliest(UPPER, last), scope), {"begins": start_of(unit, LOWER, zone)}


def clipped(found: UsageSegmentQuerySet, start: Any, end: Any, scope: Scope) -> UsageSegmentQuerySet:
    """Clips each segment to the part of [start, end) that lies in the scope's period.

    Adds the bounds of the clipped segment as `part_start` and `part_end`. Leaves out segments of which nothing remains.
    """
    start = latest(start, moment(scope.begins) if scope.begins else None)
    end = earliest(end, moment(scope.ends) if scope.ends else None)
    return found.annotate(part_start=start, part_end=end).filter(part_start__lt=F("part_end"))


def _summed(found: UsageSegmentQuerySet, groups: Groups, begins: dict[str, Any]) -> QuerySet[Any]:
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
    """Returns a query with one row for each group.

    - `begins`: the column with the start of the day or hour, by name; empty if rows are not grouped by time.
    - `sums`: the expressions of the summed columns, by name.
    """
    named, given = groups.named(**begins), {f"by_{name}" for name in groups.given}
    keys = {name: source for name, source in named.items() if name not in given}
    rest = {name: AnyValue(source) for name, source in named.items() if name in given}
    grouped: QuerySet[Any] = found.values(**keys).annotate(**rest, **sums)
    return grouped
