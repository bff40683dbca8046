"""Wasted GPU time by cause. Each second counts for at most one cause, so the total is at most the booked time.

- *failed*, *cancelled*: all time in the period of training jobs that failed or were cancelled, in the period or later.
- *run again*: for other jobs, the time of work that was lost and repeated (scheduling/leases/lost_work.py). Attempts
  of a job that failed and were retried are among these, unless the job failed or was cancelled in the end.
- *idle*: of the remaining time, the time for which jobs held GPUs without using them.

Sessions and replicas of services never count as failed or cancelled, because users end them after use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
from django.db import connection
from django.db.models import Exists, OuterRef, Q, QuerySet

from accounting.core.calendar import DAY, MICROSECOND, start_of_day
from accounting.core.consistent_read import consistent_read
from accounting.core.packed import MICROSECONDS, Ints, as_array, ints, packed_ints, packed_millionths
from accounting.models import Generation, Tenant, User
from accounting.usage.aggregate import union_all
from accounting.usage.columns import sum_groups
from accounting.usage.reader import JOB, GroupedUsage, UsageReader
from scheduling.models import Job, Lease

CAUSES = ("failed", "cancelled", "run_again", "idle")
IN_VAIN = (Job.State.FAILED, Job.State.CANCELLED)
# Up to this many jobs are read by id; more are read by their end time.
FEW = 5000

# Reads only the index `lost_attempts`.
LOST = f"""
    SELECT {packed_ints("job_id")}, {packed_ints("generation_id")}, {packed_millionths("seconds")}
      FROM (
        SELECT job_id, generation_id,
               sum(gpus * extract(epoch FROM least(held_until, %(ends)s) - greatest(lost_from, %(begins)s))) AS seconds
          FROM scheduling_lease
         WHERE lost_from IS NOT NULL AND held_until > %(begins)s AND lost_from < %(ends)s
           AND (%(jobs)s::bigint[] IS NULL OR job_id = ANY(%(jobs)s::bigint[]))
         GROUP BY job_id, generation_id
      ) attempts
"""  # noqa: S608 - of constants
NOTHING = Decimal(0)


@dataclass(frozen=True, slots=True)
class Wasted:
    """GPU-seconds that were held, and those that were wasted by each cause.

    The figures are for one team, user, generation or job, or for all together. Ids and names that do not apply are
    None.
    """

    held: Decimal = NOTHING
    failed: Decimal = NOTHING
    cancelled: Decimal = NOTHING
    run_again: Decimal = NOTHING
    idle: Decimal = NOTHING
    tenant_id: int | None = None
    tenant: str | None = None
    user_id: int | None = None
    user: str | None = None
    generation: str | None = None
    job_id: int | None = None
    job: str | None = None

    @property
    def wasted(self) -> Decimal:
        return self.failed + self.cancelled + self.run_again + self.idle

    @property
    def part(self) -> Decimal | None:
        """Returns the wasted time as a fraction of the held time; None if no time was held."""
        return self.wasted / self.held if self.held else None


@dataclass(frozen=True, slots=True)
class Waste:
    """The waste in a period, from booked time. In each list, the row with the most waste is first.

    `jobs` may be cut to the jobs with the most waste; `count_of_jobs` is the number of all jobs with waste.
    """

    total: Wasted = field(default_factory=Wasted)
    generations: Sequence[Wasted] = ()
    tenants: Sequence[Wasted] = ()
    users: Sequence[Wasted] = ()
    jobs: Sequence[Wasted] = ()
    count_of_jobs: int = 0  # number of all jobs with waste, including those not in `jobs`


@consistent_read()
def waste(
    viewer: User | None,
    begins: datetime,
    ends: datetime,
    *,
    tenant: Tenant | None = None,
    jobs: int | None = 20,
) -> Waste:
    """Returns the waste of tenants that `viewer` may see (None: all tenants), within the subtree of `tenant` if it is
    given.

    The result lists the `jobs` jobs with the most waste; None lists all jobs. Reads all figures in one database
    snapshot, with at most eleven queries.
    """
    reader = _of_whole_days(UsageReader(viewer, begins, ends, tenant))
    looked = _look(reader, names_jobs=jobs != 0)
    if looked is None:
        return Waste()
    whole, found, causes = looked
    most, count = _most_wasted(found, causes, jobs)
    if most:  # read again, because a listed job also held GPUs on days without waste
        all_held = reader.by_job(Q(job_id__in={job for job, *_ in most}))
        held = _sums(all_held.keys, WHOSE_JOB, [all_held.held])
        most = {key: [*held[key], *wasted] for key, wasted in most.items() if key in held}
    keys, amounts = _of_all(whole, found, causes)
    told = {by: _sums(keys, by, amounts) for by in ((), TENANT, USER, GENERATION)}
    total, tenants, users, generations, of_jobs = _named(told | {WHOSE_JOB: most})
    return Waste(total[0], generations, tenants, users, of_jobs, count)


def wasted_in_all(reader: UsageReader) -> Wasted:
    """Returns only the total of what `waste` returns. Makes no queries for names and for the list of jobs."""
    looked = _look(_of_whole_days(reader), names_jobs=False)
    if looked is None:
        return Wasted()
    keys, amounts = _of_all(*looked)
    return _row({}, _sums(keys, (), amounts)[()], {})


# Columns by which rows are grouped.
TENANT, USER, GENERATION = ("tenant_id",), ("tenant_id", "user_id"), ("generation_id",)
WHOSE_JOB = ("job_id", *USER)
# by key: GPU-microseconds held, then those wasted by each cause
Amounts: TypeAlias = Mapping[tuple[int, ...], Sequence[int]]


def _of_whole_days(reader: UsageReader) -> UsageReader:
    """Returns a reader for a shorter period, without archived UTC days that are only partly in the period.

    An archived day can be read only as a whole.
    """
    begins, ends, archived = reader.begins, reader.ends, reader.books.bills_since
    if archived is not None and begins < archived:
        begins = min(start_of_day(begins - MICROSECOND) + DAY, archived)
    if archived is not None and ends < archived:
        ends = start_of_day(ends)
    return reader.within(begins, max(begins, ends))


def _look(reader: UsageReader, *, names_jobs: bool) -> tuple[GroupedUsage, GroupedUsage, list[Ints]] | None:
    """Returns the usage by user, the usage by job, and the waste; None if no time was held.

    The waste has one array for each cause, with one element for each row of the usage by job. In a report on all
    tenants, the usage by job has only the jobs that failed, were cancelled or lost work. If `names_jobs` is True, it
    also has the jobs with idle time.
    """
    if reader.tenants is None:
        whole = reader.by_user()
        if not len(whole.held):
            return None
        only = _others(reader.begins, reader.ends)
        found = reader.by_job(only | ~Q(idle=0) if names_jobs else only)
        return whole, found, _causes(reader, found)
    found = reader.by_job(Q())
    if not len(found.held):
        return None
    keys, (held, idle) = sum_groups([found.keys[name] for name in JOB[1:]], [found.held, found.idle])
    whole = GroupedUsage(dict(zip(JOB[1:], keys, strict=True)), held, idle)
    return whole, found, _causes(reader, found)


def _others(begins: datetime, ends: datetime) -> Q:
    """Returns a filter for the usage of jobs that lost work in the period, or that failed or were cancelled in the
    period or later."""
    job = OuterRef("job_id")
    lost = Lease.objects.filter(
        job_id=job, lost_from__isnull=False, held_until__gt=begins, lost_from__lt=ends
    )
    return Q(Exists(_failed_or_cancelled(begins, ends).filter(pk=job))) | Q(Exists(lost))


def _failed_or_cancelled(begins: datetime, ends: datetime) -> QuerySet[Job]:
    """Returns the training jobs that started before `ends` and that failed or were cancelled at or after `begins`.

    The query needs only the index `training_in_vain`.
    """
    jobs = Job.objects.filter(kind=Job.Kind.TRAINING, state__in=IN_VAIN)
    return jobs.filter(ended_at__gte=begins, first_started_at__lt=ends)


def _ids_by_state(begins: datetime, ends: datetime, few: str | None) -> dict[str, Ints]:
    """Returns the ids of training jobs that failed and of those that were cancelled, by state.

    These are the jobs that started before `ends` and ended at or after `begins`. `few` is a PostgreSQL array of the ids
    of the jobs to consider, as text; None means all jobs.
    """
    some = union_all([_failed_or_cancelled(begins, ends).order_by().values("state", "pk")], ["state", "pk"])
    if some is None:
        return {}
    sql, values = some
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT state, {packed_ints('pk')} FROM ({sql}) AS jobs"  # noqa: S608 - own names
            " WHERE %s::bigint[] IS NULL OR pk = ANY(%s::bigint[]) GROUP BY state",
            [*values, few, few],
        )
        return {state: ints(data) for state, data in cursor}


def _causes(reader: UsageReader, found: GroupedUsage) -> list[Ints]:
    """Returns the waste of each row of `found` as one array for each cause, in the order of CAUSES."""
    begins, ends = reader.begins, reader.ends
    job, none = found.keys["job_id"], np.zeros_like(found.held)
    distinct = np.unique(job)
    few = as_array(distinct) if len(distinct) <= FEW else None
    ids = _ids_by_state(begins, ends, few)
    with connection.cursor() as cursor:
        cursor.execute(LOST, {"begins": begins, "ends": ends, "jobs": few})
        lost = [ints(data) for data in cursor.fetchone()]
    failed, cancelled = (np.where(np.isin(job, ids.get(state, ())), found.held, none) for state in IN_VAIN)
    run_again = _run_again(reader, found, lost)
    run_again[(failed > 0) | (cancelled > 0)] = 0
    idle = np.where((failed > 0) | (cancelled > 0), none, np.minimum(found.idle, found.held - run_again))
    return [failed, cancelled, run_again, idle]


def _run_again(reader: UsageReader, found: GroupedUsage, lost: Sequence[Ints]) -> Ints:
    """Returns how much lost work is charged to each row of `found`, which may lack some payers of a job.

    `_borne` says how lost work is divided among payers, and what `lost` contains.
    """
    if reader.tenants is None:  # without a restriction, the rows include all payers of a job
        return _borne(found, lost)
    own = np.isin(lost[0], found.keys["job_id"])
    lost = [column[own] for column in lost]
    borne = np.zeros_like(found.held)
    if not len(lost[0]):
        return borne
    payers = reader.of_everyone().by_job(Q(job_id__in=lost[0].tolist()))
    shares = dict(zip(_whose(payers), _borne(payers, lost).tolist(), strict=True))
    some = np.flatnonzero(np.isin(found.keys["job_id"], lost[0]))
    borne[some] = [shares.get(whose, 0) for whose in _whose(found, some)]
    return borne


def _whose(rows: GroupedUsage, some: Ints | None = None) -> list[tuple[int, ...]]:
    columns = (rows.keys[name] if some is None else rows.keys[name][some] for name in JOB)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _borne(payers: GroupedUsage, lost: Sequence[Ints]) -> Ints:
    """Returns how much lost work is charged to each row of `payers`.

    - `payers`: a row for each job, generation and payer (team and user), with all payers of the jobs. The rows of one
      job and generation are next to each other.
    - `lost`: three arrays with one element for each job and generation: job ids, generation ids, and the lost time.

    The lost time is charged to the payers in order, to each at most its held time. For example, of 6 lost hours, two
    payers who held 5 and 3 hours are charged 5 hours and 1 hour.
    """
    jobs, generations, amounts = lost
    if not len(jobs) or not len(payers.held):
        return np.zeros_like(payers.held)
    most = max(int(generations.max()), int(payers.keys["generation_id"].max())) + 1
    of_lost = jobs * most + generations
    order = np.argsort(of_lost)
    of_rows = payers.keys["job_id"] * most + payers.keys["generation_id"]
    at = order[np.minimum(np.searchsorted(of_lost, of_rows, sorter=order), len(order) - 1)]
    due = np.where(of_lost[at] == of_rows, amounts[at], 0)
    before = np.cumsum(payers.held) - payers.held
    begins = np.concatenate([[0], np.flatnonzero(np.diff(of_rows)) + 1])
    before -= np.repeat(before[begins], np.diff(np.append(begins, len(of_rows))))
    borne: Ints = np.clip(due - before, 0, payers.held)
    return borne


def _most_wasted(found: GroupedUsage, causes: Sequence[Ints], most: int | None) -> tuple[Amounts, int]:
    """Returns a pair: the waste of the `most` jobs with the most waste, and the number of all jobs with waste.

    The first element maps the key of each of these jobs to its waste by cause, most waste first. `most` None means all
    jobs with waste.
    """
    if most == 0:
        return {}, 0
    keys, wasted = sum_groups([found.keys[name] for name in WHOSE_JOB], causes)
    sizes = np.sum(wasted, axis=0)
    first = [i for i in np.lexsort((keys[0], -sizes))[:most] if sizes[i] > 0]
    told = {tuple(int(key[i]) for key in keys): [int(amount[i]) for amount in wasted] for i in first}
    return told, int(np.count_nonzero(sizes > 0))


def _of_all(
    whole: GroupedUsage, found: GroupedUsage, causes: Sequence[Ints]
) -> tuple[Mapping[str, Ints], Sequence[Ints]]:
    """Returns all held time and all waste, by team, user and generation.

    The result is a table in two parts: the key columns by name, and the columns of amounts (held time, then the waste
    by each cause). Several rows may have the same keys; the caller must add up their amounts.

    - `whole`: the usage of all jobs, summed by user.
    - `found`: the usage of some jobs, with a row for each job. All other jobs have only idle waste.
    - `causes`: the waste of each row of `found`, as one array for each cause.
    """
    *others, idle = causes
    of_users, sums = sum_groups([found.keys[name] for name in JOB[1:]], [*others, idle - found.idle])
    keys = {
        name: np.concatenate([whole.keys[name], key]) for name, key in zip(JOB[1:], of_users, strict=True)
    }
    in_sums = [whole.held, *(np.zeros_like(whole.held) for _ in others), whole.idle]
    amounts = [np.concatenate(pair) for pair in zip(in_sums, [np.zeros_like(sums[0]), *sums], strict=True)]
    return keys, amounts


def _sums(keys: Mapping[str, Ints], by: Sequence[str], amounts: Sequence[Ints]) -> Amounts:
    """Returns the sums of the amounts for each combination of values in the key columns `by`.

    If `by` is empty, returns one total with the key ().
    """
    groups, sums = sum_groups([keys[name] for name in by], amounts)
    return {
        tuple(int(group[i]) for group in groups): [int(amount[i]) for amount in sums]
        for i in range(len(sums[0]))
    }


def _named(told: Mapping[tuple[str, ...], Amounts]) -> list[list[Wasted]]:
    """Returns a list of Wasted rows with names for each grouping in `told`, in order. In each list, most waste comes
    first.

    `told` maps each grouping, a tuple of key columns such as ("tenant_id",), to a mapping from keys, such as (7,), to
    amounts.
    """

    def of(name: str, names: QuerySet[Any, tuple[int, str]]) -> dict[int, str]:
        return dict(
            names.filter(
                pk__in={key[by.index(name)] for by, rows in told.items() if name in by for key in rows}
            )
        )

    names = {
        "tenant": of("tenant_id", Tenant.objects.values_list("pk", "name")),
        "user": of("user_id", User.objects.values_list("pk", "username")),
        "generation": of("generation_id", Generation.objects.values_list("pk", "name")),
        "job": of("job_id", Job.objects.values_list("pk", "name")),
    }
    return [
        sorted(
            (_row(dict(zip(by, key, strict=True)), amounts, names) for key, amounts in rows.items()),
            key=_in_order,
        )
        for by, rows in told.items()
    ]


def _row(key: Mapping[str, int], amounts: Sequence[int], names: Mapping[str, Mapping[int, str]]) -> Wasted:
    held, failed, cancelled, run_again, idle = (Decimal(amount) / MICROSECONDS for amount in amounts)
    called = {name: known.get(key.get(f"{name}_id", 0)) for name, known in names.items()}
    return Wasted(
        held=held,
        failed=failed,
        cancelled=cancelled,
        run_again=run_again,
        idle=idle,
        tenant_id=key.get("tenant_id"),
        user_id=key.get("user_id"),
        job_id=key.get("job_id"),
        **called,
    )


def _in_order(row: Wasted) -> tuple[object, ...]:
    return -row.wasted, row.job_id or 0, row.tenant or "", row.user or "", row.generation or ""
