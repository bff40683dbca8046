"""Computes how much of each limit is used. Also writes messages about limits that are reached or that forbid a job."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import ROUND_DOWN, Decimal

from accounting.core.wording import counted, exact_number
from accounting.limits.periods import period_of
from accounting.limits.spending import Account, limited_by
from accounting.models import Generation, Quota, Tenant, User

# The smallest step of limits on GPU-hours and money.
LEAST = Decimal("0.001")
NEAR = Decimal("0.8")  # of a limit: from here on pages warn


@dataclass(frozen=True, slots=True)
class LimitUsage:
    """Represents a limit, and how much of it a tenant or user has used. The usage is in the unit of the limit.

    For a limit on run time, the usage is the hours of the longest present run. For a limit on borrowing, the usage is a
    fraction of the entitlement.
    """

    quota: Quota
    used: Decimal
    tenant: Tenant  # the limit is on this tenant, on a tenant above, or on a user in it
    user: User | None = None  # the limited user, if the limit is on users
    ends: datetime | None = None  # the end of the limit's period; None if the period is rolling

    @property
    def is_reached(self) -> bool:
        return is_reached(self.quota, self.used)

    def is_exceeded(self, more: Decimal | int = 0) -> bool:
        """Returns whether the present usage plus `more` exceeds the limit.

        For a limit on GPU-hours or money, `more` has no effect: returns whether the usage has reached the limit.
        """
        if self.quota.kind in Quota.OF_A_PERIOD:
            return self.used >= self.quota.limit
        return self.used + more > self.quota.limit

    @property
    def is_near(self) -> bool:
        """Returns whether the usage is at least NEAR of the limit, but has not reached it."""
        return not self.is_reached and self.quota.limit > 0 and self.used >= self.quota.limit * NEAR

    def with_more(self, more: int) -> LimitUsage:
        """Returns a copy in which the usage is `more` higher."""
        return replace(self, used=self.used + more)

    @property
    def whose(self) -> str:
        """Returns the name of the tenant or user to whom the limit applies."""
        return f"{self.user.get_username()} in {self.tenant.name}" if self.user else self.quota.whose()

    @property
    def account(self) -> Account:
        return limited_by(self.quota, self.tenant.pk, self.user.pk if self.user else None)

    def __str__(self) -> str:
        quota, used, limit = self.quota, figure(self.used), figure(self.quota.limit)
        match quota.kind:
            case Quota.Kind.GPUS:
                what = quota.generation.name if quota.generation else "GPUs"
                return f"{self.whose} has {used} {what} at once, and the limit is {limit}"
            case Quota.Kind.QUEUED_JOBS:
                jobs = "job" if self.used == 1 else "jobs"
                return f"{self.whose} has {used} waiting {jobs}, and the limit is {limit}"
            case Quota.Kind.LONGEST_RUN:
                return f"The time limit of {self.whose} is {limit} h, and the job has run for {used} h"
            case Quota.Kind.STORAGE:
                return f"The files of jobs of {self.whose} take {used} GiB, and the limit is {limit} GiB"
            case Quota.Kind.BORROWED:
                of = f" of {quota.generation.name}" if quota.generation else ""
                return f"{self.whose} has borrowed {used} times its entitlement{of}, and the limit is {limit} times"
            case _:
                return f"{self.whose} has used {used} of {limit} {quota.unit()} {quota.when()}"

    def in_words(self, seen: Container[int]) -> str:
        """Returns a sentence that states the usage and the limit.

        `seen`: the ids of the tenants that the reader may see. If the limit's tenant is not among them, the sentence
        only says that a limit of a team above is reached, without the name and figures.
        """
        if self.quota.tenant_id in seen:
            return str(self)
        return f"A limit of a team above {self.tenant.name} is reached"

    def in_short(self, seen: Container[int]) -> str:
        """Returns a short form of the sentence from `in_words`."""
        if self.quota.tenant_id not in seen:
            return f"{a_limit_above(self.tenant)} is reached"
        quota = self.quota
        gpus = quota.generation.name if quota.generation else "GPUs"
        match quota.kind:
            case Quota.Kind.GPUS:
                return f"{self.whose}: limit of {figure(quota.limit)} {gpus} at once"
            case Quota.Kind.BORROWED:
                return f"{self.whose}: limit on borrowed {gpus}"
            case _:
                spent = "is used up" if self.is_reached else "is nearly used up"
                return f"{self.whose}: limit of {figure(quota.limit)} {quota.unit()} {spent}"


def is_reached(quota: Quota, used: Decimal) -> bool:
    """Returns whether the usage has reached the limit.

    A limit of 0 on GPU-hours or money counts as reached even without usage. Any other limit of 0 needs some usage.
    """
    return used >= quota.limit and (used > 0 or quota.kind in Quota.OF_A_PERIOD)


def a_limit_above(tenant: Tenant) -> str:
    """Returns the phrase "a limit of a team above NAME", where NAME is the name of `tenant`.

    Messages use this phrase for readers who may not see the team that has the limit.
    """
    return f"a limit of a team above {tenant.name}"


def visible_lineage(tenant: Tenant, reader: User | None) -> frozenset[int]:
    """Returns the ids of `tenant` and of the ancestors of `tenant` that `reader` may see.

    If `reader` is None, returns only the id of `tenant`. This suits a text for several readers, because some of them
    may not see the ancestors.
    """
    if reader is None:
        return frozenset({tenant.pk})
    seen = Tenant.objects.visible_to(reader).filter(pk__in=tenant.lineage).values_list("pk", flat=True)
    return frozenset({tenant.pk, *seen})


def limit_usage(quota: Quota, used: Decimal, tenant: Tenant, user: User | None, now: datetime) -> LimitUsage:
    """Returns the LimitUsage (a limit with its usage) of a limit that applies to `user` in `tenant`.

    `used`: the usage in the limit's unit. `now`: the present time. If the limit is for a calendar period, this time
    decides when the period ends.
    """
    ends = period_of(quota.period, quota.days, now)[1] if quota.period else None
    return LimitUsage(quota, used, tenant, user if quota.is_of_users else None, ends)


def figure(amount: Decimal) -> str:
    """Returns an amount as text. Rounds down, so that an amount below a limit never looks equal to the limit."""
    return exact_number(amount.quantize(LEAST, ROUND_DOWN))


def never_fits(
    tenant: Tenant,
    generation_ids: Sequence[int],
    gpus: int,
    user_id: int | None = None,
    *,
    seen: Container[int] | None = None,
) -> str | None:
    """Returns why limits forbid a gang of `gpus` GPUs on every generation, even if no other job runs.

    Returns None if the gang is allowed on some generation. `generation_ids`: the generations that the job accepts;
    empty means any generation.

    `seen`: the ids of the tenants whose limits may be shown; None means all tenants. The limits of other tenants are
    mentioned without their names and figures.
    """
    generations = Generation.objects.in_bulk(list(generation_ids) or None)
    if not generations:
        return None
    hard = Quota.objects.in_force_for(tenant, user_id).filter(
        at_limit=Quota.AtLimit.BLOCK, kind__in=(Quota.Kind.GPUS, *Quota.OF_A_PERIOD)
    )
    quotas = hard.select_related("tenant", "user", "generation")
    obstacles: dict[int, Quota] = {}
    for quota in quotas:
        if quota.limit >= (gpus if quota.kind == Quota.Kind.GPUS else LEAST):
            continue
        concerned = generations if quota.generation_id is None else {quota.generation_id} & generations.keys()
        for generation_id in concerned:
            # Quotas are sorted from the root down, so the limit closest to the root is named.
            obstacles.setdefault(generation_id, quota)
    if len(obstacles) < len(generations):
        return None
    reasons = dict.fromkeys(
        _limit_in_words(quota)
        if seen is None or quota.tenant_id in seen
        else f"{a_limit_above(tenant)} is too low"
        for quota in obstacles.values()
    )
    return f"{'; '.join(reasons)}; this job needs {counted(gpus, 'GPU')}"


def _limit_in_words(quota: Quota) -> str:
    what = quota.generation.name if quota.generation else "GPUs"
    whose = f"each user of {quota.tenant.name}" if quota.each_user else quota.whose()
    if quota.kind == Quota.Kind.GPUS:
        return f"{whose} may hold at most {int(quota.limit)} {what} at once"
    return f"{whose} may not use any {what}"
