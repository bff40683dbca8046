"""GPU time that was held in vain, by cause; each second in one cause, and no more than was booked.

- *failed*, *cancelled*: all that training jobs held in the period which have failed or were cancelled since.
  Sessions and replicas of services are ended by people; what they held before was of use.
- *run again*: of other jobs, what turns held whose work was lost (scheduling/lost_work.py).
- *idle*: of the rest, what was held while nobody was seen to use it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeAlias

from django.db import connection
from django.db.models import Q
from django.db.models.expressions import RawSQL

from accounting.held_by_job import held_by_job, held_by_user
from accounting.models import Generation, Tenant, User
from scheduling.models import Job

CAUSES = ("failed", "cancelled", "run_again", "idle")

# Most jobs neither failed nor were cancelled nor lost work: of these what was idle was held in vain, which sums by user
# tell. Only the others are looked at job by job. Where several pay for one job, the first ones bear what was lost.
OTHERS = """
    SELECT id FROM scheduling_job WHERE kind = 'training' AND state IN ('failed', 'cancelled') AND ended_at >= %s
     UNION ALL
    SELECT job_id FROM scheduling_lease WHERE lost_from IS NOT NULL AND held_until > %s AND lost_from < %s
"""
# What failed or was cancelled comes from the small index `training_in_vain`, lost turns from `lost_turns`.
WASTE = """
    WITH held AS (
        SELECT by_job_id AS job_id, by_tenant_id AS tenant_id, by_user_id AS user_id,
               by_generation_id AS generation_id, sum(gpu_seconds_sum) AS held, sum(idle_sum) AS idle
          FROM ({by_job}) parts GROUP BY 1, 2, 3, 4 HAVING sum(gpu_seconds_sum) > 0
    ), in_vain AS (
        SELECT id AS job_id, state FROM scheduling_job
         WHERE kind = 'training' AND state IN ('failed', 'cancelled') AND ended_at >= %s
    ), lost AS (
        SELECT job_id, generation_id,
               sum(gpus * extract(epoch FROM least(held_until, %s) - greatest(lost_from, %s))) AS lost
          FROM scheduling_lease
         WHERE lost_from IS NOT NULL AND held_until > %s AND lost_from < %s
         GROUP BY job_id, generation_id
    ), shared AS (
        SELECT held.*, state,
               least(held, greatest(0, lost - (sum(held) OVER payers - held))) AS lost
          FROM held LEFT JOIN in_vain USING (job_id) LEFT JOIN lost USING (job_id, generation_id)
        WINDOW payers AS (PARTITION BY job_id, generation_id ORDER BY tenant_id, user_id)
    ), told AS MATERIALIZED (
        SELECT job_id, tenant_id, user_id, generation_id, held, idle AS all_idle,
               CASE WHEN state = 'failed' THEN held ELSE 0 END AS failed,
               CASE WHEN state = 'cancelled' THEN held ELSE 0 END AS cancelled,
               CASE WHEN state IS NULL THEN coalesce(lost, 0) ELSE 0 END AS run_again,
               CASE WHEN state IS NULL THEN least(idle, held - coalesce(lost, 0)) ELSE 0 END AS idle
          FROM shared
    ), everything AS (
        SELECT by_tenant_id AS tenant_id, by_user_id AS user_id, by_generation_id AS generation_id,
               gpu_seconds_sum AS held, 0 AS failed, 0 AS cancelled, 0 AS run_again, idle_sum AS idle
          FROM ({by_user}) parts
         UNION ALL
        SELECT tenant_id, user_id, generation_id, 0, failed, cancelled, run_again, idle - all_idle FROM told
    )
    SELECT grouping(tenant_id, user_id, generation_id), tenant_id, user_id, generation_id, NULL::bigint,
           sum(held), sum(failed), sum(cancelled), sum(run_again), sum(idle)
      FROM everything GROUP BY GROUPING SETS ((), (tenant_id), (tenant_id, user_id), (generation_id))
    HAVING sum(held) > 0
    UNION ALL (
        SELECT -1, tenant_id, user_id, NULL, job_id, sum(held), sum(failed), sum(cancelled), sum(run_again), sum(idle)
          FROM told GROUP BY tenant_id, user_id, job_id HAVING sum(failed + cancelled + run_again + idle) > 0
         ORDER BY sum(failed + cancelled + run_again + idle) DESC, job_id LIMIT %s
    )
"""
# Of jobs whose idle time is all that they held in vain those who had most of it, ...
MOST_IDLE = """
    SELECT by_job_id, by_tenant_id, by_user_id, sum(idle_sum)
      FROM ({by_job}) parts GROUP BY 1, 2, 3 HAVING sum(idle_sum) > 0 ORDER BY sum(idle_sum) DESC, 1 LIMIT %s
"""
# ... and what these held.
HELD = (
    "SELECT by_job_id, by_tenant_id, by_user_id, sum(gpu_seconds_sum) FROM ({by_job}) parts GROUP BY 1, 2, 3"
)
# What grouping() says of each kind of row.
ALL, BY_TENANT, BY_USER, BY_GENERATION, BY_JOB = 0b111, 0b011, 0b001, 0b110, -1
NOTHING = Decimal(0)
_Scope: TypeAlias = tuple[User | None, datetime, datetime, dict[str, Any]]
NO_JOBS: tuple[str, list[Any]] = (
    "SELECT NULL::bigint AS by_job_id, NULL::bigint AS by_tenant_id, NULL::bigint AS by_user_id,"
    " NULL::bigint AS by_generation_id, 0.0 AS gpu_seconds_sum, 0.0 AS idle_sum WHERE false",
    [],
)


@dataclass(frozen=True, slots=True)
class Wasted:
    """GPU-seconds held by somebody, and of these in vain; what is not told apart is None."""

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
        """Of what was held."""
        return self.wasted / self.held if self.held else None


@dataclass(frozen=True, slots=True)
class Waste:
    """Of what is booked of a period. Those who wasted most come first; of jobs only the first ones are told."""

    total: Wasted = field(default_factory=Wasted)
    generations: Sequence[Wasted] = ()
    tenants: Sequence[Wasted] = ()
    users: Sequence[Wasted] = ()
    jobs: Sequence[Wasted] = ()


def waste(
    viewer: User | None, begins: datetime, ends: datetime, *, tenant: Tenant | None = None, jobs: int = 20
) -> Waste:
    """What `viewer` may see (None: all), of `tenant` with all below it; `jobs` of these. Ten queries at most."""
    narrow = {} if tenant is None else {"tenant__in": Tenant.objects.subtree_of([tenant.pk])}
    scope = (viewer, begins, ends, narrow)
    others = Q(job_id__in=RawSQL(OTHERS, [begins, begins, ends]))  # noqa: S611 - of constants
    by_user, by_job = held_by_user(*scope), held_by_job(*scope, only=others)
    if by_user is None:
        return Waste()
    by_job = by_job or NO_JOBS
    statement = WASTE.format(by_user=by_user[0], by_job=by_job[0])
    with connection.cursor() as cursor:
        cursor.execute(statement, [*by_job[1], begins, ends, begins, begins, ends, *by_user[1], jobs])
        found = cursor.fetchall()
    if jobs:
        found += _idle_jobs(scope, others, jobs)
    rows = sorted(_named(found), key=lambda row: (-row[1].wasted, row[1].job_id or 0, _name(row[1])))

    def of(kind: int) -> list[Wasted]:
        return [row for its_kind, row in rows if its_kind == kind]

    (total,) = of(ALL) or [Wasted()]
    return Waste(total, of(BY_GENERATION), of(BY_TENANT), of(BY_USER), of(BY_JOB)[:jobs])


def _idle_jobs(scope: _Scope, others: Q, jobs: int) -> list[tuple[Any, ...]]:
    """Rows as WASTE has them, of jobs that are none of the `others`."""
    idle = held_by_job(*scope, only=~Q(idle=0) & ~others)
    if idle is None:
        return []
    with connection.cursor() as cursor:
        cursor.execute(MOST_IDLE.format(by_job=idle[0]), [*idle[1], jobs])
        most = cursor.fetchall()
    held = held_by_job(*scope, only=Q(job_id__in={job for job, *_ in most})) if most else None
    if held is None:
        return []
    with connection.cursor() as cursor:
        cursor.execute(HELD.format(by_job=held[0]), held[1])
        whole = {row[:3]: row[3] for row in cursor.fetchall()}
    return [
        (BY_JOB, tenant, user, None, job, whole[job, tenant, user], NOTHING, NOTHING, NOTHING, seconds)
        for job, tenant, user, seconds in most
    ]


def _name(row: Wasted) -> tuple[str, str, str]:
    return row.tenant or "", row.user or "", row.generation or ""


def _named(found: Sequence[Sequence[Any]]) -> Iterator[tuple[int, Wasted]]:
    tenants = dict(Tenant.objects.values_list("pk", "name"))
    generations = dict(Generation.objects.values_list("pk", "name"))
    users = dict(User.objects.filter(pk__in={row[2] for row in found}).values_list("pk", "username"))
    jobs = dict(Job.objects.filter(pk__in={row[4] for row in found}).values_list("pk", "name"))
    for kind, tenant, user, generation, job, held, failed, cancelled, run_again, idle in found:
        yield (
            kind,
            Wasted(
                held=held,
                failed=failed,
                cancelled=cancelled,
                run_again=run_again,
                idle=idle,
                tenant_id=tenant,
                tenant=tenants.get(tenant),
                user_id=user,
                user=users.get(user),
                generation=generations.get(generation),
                job_id=job,
                job=jobs.get(job),
            ),
        )
