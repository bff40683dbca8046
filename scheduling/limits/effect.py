"""Says whom a limit would affect now, before it is set: who is at or over it, and which jobs it would stop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from accounting.limits.quotas import is_reached
from accounting.limits.spending import Account, limited_by
from accounting.models import Quota, Tenant, User
from scheduling.limits.usage import in_hours, ran_for, under_limit, used_by_account
from scheduling.models import Job


@dataclass(frozen=True, slots=True)
class LimitEffect:
    """What a limit would do to one account: a whole team, or a user in a team.

    `used` is the present usage in the limit's unit. `jobs` is the number of jobs of the account that the limit would
    keep from starting; for a limit on run time, of running jobs that have already run longer.
    """

    tenant: Tenant
    user: User | None  # None: the limit is on the whole team
    used: Decimal
    is_reached: bool
    jobs: int


def effects_of_limit(quota: Quota, *, now: datetime) -> list[LimitEffect]:
    """Returns whom the limit `quota` would affect, most usage first. The limit need not be stored.

    Leaves out accounts with neither usage nor such jobs.
    """
    [(_, used)] = used_by_account([quota], now=now)
    jobs = _stopped(quota, used, now)
    accounts = [account for account in {*used, *jobs} if used.get(account) or jobs.get(account)]
    tenants = Tenant.objects.in_bulk({tenant for tenant, _ in accounts})
    users = User.objects.in_bulk({user for _, user in accounts if user is not None})
    found = [
        LimitEffect(
            tenant=tenants[tenant],
            user=None if user is None else users[user],
            used=amount,
            is_reached=is_reached(quota, amount),
            jobs=jobs.get((tenant, user), 0),
        )
        for tenant, user in accounts
        for amount in [used.get((tenant, user), Decimal(0))]
    ]
    return sorted(found, key=lambda one: (-one.used, one.tenant.path, one.user.pk if one.user else 0))


def _stopped(quota: Quota, used: Mapping[Account, Decimal], now: datetime) -> Mapping[Account, int]:
    """Counts, by account, the jobs that the limit would keep from starting, or stop."""
    found: dict[Account, int] = defaultdict(int)
    if quota.kind == Quota.Kind.LONGEST_RUN:
        running = Job.objects.filter(
            kind=Job.Kind.TRAINING, state__in=[Job.State.STARTING, Job.State.RUNNING]
        )
        jobs = list(under_limit(running, quota).defer("spec"))
        ran = ran_for([job.pk for job in jobs], now)
        for job in jobs:
            found[limited_by(quota, job.tenant_id, job.owner_id)] += in_hours(ran[job.pk]) >= quota.limit
        return found
    if quota.kind != Quota.Kind.GPUS and quota.kind not in Quota.OF_A_PERIOD:
        return found  # limits on files and on queued jobs refuse new jobs and stop none
    for job in under_limit(Job.objects.waiting(), quota).defer("spec"):
        account = limited_by(quota, job.tenant_id, job.owner_id)
        had = used.get(account, Decimal(0))
        is_over = had >= quota.limit if quota.kind in Quota.OF_A_PERIOD else had + job.gpus > quota.limit
        concerned = quota.generation_id is None or job.generation_ids == [quota.generation_id]
        found[account] += is_over and concerned
    return found
