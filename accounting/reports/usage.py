"""What was used and what it cost.

Corrected segments count as never booked. Periods are [begins, ends); what a segment has outside is cut
off exactly, so that adjoining periods add up. What is closed is read from sums, the rest from usage segments
(accounting/usage/plan.py); both say the same to the last digit.
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

from accounting.core.consistent_read import one_moment
from accounting.core.csv_lines import csv_line, harmless
from accounting.core.name_order import name_key
from accounting.core.prepared import Question, Sql
from accounting.models import Generation, Tenant, User
from accounting.usage.aggregate import Added, added, adding, run
from accounting.usage.packed_rows import read_rows
from accounting.usage.plan import Row, Scope, Sources
from accounting.usage.ranking import largest_jobs
from accounting.usage.rows import Groups, grouped_rows


class By(StrEnum):
    """What a report may have a row for each of."""

    TENANT = "tenant"
    USER = "user"
    JOB = "job"
    GENERATION = "generation"
    DAY = "day"
    HOUR = "hour"
    LABEL = "label"  # of jobs, by a key that the caller knows of


UNLABELLED = "(none)"  # which no label can be
# The columns of UsageRow that each of them fills. Tenants and users have their present names.
COLUMNS = {
    By.TENANT: {"tenant_id": F("tenant__pk"), "tenant": F("tenant__name")},
    By.USER: {"user_id": F("user__pk"), "user": F("user__username")},
    By.JOB: {"job_id": F("job_id"), "job": F("job_name")},
    By.GENERATION: {"generation_id": F("generation__pk"), "generation": F("generation__name")},
    By.LABEL: {"label": F("job_id")},  # which `adding` replaces by its label
}

# Columns that are no part of what a group is: all of its rows have the same. Comparing them would take its time.
GIVEN = ("job",)


@dataclass(frozen=True, slots=True)
class UsageRow:
    """GPU time and cost of one group; what the report is not grouped by is None."""

    gpu_seconds: Decimal
    cost: Decimal
    currency: str
    segments: int
    begins: datetime | None = None  # of the day or hour, in the report's time zone
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
    """Rows in order of time and names, or some by size; `totals` has one row a currency, and at least one."""

    begins: datetime | None
    ends: datetime | None
    by: tuple[By, ...]
    time_zone: str
    rows: tuple[UsageRow, ...]
    totals: tuple[UsageRow, ...]
    count: int  # of all rows, those too that were not asked for
    most: Decimal  # GPU-seconds of the largest
    lacks_before: datetime | None  # bills until then are archived, and some that it needs are missing


@one_moment()
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
    """Usage that `viewer` may see in [begins, ends), None being no bound, grouped by all of `by`.

    `tenant` narrows it down to a tenant with all below it; the others to one user, job or generation.
    Days and hours are those of `time_zone`; one of the two at most. Of rows in order of size `largest` says
    which are wanted; else they come all, in order of time and names. Without `totals` there are none. All of it is of
    one moment. Three queries; two more for the totals where not all rows are there; one more for the largest jobs.

    This room knows nothing of labels: for those `job_names` gives a name to some jobs (rows of job_id and name); the
    label None is that of all other jobs.
    """
    if By.DAY in by and By.HOUR in by:
        raise ValueError("a report is by day or by hour, not by both")
    if (By.LABEL in by) != (job_names is not None) or {By.LABEL, By.JOB} <= set(by):
        raise ValueError("a report by label needs the jobs' names, and is not by job, too")
    ZoneInfo(time_zone)  # an unknown zone fails here, with its name
    narrow: dict[str, Any] = {"user": user, "job_id": job_id, "generation": generation}
    narrow = {name: value for name, value in narrow.items() if value is not None}
    scope = Scope(viewer, begins, ends, narrow, tenant)
    # No single job's figures are in the sums by user.
    unit = next((unit for unit in by if unit in (By.DAY, By.HOUR)), None)
    by_job = bool({By.JOB, By.LABEL} & set(by)) or job_id is not None
    sources = Sources(scope, Row(unit, time_zone), by_job=by_job)
    if not by:
        found = Added((), 0, Decimal(0))
    elif largest is not None and tuple(by) == (By.JOB,):
        found = _largest_jobs(sources, scope, largest)
    else:
        found = _added_up(sources, scope, tuple(by), time_zone, largest=largest, job_names=job_names)
    rows = [_in_zone(UsageRow(**row), ZoneInfo(time_zone), unit) for row in found.rows]
    of_all, sums = sources, tuple[UsageRow, ...]()
    # Whatever was used is in one of the rows then. But a segment may be in two days, and where bills are archived
    # jobs lack what the totals have.
    has_all = by and unit is None and len(rows) == found.count and not (largest and largest.start)
    if totals and has_all and sources.lacks_before() is None:
        sums = _totals_of(rows)
    elif totals:
        of_all = Sources(scope, Row(None, time_zone), by_job=job_id is not None)
        sums = _totals(of_all, scope, time_zone)
    return UsageReport(
        begins=begins,
        ends=ends,
        by=tuple(by),
        time_zone=time_zone,
        rows=tuple(rows if largest else sorted(rows, key=_in_order)),
        totals=sums,
        count=found.count,
        most=found.most,
        lacks_before=(sources if by else of_all).lacks_before(),
    )


def _added_up(
    sources: Sources,
    scope: Scope,
    by: tuple[By, ...],
    time_zone: str,
    *,
    largest: slice | None = None,
    job_names: QuerySet[Any] | None = None,
) -> Added:
    """Adds up what is in the scope; readers of the same period and time zone share its SQL."""
    names = [name for one in by for name in (["begins"] if one in (By.DAY, By.HOUR) else COLUMNS[one])]
    names.append("currency")

    def adding_of(some: Sources) -> Sql | None:
        # Labels are to be found before anything is added up.
        parts = grouped_rows(some, scope, _groups(by, time_zone), add_sums=By.LABEL not in by)
        return adding(parts, names, largest, job_names=job_names, given=GIVEN)

    # Hardly anybody asks again about the same job or user, or until this very moment.
    if scope.narrow or job_names is not None or not (_is_round(scope.begins) and _is_round(scope.ends)):
        return added(run(adding_of(sources)), names)
    about = sources.about, by, time_zone, largest and (largest.start, largest.stop)
    question = Question(about, lambda tenants: adding_of(sources.of(tenants)))
    return added(question.ask(scope.tenants), names)


def _is_round(moment: datetime | None) -> bool:
    return moment is None or moment.second == moment.microsecond == 0


def _largest_jobs(sources: Sources, scope: Scope, wanted: slice) -> Added:
    """As _added_up by job, but only what is wanted is added up."""
    by_job = Groups({"job_id": F("job_id")}, (), None, "UTC")
    ranked = largest_jobs(read_rows(sources, scope, by_job, ["gpu_seconds"]), wanted)
    if not ranked.jobs:
        return Added((), ranked.count, ranked.most)
    only = Q(job_id__in={job for job, _ in ranked.jobs})
    parts = grouped_rows(sources, scope, _groups((By.JOB,), "UTC"), only=only)
    names = [*COLUMNS[By.JOB], "currency"]
    rows = added(run(adding(parts, names, given=GIVEN)), names).rows
    found = {(row["job_id"], row["currency"]): row for row in rows}
    # In a caller's transaction that sees what others write meanwhile, one may be taken back by now.
    return Added([found[key] for key in ranked.jobs if key in found], ranked.count, ranked.most)


def _totals(sources: Sources, scope: Scope, time_zone: str) -> tuple[UsageRow, ...]:
    found = _added_up(sources, scope, (), time_zone)
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
    """The totals of nothing."""
    return (UsageRow(Decimal(0), Decimal(0), settings.FAIRLOT_CURRENCY, 0),)


def csv_lines(report: UsageReport) -> Iterator[str]:
    """The report's rows as CSV, a header first, without totals. Amounts are exact."""
    head = [name for unit in report.by for name in _csv_columns(unit)]
    yield csv_line([*head, "gpu_seconds", "gpu_hours", "cost", "currency", "segments"])
    for row in report.rows:
        cells = [_csv_cell(row, name) for name in head]
        amounts = [f"{row.gpu_seconds:f}", f"{row.gpu_hours:.6f}", f"{row.cost:f}"]
        yield csv_line([*map(harmless, cells), *amounts, row.currency, row.segments])


def _groups(by: tuple[By, ...], time_zone: str) -> Groups:
    unit = next((unit for unit in by if unit in (By.DAY, By.HOUR)), None)
    columns = {
        "job_id" if one == By.LABEL else name: source
        for one in by
        for name, source in COLUMNS.get(one, {}).items()
    }
    return Groups(columns, GIVEN, unit, time_zone)


def _in_zone(row: UsageRow, zone: ZoneInfo, unit: str | None) -> UsageRow:
    """A day begins with the first of its midnights where that comes twice."""
    if row.begins is None:
        return row
    local = row.begins.astimezone(zone)
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
