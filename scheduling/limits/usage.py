"""Computes the present usage of each kind of limit. accounting.limits.quotas describes the limits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TypeVar

from django.db.models import Count, DurationField, F, Model, Q, QuerySet, Sum, Value
from django.db.models.functions import Coalesce

from accounting.limits.quotas import LimitUsage, limit_usage
from accounting.limits.spending import Account, Spending, limited_by
from accounting.models import Quota, Tenant, User
from accounting.models.quotas import QuotaQuerySet
from scheduling.limits.caps import unbooked
from scheduling.models import Cluster, Job, JobStorage, Lease, Round

# Leases that count against limits on GPUs: those that hold GPUs, and reservations of waiting gangs.
HAD = Q(state__in=Lease.HOLDING) | Q(state=Lease.State.RESERVED, job__state__in=Job.WAITING)
NAMED = ("tenant", "user", "generation")
GIB = 2**30
# Lease, Job or JobStorage.
Row = TypeVar("Row", bound=Model)


def used_by_account(
    quotas: Iterable[Quota], *, now: datetime
) -> list[tuple[Quota, Mapping[Account, Decimal]]]:
    """Returns each limit with its usage by account (tenant, user), in the limit's unit. Leaves out accounts without
    usage."""
    found = list(quotas)
    of_a_period = [quota for quota in found if quota.kind in Quota.OF_A_PERIOD]
    spending = Spending(of_a_period, now, unbooked() if of_a_period else ())
    return [(quota, _used(quota, spending, now)) for quota in found]


def usages_for(quotas: QuotaQuerySet, tenant: Tenant, user: User, *, now: datetime) -> list[LimitUsage]:
    """Returns the present usage of those limits in `quotas` that apply to `user` in `tenant`."""
    found = quotas.in_force_for(tenant, user.pk).select_related(*NAMED)
    return usages_of(found, tenant, user, now=now)


def usages_of(quotas: Iterable[Quota], tenant: Tenant, user: User, *, now: datetime) -> list[LimitUsage]:
    """Returns the present usage of each of `quotas` for `user` in `tenant`.

    All of `quotas` must apply to this user, and must have been read with their tenant, user and generation.
    """
    return [
        limit_usage(quota, used.get(limited_by(quota, tenant.pk, user.pk), Decimal(0)), tenant, user, now)
        for quota, used in used_by_account(quotas, now=now)
    ]


def limits_on(user: User, *, now: datetime) -> list[LimitUsage]:
    """Returns the limits that bind `user`, with their usage.

    Limits on users come with the user's usage in each team where the user is a member. Limits on such a team as a
    whole, or on a tenant above it, come with the usage of the whole tenant. Leaves out limits of tenants that the user
    may not see. Sorted by tenant, from the root down.
    """
    teams = list(Tenant.objects.active().filter(memberships__user=user).order_by("path"))
    lineage = {pk for team in teams for pk in team.lineage}
    whose = Q(user=user) | Q(user=None)
    seen = Tenant.objects.visible_to(user).filter(pk__in=lineage)
    quotas = (
        Quota.objects.filter(whose, tenant__in=seen).select_related(*NAMED).order_by("tenant__path", "pk")
    )
    return [
        limit_usage(quota, used.get(limited_by(quota, team.pk, user.pk), Decimal(0)), team, user, now)
        for quota, used in used_by_account(quotas, now=now)
        for team in (teams if quota.is_of_users else [quota.tenant])
        if team.path.startswith(quota.tenant.path)
    ]


def ran_for(jobs: Iterable[int], now: datetime) -> Mapping[int, timedelta]:
    """Returns the run time of each job, by job id: its time on GPUs over all attempts, 0 if it never held GPUs."""
    held = Coalesce(F("held_until"), Value(now)) - F("held_from")
    rows = Lease.objects.filter(job__in=list(jobs), held_from__isnull=False).order_by()
    sums = rows.values_list("job").annotate(ran=Sum(held, output_field=DurationField()))
    return defaultdict(timedelta, sums)


def longest_run(quotas: QuotaQuerySet, job: Job, *, now: datetime) -> list[LimitUsage]:
    """Returns the usage of those limits on run time in `quotas` that apply to the job.

    The usage is the job's run time in hours; it is 0 for jobs other than training jobs.
    """
    found = list(quotas.in_force_for(job.tenant, job.owner_id).select_related(*NAMED))
    ran = in_hours(ran_for([job.pk], now)[job.pk]) if found and job.kind == Job.Kind.TRAINING else Decimal(0)
    return [limit_usage(quota, ran, job.tenant, job.owner, now) for quota in found]


def gpus_had(quota: Quota, tenant: Tenant, user: User) -> Mapping[int, int]:
    """Returns, by generation id, the number of held and reserved GPUs that count against the limit `quota`.

    If the limit is on users, counts only jobs of `user` in `tenant`.
    """
    leases = under_limit(Lease.objects.filter(HAD), quota, "job__")
    if quota.generation_id is not None:
        leases = leases.filter(generation=quota.generation_id)
    if quota.is_of_users:
        leases = leases.filter(job__tenant=tenant, job__owner=user)
    return dict(leases.order_by().values_list("generation").annotate(Sum("gpus")))


def _used(quota: Quota, spending: Spending, now: datetime) -> Mapping[Account, Decimal]:
    match quota.kind:
        case Quota.Kind.GPUS:
            leases = Lease.objects.filter(HAD)
            if quota.generation_id is not None:
                leases = leases.filter(generation=quota.generation_id)
            return _by_account(quota, under_limit(leases, quota, "job__"), Sum("gpus"), "job__")
        case Quota.Kind.QUEUED_JOBS:
            jobs = Job.objects.waiting().exclude(kind=Job.Kind.REPLICA)
            return _by_account(quota, under_limit(jobs, quota), Count("pk"))
        case Quota.Kind.STORAGE:
            files = under_limit(JobStorage.objects.present(), quota, "job__")
            taken = _by_account(quota, files, Sum("size"), "job__")
            return {account: size / GIB for account, size in taken.items()}
        case Quota.Kind.LONGEST_RUN:
            return _longest(quota, now)
        case Quota.Kind.BORROWED:
            return {(quota.tenant_id, None): _borrowed(quota)}
        case _:
            return {account: spending.used(quota, account) for account in spending.accounts(quota)}


def under_limit(rows: QuerySet[Row], quota: Quota, to_job: str = "") -> QuerySet[Row]:
    """Returns those of `rows` (leases or jobs) to which the limit applies: those of the limit's tenant and of tenants
    below it.

    If the limit is on one user, returns only rows of jobs that this user owns. `to_job` is the lookup prefix from a row
    to its job, such as "job__".
    """
    rows = rows.filter(**{f"{to_job}tenant__path__startswith": quota.tenant.path})
    return rows if quota.user_id is None else rows.filter(**{f"{to_job}owner": quota.user_id})


def _by_account(
    quota: Quota,
    rows: QuerySet[Lease] | QuerySet[Job] | QuerySet[JobStorage],
    amount: Sum | Count,
    to_job: str = "",
) -> Mapping[Account, Decimal]:
    found: dict[Account, Decimal] = defaultdict(Decimal)
    whose = rows.order_by().values_list(f"{to_job}tenant", f"{to_job}owner").annotate(amount)
    for tenant, user, count in whose:
        found[limited_by(quota, tenant, user)] += count
    return found


def _longest(quota: Quota, now: datetime) -> Mapping[Account, Decimal]:
    jobs = Job.objects.filter(kind=Job.Kind.TRAINING, state__in=[Job.State.STARTING, Job.State.RUNNING])
    whose = {
        pk: (tenant, user)
        for pk, tenant, user in under_limit(jobs, quota).values_list("pk", "tenant", "owner")
    }
    found: dict[Account, Decimal] = defaultdict(Decimal)
    for pk, ran in ran_for(whose, now).items():
        account = limited_by(quota, *whose[pk])
        found[account] = max(found[account], in_hours(ran))
    return found


def in_hours(ran: timedelta) -> Decimal:
    return Decimal(str(ran.total_seconds())) / 3600


def _borrowed(quota: Quota) -> Decimal:
    """Returns borrowed GPUs as a fraction of entitled GPUs, for the tenants under the limit: 0.5 if they hold 6 GPUs
    and are entitled to 4.

    This is the largest fraction over all clusters and generations. The entitlement is that of each cluster's latest
    round.
    """
    return max(
        (
            Decimal(str(round(have / earns - 1, 3)))
            for have, earns in shares_of(quota)
            if earns > 0 and have > earns
        ),
        default=Decimal(0),
    )


def shares_of(quota: Quota, *, cluster: Cluster | None = None, more: int = 0) -> list[tuple[float, float]]:
    """Returns a (held GPUs, entitled GPUs) pair for each cluster and generation.

    The numbers are sums over the limit's tenant and all tenants below it. `cluster` None means all attached clusters.

    - Held GPUs include reserved GPUs and the number `more`, but not GPUs of preemptible jobs.
    - Entitled GPUs are those of the cluster's latest round.
    """
    clusters = Cluster.objects.attached() if cluster is None else [cluster]
    below = set(Tenant.objects.subtree_of([quota.tenant_id]).values_list("pk", flat=True))
    found = []
    for one in clusters:
        earned: dict[int, float] = defaultdict(float)
        latest = Round.objects.filter(cluster=one).only("shares").order_by("-number").first()
        for rate in latest.shares if latest else ():
            if rate["tenant"] in below:
                earned[rate["generation"]] += rate["entitled"]
        leases = Lease.objects.filter(
            HAD, cluster=one, job__tenant__in=below, job__preemptible=False
        ).order_by()
        held = dict(leases.values_list("generation").annotate(Sum("gpus")))
        found += [
            (held.get(generation, 0) + more, earns)
            for generation, earns in earned.items()
            if quota.generation_id in {None, generation}
        ]
    return found
