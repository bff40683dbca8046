"""The fairness report: the GPU time to which tenants were entitled, and the GPU time that they received.

`compare` weights GPU time by the published weights of generations. `statement` weights it by the measured speeds of a
tenant's jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

import numpy as np
from django.db import connection
from django.db.models import Q

from accounting.models import Generation, Tenant, User
from fairshare.fairness import jain, max_min, own_speeds
from scheduling.core.amounts import Amounts
from scheduling.models import Cluster, JobSpeed
from scheduling.shares.share_hours import read_sums

FINISHED = """
    SELECT tenant_id, count(*), count(rho), percentile_cont(0.5) WITHIN GROUP (ORDER BY rho), max(rho),
           count(*) FILTER (WHERE rho > 1)
      FROM scheduling_finishtime
     WHERE ended_at >= %(begins)s AND ended_at < %(ends)s AND tenant_id = ANY(%(tenants)s)
       AND (%(cluster)s::bigint IS NULL OR cluster_id = %(cluster)s)
     GROUP BY tenant_id
"""


@dataclass(frozen=True)
class Row:
    """The amounts of GPU time (see Amounts: entitled, received, lent and so on) of one tenant on one generation, in
    GPU-seconds.

    Does not include the amounts of the tenants below this tenant.
    """

    tenant: Tenant
    generation: Generation
    amounts: Amounts


@dataclass(frozen=True)
class Compared:
    """The amounts of GPU time (see Amounts: entitled, received, lent and so on) of one tenant, summed over all
    generations.

    They are in weighted GPU-seconds: each generation counts with its published weight.
    """

    tenant: Tenant
    amounts: Amounts

    @property
    def of_entitlement(self) -> float | None:
        return self.amounts.received / self.amounts.entitled if self.amounts.entitled > 1e-9 else None


@dataclass(frozen=True)
class Indices:
    """Fairness indices of one period, computed from one ratio for each tenant.

    The ratio is the GPU time that the tenant received, divided by the GPU time that it should have received by its
    share. Leaves out tenants that should have received none.

    - `jain`: Jain's fairness index of the ratios.
    - `max_min`: the lowest ratio divided by the highest.
    """

    begins: datetime
    ends: datetime
    tenants: int
    jain: float | None
    max_min: float | None


@dataclass(frozen=True)
class Finished:
    """Statistics of the finish-time fairness (ρ) of a tenant's ended training jobs.

    ρ above 1 means that sharing slowed a job down (scheduling/shares/finish_times.py).
    """

    tenant: Tenant
    ended: int
    # jobs with a known ρ; for others too little is recorded, or they did not succeed, or were preemptible at some time
    told: int
    median: float | None
    worst: float | None
    worse_off: int  # jobs with ρ above 1

    @property
    def left_out(self) -> int:
        return self.ended - self.told


@dataclass(frozen=True)
class StatementLine:
    """One line of a tenant's statement: the tenant's amounts of GPU time on one generation, and the speed of its jobs
    there.

    The amounts (see Amounts: entitled, received, lent and so on) are in GPU-seconds. The speed is a multiple of the
    speed on the tenant's slowest generation.
    """

    generation: Generation
    speed: float | None  # None: no job was measured both on this generation and on another one
    amounts: Amounts  # unweighted GPU-seconds
    jobs: int  # jobs whose measurements give the speed

    @property
    def own(self) -> Amounts:
        return self.amounts * (self.speed or 0.0)


@dataclass(frozen=True)
class Statement:
    tenant: Tenant
    lines: list[StatementLine]

    @property
    def total(self) -> Amounts:
        """Returns the tenant's amounts of GPU time (see Amounts: entitled, received, lent and so on), summed over all
        generations.

        They are converted to GPU-seconds of the slowest generation. Leaves out generations without a measured speed.
        """
        return sum((line.own for line in self.lines), Amounts())

    @property
    def left_out(self) -> list[StatementLine]:
        return [line for line in self.lines if line.speed is None]


@dataclass(frozen=True)
class Scope:
    """What a report covers: tenants, a period, and a cluster. `cluster` None means all clusters."""

    tenants: Sequence[Tenant]
    begins: datetime
    ends: datetime
    cluster: Cluster | None = None

    @classmethod
    def of(
        cls, user: User, begins: datetime, ends: datetime, *, tenant: Tenant | None, cluster: Cluster | None
    ) -> Scope:
        """Returns a scope with the tenants that `user` may see. If `tenant` is given, includes only `tenant` and its
        subtree."""
        tenants = Tenant.objects.visible_to(user)
        if tenant is not None:
            tenants = tenants.within(tenant)
        return cls(list(tenants), begins, ends, cluster)


def fairness_rows(scope: Scope) -> list[Row]:
    """Returns a row for each tenant and generation for which the scope has share intervals, ordered by tenant and
    generation."""
    found = read_sums(
        [(scope.begins, scope.ends)], cluster=scope.cluster, tenants=[tenant.pk for tenant in scope.tenants]
    )
    generations = list(Generation.objects.all())
    return [
        Row(tenant, generation, found[0, tenant.pk, generation.pk])
        for tenant in sorted(scope.tenants, key=lambda tenant: tenant.name)
        for generation in generations
        if (0, tenant.pk, generation.pk) in found
    ]


def compare(rows: Iterable[Row]) -> list[Compared]:
    """Returns the amounts of GPU time (see Amounts: entitled, received, lent and so on) of each tenant, summed over
    generations.

    They are in weighted GPU-seconds: each generation counts with its published weight. Tenants are in the order of
    `rows`.
    """
    sums: dict[int, Amounts] = {}
    tenants = {}
    for row in rows:
        tenants[row.tenant.pk] = row.tenant
        weighted = row.amounts * float(row.generation.weight)
        sums[row.tenant.pk] = sums.get(row.tenant.pk, Amounts()) + weighted
    return [Compared(tenant, sums[pk]) for pk, tenant in tenants.items()]


def indices(begins: datetime, ends: datetime, compared: Iterable[Compared]) -> Indices:
    ratios = [one.amounts.delivered for one in compared]
    known = [max(ratio, 0.0) for ratio in ratios if ratio is not None]
    return Indices(begins, ends, len(known), jain(known), max_min(known))


def indices_over_time(scope: Scope, edges: Sequence[datetime]) -> list[Indices]:
    """Returns the fairness indices of each period between two successive times in `edges`."""
    stretches = list(pairwise(edges))
    found = read_sums(stretches, cluster=scope.cluster, tenants=[tenant.pk for tenant in scope.tenants])
    by_pk = {tenant.pk: tenant for tenant in scope.tenants}
    generations = Generation.objects.in_bulk()
    rows: list[list[Row]] = [[] for _ in stretches]
    for (n, tenant, generation), amounts in found.items():
        rows[n].append(Row(by_pk[tenant], generations[generation], amounts))
    return [
        indices(begins, ends, compare(some)) for (begins, ends), some in zip(stretches, rows, strict=True)
    ]


def finished(scope: Scope) -> list[Finished]:
    """Returns statistics of finish-time fairness for each tenant with finished jobs in the scope, ordered by tenant
    name."""
    tenants = {tenant.pk: tenant for tenant in scope.tenants}
    with connection.cursor() as cursor:
        cursor.execute(
            FINISHED,
            {
                "begins": scope.begins,
                "ends": scope.ends,
                "tenants": list(tenants),
                "cluster": scope.cluster.pk if scope.cluster else None,
            },
        )
        found = [Finished(tenants[tenant], *rest) for tenant, *rest in cursor.fetchall()]
    return sorted(found, key=lambda one: one.tenant.name)


def statement(tenant: Tenant, rows: Iterable[Row], scope: Scope) -> Statement:
    """Returns the fairness statement of `tenant`, with a line for each row of the tenant in `rows`.

    Each line is for one generation, and also says how fast the tenant's jobs run on this generation. The speed is
    measured on those jobs of the tenant that held GPUs in the period of `scope`.
    """
    own = [row for row in rows if row.tenant.pk == tenant.pk]
    column = {row.generation.pk: k for k, row in enumerate(own)}
    measured = _measured(tenant, scope, column)
    rate = np.full((len(measured), len(own)), np.nan)
    for j, (_, speeds) in enumerate(measured):
        for generation, steps_per_second in speeds.items():
            rate[j, column[generation]] = steps_per_second
    gpus = np.array([gang for gang, _ in measured], dtype=np.int64)
    speed = own_speeds(rate, gpus) if own and measured else np.full(len(own), np.nan)
    jobs = np.isfinite(rate).sum(axis=0)
    return Statement(
        tenant,
        [
            StatementLine(
                row.generation, None if np.isnan(speed[k]) else float(speed[k]), row.amounts, int(jobs[k])
            )
            for k, row in enumerate(own)
        ],
    )


def _measured(tenant: Tenant, scope: Scope, generations: Iterable[int]) -> list[tuple[int, dict[int, float]]]:
    """Returns (number of GPUs, steps per second by generation id) for each measured job of the tenant."""
    in_time = Q(job__ended_at=None) | Q(job__ended_at__gt=scope.begins)
    speeds = JobSpeed.objects.filter(
        in_time,
        job__tenant=tenant,
        job__first_started_at__lt=scope.ends,
        generation__in=list(generations),
        seconds__gt=0,
        steps__gt=0,
    )
    if scope.cluster:
        speeds = speeds.filter(job__cluster=scope.cluster)
    found: dict[int, tuple[int, dict[int, float]]] = {}
    for job, workers, each, generation, steps, seconds in speeds.values_list(
        "job_id", "job__workers", "job__gpus_per_worker", "generation_id", "steps", "seconds"
    ):
        found.setdefault(job, (workers * each, {}))[1][generation] = steps / seconds
    return list(found.values())
