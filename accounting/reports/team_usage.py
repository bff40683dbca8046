"""Computes the usage and cost of a team for its statement from two reads: usage by user, and usage by job.

The sums equal those of `usage_report` for the same period to the last digit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
from django.db import connection
from django.db.models import F

from accounting.core.name_order import name_key
from accounting.core.packed import Ints, as_moment
from accounting.models import Generation, User
from accounting.reports.usage import UsageRow, nothing_used
from accounting.usage.aggregate import union_all
from accounting.usage.columns import Rows, joined, read_rows, sum_groups
from accounting.usage.plan import UsagePlan
from accounting.usage.queries import Groups
from accounting.usage.reader import UsageReader
from accounting.usage.scope import Buckets

OF_USERS = ("gpu_seconds", "assembling", "idle", "cost", "segments")


@dataclass(frozen=True, slots=True)
class GenerationTime:
    """Represents the GPU-seconds of one generation. `idle` and `assembling` are parts of `held`.

    `assembling` is the time until all workers of a gang run.
    """

    generation: str
    held: Decimal
    idle: Decimal
    assembling: Decimal

    @property
    def busy(self) -> Decimal:
        return self.held - self.idle - self.assembling


@dataclass(frozen=True, slots=True)
class Largest:
    """Represents the largest groups of a report, by GPU time. A group is the usage of one user, job or name in one
    currency.

    `rows`: one row for each of the largest groups. `count`: the number of all groups, including those that are not in
    `rows`.
    """

    rows: Sequence[UsageRow]
    count: int


@dataclass(frozen=True, slots=True)
class LargestJobs(Largest):
    """Represents the jobs with the most GPU time.

    If the period begins or ends within an archived UTC day, the usage of that day is missing.
    """

    lacks_before: datetime | None  # archived bills before this moment are missing; None if no bill is missing


@dataclass(frozen=True, slots=True)
class TeamUsage:
    """Represents a team's usage: by user (most GPU time first), by day (in order of time), and by generation (sorted by
    name).

    `totals` has one row per currency, and at least one row. In time zones whose offset is not a whole hour, `days` may
    lack archived usage (see `lacks_before`).
    """

    totals: Sequence[UsageRow]
    generations: Sequence[UsageRow]
    days: Sequence[UsageRow]  # in the reader's time zone; empty unless requested
    held: Sequence[GenerationTime]
    users: Largest
    lacks_before: datetime | None  # before this moment, days lack archived bills; None if they lack none


@dataclass(frozen=True, slots=True)
class Names:
    """Represents the names of some jobs: `texts[which[i]]` is the name of the job with id `jobs[i]`.

    `jobs` and `texts` contain distinct values in ascending order.
    """

    texts: Sequence[str]
    jobs: Ints
    which: Ints


def usage_of_team(reader: UsageReader, *, zone: ZoneInfo, days: bool, most: int) -> TeamUsage:
    """Returns the usage of the reader's team, including the `most` users with the most GPU time.

    `days`: whether to include the usage by day in the time zone `zone`. Makes four queries in addition to those of the
    reader.
    """
    groups = Groups({name: F(name) for name in ("generation_id", "user_id")})

    def read(unit: str | None) -> tuple[list[Rows], datetime | None]:
        plan = reader.plan(Buckets(unit, zone.key), by_job=False)
        return read_rows(plan, groups, OF_USERS), plan.lacks_before()

    rows, lacks_before = read("day" if days else None)
    by_day = rows if days else []
    if days and lacks_before:
        rows, _ = read(None)
    generations = dict(Generation.objects.values_list("pk", "name")) if rows else {}
    users, count_of_users = _largest(rows, "user_id", most)
    names = dict(User.objects.filter(pk__in=[key for key, _ in users]).values_list("pk", "username"))
    return TeamUsage(
        totals=[row for _, row in _rows_by(rows)] or nothing_used(),
        generations=sorted(
            (
                replace(row, generation_id=key, generation=generations[key])
                for key, row in _rows_by(rows, "generation_id")
            ),
            key=lambda row: (name_key(row.generation or ""), row.currency),
        ),
        days=[
            replace(row, begins=as_moment(key).astimezone(zone))
            for key, row in sorted(_rows_by(by_day, "begins"), key=lambda one: (one[0], one[1].currency))
        ],
        held=_held(rows, generations),
        users=Largest([replace(row, user_id=key, user=names[key]) for key, row in users], count_of_users),
        lacks_before=lacks_before,
    )


def largest_jobs_of(reader: UsageReader, *, most: int) -> LargestJobs:
    """Returns the `most` jobs with the most GPU time. Makes two queries in addition to those of the reader."""
    jobs, count = _largest(reader.job_rows, "job_id", most)
    plan = reader.plan(by_job=True)
    names = _names_of_jobs(plan, [key for key, _ in jobs])
    rows = [replace(row, job_id=key, job=names[key]) for key, row in jobs]
    return LargestJobs(rows, count, plan.lacks_before())


def largest_names_of(reader: UsageReader, names: Names, *, most: int) -> Largest:
    """Groups jobs by the names in `names`, and returns the `most` groups with the most GPU time.

    A name is a text that the caller assigns to a job, such as the value of a label. Jobs that have no name in `names`
    form one group. The field `label` of each result row is the name of the group; None for the jobs without a name.
    """
    named = [_by_name(one, names) for one in reader.job_rows]
    found, count = _largest(named, "name", most)
    texts = [*names.texts, None]
    return Largest([replace(row, label=texts[key]) for key, row in found], count)


def jobs_of(reader: UsageReader) -> Ints:
    """Returns the ids of all jobs with usage in the period, in ascending order."""
    return np.unique(joined(one.keys["job_id"] for one in reader.job_rows))


def _by_name(rows: Rows, names: Names) -> Rows:
    jobs = rows.keys["job_id"]
    if not len(names.jobs):
        return Rows(rows.currency, {"name": np.full_like(jobs, len(names.texts))}, rows.amounts)
    at = np.minimum(np.searchsorted(names.jobs, jobs), len(names.jobs) - 1)
    which = np.where(names.jobs[at] == jobs, names.which[at], len(names.texts))
    return Rows(rows.currency, {"name": which}, rows.amounts)


def _names_of_jobs(plan: UsagePlan, jobs: Sequence[int]) -> dict[int, str]:
    parts = [
        some.filter(job_id__in=jobs).values(by_job_id=F("job_id"), by_job=F("job_name"))
        for some in (*plan.rollups(), *plan.segments())
    ]
    rows = union_all(parts, ["by_job_id", "by_job"])
    if rows is None:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT DISTINCT by_job_id, by_job FROM ({rows[0]}) AS parts", rows[1])  # noqa: S608
        return dict(cursor.fetchall())


def _held(rows: Sequence[Rows], generations: Mapping[int, str]) -> list[GenerationTime]:
    """Returns the GPU time of each generation, summed over all currencies, sorted by name."""
    (keys,), sums = sum_groups(
        [joined(one.keys["generation_id"] for one in rows)],
        [joined(one.amounts[name] for one in rows) for name in ("gpu_seconds", "idle", "assembling")],
    )
    found = [
        GenerationTime(generations[key], *map(_seconds, amounts))
        for key, *amounts in zip(keys.tolist(), *(amount.tolist() for amount in sums), strict=True)
        if any(amounts)
    ]
    return sorted(found, key=lambda one: name_key(one.generation))


def _rows_by(rows: Sequence[Rows], *by: str) -> list[tuple[int, UsageRow]]:
    """Sums the rows by the keys `by`, and returns (value of the first key, row) for each group and currency.

    Without `by`, returns (0, total) for each currency. Leaves out groups whose segments have all been reversed by
    corrections.
    """
    return [
        (int(one.keys[by[0]][i]) if by else 0, _row(one, i))
        for one in (one.summed(*by) for one in rows)
        for i in np.flatnonzero(one.amounts["segments"]).tolist()
    ]


def _largest(rows: Sequence[Rows], by: str, most: int) -> tuple[list[tuple[int, UsageRow]], int]:
    """Groups rows by the key `by` and by currency.

    Returns a pair: the `most` groups with the most GPU time, and the number of all groups. Each group is a (key value,
    row) pair. Groups of equal size are sorted by key value, then by currency.
    """
    added = [one.summed(by) for one in rows]
    found = [
        (-one.amounts["gpu_seconds"][i], int(one.keys[by][i]), one.currency, one, i)
        for one in added
        for i in _of_size(one, most)
    ]
    first = sorted(found, key=lambda one: one[:3])[:most]
    count = sum(int(np.count_nonzero(one.amounts["segments"])) for one in added)
    return [(key, _row(one, i)) for _, key, _, one, i in first], count


def _of_size(rows: Rows, most: int) -> list[int]:
    """Returns the indices of the `most` rows with the most GPU time, unsorted. Ignores rows without segments.

    If several rows have the same GPU time as the smallest of these, returns all of them, so more than `most`.
    """
    there = np.flatnonzero(rows.amounts["segments"])
    sizes = rows.amounts["gpu_seconds"][there]
    if len(there) > most:
        there = there[sizes >= np.partition(sizes, -most)[-most]]
    return there.tolist()


def _row(rows: Rows, i: int) -> UsageRow:
    amounts = rows.amounts
    seconds, cost = (Decimal(int(amounts[name][i])).scaleb(-6) for name in ("gpu_seconds", "cost"))
    return UsageRow(seconds, cost, rows.currency, int(amounts["segments"][i]))


def _seconds(microseconds: int) -> Decimal:
    return Decimal(int(microseconds)).scaleb(-6)
