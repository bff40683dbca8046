"""The usage report: GPU time and its cost by team, user, job, generation, day, hour or label.

Segments that a correction reversed do not count. Periods are [begins, ends). A segment that extends beyond the period
is cut exactly, so that the figures of adjoining periods add up. Closed time is read from rollups, and all other time
from usage segments (accounting/usage/plan.py). Both sources give the same sums to the last digit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from operator import itemgetter
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db.models import F, Q, QuerySet

from accounting.core.consistent_read import consistent_read
from accounting.core.csv_lines import csv_line, escape_cell
from accounting.core.name_order import name_key
from accounting.core.prepared import KeyedQuery, Sql
from accounting.models import Generation, Tenant, User
from accounting.usage.aggregate import GroupSums, fetch, group_sums, sum_statement
from accounting.usage.columns import read_rows
from accounting.usage.plan import UsagePlan
from accounting.usage.queries import Groups, grouped_rows
from accounting.usage.ranking import largest_jobs
from accounting.usage.scope import Buckets, Scope


class By(StrEnum):
    """Lists the groupings of a usage report."""

    TENANT = "tenant"
    USER = "user"
    JOB = "job"
    GENERATION = "generation"
    DAY = "day"
    HOUR = "hour"
    LABEL = "label"  # the value of the jobs' label with a key that the caller chooses


UNLABELLED = "(none)"  # no label can have this value
# The columns of UsageRow for each grouping. Tenants and users appear with their present names.
COLUMNS = {
    By.TENANT: {"tenant_id": F("tenant__pk"), "tenant": F("tenant__name")},
    By.USER: {"user_id": F("user__pk"), "user": F("user__username")},
    By.JOB: {"job_id": F("job_id"), "job": F("job_name")},
    By.GENERATION: {"generation_id": F("generation__pk"), "generation": F("generation__name")},
    By.LABEL: {"label": F("job_id")},  # `sum_statement` replaces the job id by the job's label
}

# Columns that have one value in each group, so that PostgreSQL need not group by them.
GIVEN = ("job",)


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Represents the GPU time and the cost of one group. Fields by which the report is not grouped are None."""

    gpu_seconds: Decimal
    cost: Decimal
    currency: str
    segments: int
    begins: datetime | None = None  # start of the day or hour, in the report's time zone
    tenant_id: int | None = None
    tenant: str | None = None
    user_id: int | None = None
    user: str | None = None
    job_id: int | None = None
    job: str | None = None
    generation_id: int | None = None
    generation: str | None = None
    label: str | None = None

    @property
    def gpu_hours(self) -> Decimal:
        return self.gpu_seconds / 3600


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Represents a usage report. Its rows are sorted by time and names or, if `largest` was given, by GPU time.

    `totals` has one row per currency, and at least one row.
    """

    begins: datetime | None
    ends: datetime | None
    by: tuple[By, ...]
    time_zone: str
    rows: tuple[UsageRow, ...]
    totals: tuple[UsageRow, ...]
    count: int  # the number of all rows, including those not in `rows`
    most: Decimal  # GPU-seconds of the largest row
    lacks_before: datetime | None  # archived bills before this moment are missing; None if no bill is missing


@consistent_read()
def usage_report(
    viewer: User,
    begins: datetime | None,
    ends: datetime | None,
    *,
    by: Sequence[By] = (),
    time_zone: str = "UTC",
    tenant: Tenant | None = None,
    user: User | None = None,
    job_id: int | None = None,
    generation: Generation | None = None,
    largest: slice | None = None,
    totals: bool = True,
    job_names: QuerySet[Any] | None = None,
) -> UsageReport:
    """Returns the usage in [begins, ends) that `viewer` may see, from one consistent read.

    A bound of None means no bound. `tenant`: includes only this tenant with its subtree. `user`, `job_id`,
    `generation`: includes only the usage of this user, job or generation. All other arguments have the same meaning as
    in `report_of`.
    """
    narrow: dict[str, Any] = {"user": user, "job_id": job_id, "generation": generation}
    narrow = {name: value for name, value in narrow.items() if value is not None}
    scope = Scope(viewer, begins, ends, narrow, tenant)
    return report_of(scope, by=by, time_zone=time_zone, largest=largest, totals=totals, job_names=job_names)


def report_of(
    scope: Scope,
    *,
    by: Sequence[By] = (),
    time_zone: str = "UTC",
    largest: slice | None = None,
    totals: bool = True,
    job_names: QuerySet[Any] | None = None,
) -> UsageReport:
    """Returns the usage in a scope, grouped by all groupings in `by`. Call it inside `consistent_read`.

    - `time_zone`: the time zone of days and hours.
    - `largest`: a slice of the rows sorted by GPU time, for example slice(0, 10). Without it, the report has all rows,
      sorted by time and names.
    - `totals`: whether the report includes totals.
    - `job_names`: a queryset of (job_id, label value), for reports by label only. Jobs that are not in it have the
      label None.

    Raises ValueError in these cases:

    - `by` contains both day and hour, or both label and job.
    - `by` contains a label, and `job_names` is missing.
    - `job_names` is given for a report that is not by label.
    """
    if By.DAY in by and By.HOUR in by:
        raise ValueError("a report can be grouped by day or by hour, but not by both")
    if (By.LABEL in by) != (job_names is not None) or {By.LABEL, By.JOB} <= set(by):
        raise ValueError(
            "a report by label needs the argument `job_names`, and no other report accepts this argument; a report"
            " cannot be grouped by both label and job"
        )
    ZoneInfo(time_zone)  # raises an error with the name if the time zone is unknown
    unit = next((unit for unit in by if unit in (By.DAY, By.HOUR)), None)
    # Rollups by user do not separate the usage of jobs.
    of_one_job = "job_id" in scope.narrow
    by_job = bool({By.JOB, By.LABEL} & set(by)) or of_one_job
    plan = UsagePlan(scope, Buckets(unit, time_zone), by_job=by_job)
    if not by:
        found = GroupSums((), 0, Decimal(0))
    elif largest is not None and tuple(by) == (By.JOB,):
        found = _largest_jobs(scope, largest)
    else:
        found = _sums(plan, tuple(by), largest=largest, job_names=job_names)
    rows = [_in_zone(UsageRow(**row), ZoneInfo(time_zone), unit) for row in found.rows]
    of_all, sums = plan, tuple[UsageRow, ...]()
    # Then the rows contain all usage. But a segment may lie in two days, and in archived time rows by job lack bills
    # that the totals have.
    has_all = by and unit is None and len(rows) == found.count and not (largest and largest.start)
    if totals and has_all and plan.lacks_before() is None:
        sums = _totals_of(rows)
    elif totals:
        of_all = UsagePlan(scope, Buckets(None, time_zone), by_job=of_one_job)
        sums = _totals(of_all)
    return UsageReport(
        begins=scope.begins,
        ends=scope.ends,
        by=tuple(by),
        time_zone=time_zone,
        rows=tuple(rows if largest else sorted(rows, key=_in_order)),
        totals=sums,
        count=found.count,
        most=found.most,
        lacks_before=(plan if by else of_all).lacks_before(),
    )


def _sums(
    plan: UsagePlan,
    by: tuple[By, ...],
    *,
    largest: slice | None = None,
    job_names: QuerySet[Any] | None = None,
) -> GroupSums:
    """Returns the sums of each group, with one query. Caches the SQL of reports that are likely to be repeated."""
    names = [name for one in by for name in (["begins"] if one in (By.DAY, By.HOUR) else COLUMNS[one])]
    names.append("currency")
    scope = plan.scope

    def statement(plan: UsagePlan) -> Sql | None:
        # Labels must be joined before rows are summed.
        parts = grouped_rows(plan, _groups(by), sum_rollups=By.LABEL not in by)
        return sum_statement(parts, names, largest, job_names=job_names, given=GIVEN)

    # SQL about one job or user, or with a bound at this very moment, is not kept: hardly anybody uses it again.
    if scope.narrow or job_names is not None or not (_is_round(scope.begins) and _is_round(scope.ends)):
        return group_sums(fetch(statement(plan)), names)
    about = plan.about, by, largest and (largest.start, largest.stop)
    question = KeyedQuery(about, lambda tenants: statement(plan.of(tenants)))
    return group_sums(question.ask(scope.tenants), names)


def _is_round(moment: datetime | None) -> bool:
    return moment is None or moment.second == moment.microsecond == 0


def _largest_jobs(scope: Scope, wanted: slice) -> GroupSums:
    """Returns the sums of the jobs in the slice `wanted` of all jobs sorted by GPU time.

    Sorts all jobs first, and then computes the exact sums only for the jobs in the slice.
    """
    plan = UsagePlan(scope, by_job=True)
    ranked = largest_jobs(read_rows(plan, Groups({"job_id": F("job_id")}), ["gpu_seconds"]), wanted)
    if not ranked.jobs:
        return GroupSums((), ranked.count, ranked.most)
    only = Q(job_id__in={job for job, _ in ranked.jobs})
    names = [*COLUMNS[By.JOB], "currency"]
    parts = grouped_rows(plan, _groups((By.JOB,)), only=only)
    rows = group_sums(fetch(sum_statement(parts, names, given=GIVEN)), names).rows
    found = {(row["job_id"], row["currency"]): row for row in rows}
    # Inside a transaction that is not repeatable read, a correction may have reversed a job's usage meanwhile.
    return GroupSums([found[key] for key in ranked.jobs if key in found], ranked.count, ranked.most)


def _totals(plan: UsagePlan) -> tuple[UsageRow, ...]:
    found = _sums(plan, ())
    return tuple(UsageRow(**row) for row in sorted(found.rows, key=itemgetter("currency"))) or nothing_used()


def _totals_of(rows: Iterable[UsageRow]) -> tuple[UsageRow, ...]:
    found: dict[str, UsageRow] = {}
    for row in rows:
        sums = (row.gpu_seconds, row.cost, row.currency, row.segments)
        if (other := found.get(row.currency)) is not None:
            sums = (other.gpu_seconds + sums[0], other.cost + sums[1], row.currency, other.segments + sums[3])
        found[row.currency] = UsageRow(*sums)
    return tuple(found[currency] for currency in sorted(found)) or nothing_used()


def nothing_used() -> tuple[UsageRow, ...]:
    """Returns the totals of a report without usage: one row with zeros in Fairlot's present currency."""
    return (UsageRow(Decimal(0), Decimal(0), settings.FAIRLOT_CURRENCY, 0),)


def csv_lines(report: UsageReport) -> Iterator[str]:
    """Yields the report's header and rows as CSV lines, without totals. GPU-seconds and costs are exact."""
    head = [name for unit in report.by for name in _csv_columns(unit)]
    yield csv_line([*head, "gpu_seconds", "gpu_hours", "cost", "currency", "segments"])
    for row in report.rows:
        cells = [_csv_cell(row, name) for name in head]
        amounts = [f"{row.gpu_seconds:f}", f"{row.gpu_hours:.6f}", f"{row.cost:f}"]
        yield csv_line([*map(escape_cell, cells), *amounts, row.currency, row.segments])


def _groups(by: tuple[By, ...]) -> Groups:
    columns = {
        "job_id" if one == By.LABEL else name: source
        for one in by
        for name, source in COLUMNS.get(one, {}).items()
    }
    return Groups(columns, GIVEN)


def _in_zone(row: UsageRow, zone: ZoneInfo, unit: str | None) -> UsageRow:
    """Returns the row with its start converted to local time.

    `unit`: "day" or "hour" if the rows are grouped by day or hour; None if they are not.
    """
    if row.begins is None:
        return row
    local = row.begins.astimezone(zone)
    # A day with two midnights gets the first one.
    return replace(row, begins=local.replace(fold=0) if unit == "day" else local)


def _in_order(row: UsageRow) -> tuple[object, ...]:
    names = (
        name_key(row.tenant or ""),
        name_key(row.user or ""),
        row.job_id or 0,
        name_key(row.generation or ""),
        row.label or "",
        row.currency,
    )
    return (row.begins.timestamp() if row.begins else 0.0, *names)


def _csv_cell(row: UsageRow, name: str) -> object:
    if name == By.LABEL and row.label is None:
        return UNLABELLED
    return getattr(row, "begins" if name in ("day", "hour") else name)


def _csv_columns(unit: By) -> list[str]:
    return [unit] if unit in (By.DAY, By.HOUR) else list(COLUMNS[unit])
