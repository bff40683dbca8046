"""Computes, from the ledger, in which hours a limit on usage per period (GPU-hours or money) was used up."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import groupby
from typing import Any

from django.conf import settings
from django.db.models import Sum
from django.db.models.functions import TruncHour

from accounting.core.calendar import HOUR
from accounting.limits.history import quotas_between
from accounting.limits.periods import period_of
from accounting.models import Quota, Tenant, UsageSegment
from scheduling.anomalies.past_limits import BINDING

SECONDS = Decimal(3600)
# Usage by hour: pairs of the hour's start and the GPU-seconds or money used in the hour.
Hourly = Sequence[tuple[datetime, Decimal]]


@dataclass(frozen=True, slots=True)
class SpentHours:
    """An interval in which a used-up limit of `tenant`, or of one of its ancestors, affected the jobs of `tenant`.

    `user`: None means the jobs of all users. `generation`: None means all generations.
    """

    tenant: int
    generation: int | None
    begins: datetime
    ends: datetime
    user: int | None = None
    leaves_idle: bool = False  # True: the limit made jobs preemptible; False: it blocked them


def spent_hours(begins: datetime, ends: datetime) -> list[SpentHours]:
    """Returns the intervals in [begins, ends) in which a used-up limit blocked jobs or made them preemptible."""
    found = []
    quotas = quotas_between(begins, ends, kinds=Quota.OF_A_PERIOD, at_limit=BINDING)
    for _, some in groupby(quotas, lambda past: past.quota.pk):
        limits = list(some)
        # usage does not depend on the limit's amount, so it is read once for all amounts
        used = list(_used(limits[0].quota, begins, ends))
        found += [
            SpentHours(
                tenant,
                past.quota.generation_id,
                max(since, past.begins),
                min(until, past.ends),
                user,
                past.quota.at_limit == Quota.AtLimit.IDLE,
            )
            for past in limits
            for tenant, user, hourly in used
            for since, until in _spent(past.quota, hourly, begins, ends)
            if since < past.ends and until > past.begins
        ]
    return found


def when_spent(
    spent: Iterable[SpentHours], generations: Iterable[int]
) -> Iterator[tuple[datetime, datetime]]:
    """Yields the intervals in which used-up limits affected a job on all its generations at the same time.

    - `spent`: the intervals of used-up limits for the job's tenant and user.
    - `generations`: the ids of the generations that the job accepts.
    """
    spent, kinds = list(spent), list(generations)
    edges = sorted({moment for one in spent for moment in (one.begins, one.ends)})
    since: datetime | None = None
    for begins in edges:
        gone = {one.generation for one in spent if one.begins <= begins < one.ends}
        if kinds and all(kind in gone or None in gone for kind in kinds):
            since = since or begins
        elif since is not None:
            yield since, begins
            since = None


def _used(quota: Quota, begins: datetime, ends: datetime) -> Iterator[tuple[int, int | None, Hourly]]:
    """Yields (tenant, user, usage by hour) for each tenant or user to which the limit applies.

    - Limit on users: yields each user in each tenant of the limit's subtree, with this user's usage in this tenant.
    - Any other limit: yields each tenant of the subtree, with `user` None and the usage of the whole subtree.

    The usage is in money for a limit on money, and in GPU-seconds for other limits. It begins with the limit's period
    that contains `begins`, for example at the start of the month, and ends at `ends`.
    """
    first, _ = period_of(quota.period, quota.days, begins)
    tenants = list(Tenant.objects.subtree_of([quota.tenant_id]).values_list("pk", flat=True))
    used: Any = UsageSegment.objects.uncorrected().with_charges().overlapping(first, ends)
    used = used.filter(tenant__in=tenants, period__startswith__gte=first).order_by()
    if quota.generation_id is not None:
        used = used.filter(generation=quota.generation_id)
    if quota.kind == Quota.Kind.MONEY:
        used = used.filter(currency=settings.FAIRLOT_CURRENCY)
    amount = Sum("full_cost" if quota.kind == Quota.Kind.MONEY else "gpu_seconds")
    used = used.annotate(hour=TruncHour("period__startswith"))
    if not quota.is_of_users:
        hourly = list(used.values_list("hour").annotate(amount).order_by("hour"))
        yield from ((pk, None, hourly) for pk in tenants)
        return
    if quota.user_id:
        used = used.filter(user=quota.user_id)
    of_each: dict[tuple[int, int], list[tuple[datetime, Decimal]]] = defaultdict(list)
    rows = used.values_list("tenant_id", "user_id", "hour").annotate(amount).order_by("hour")
    for tenant, user, hour, some in rows:
        of_each[tenant, user].append((hour, some))
    yield from ((tenant, user, hourly) for (tenant, user), hourly in of_each.items())


def _spent(
    quota: Quota, hourly: Hourly, begins: datetime, ends: datetime
) -> Iterator[tuple[datetime, datetime]]:
    """Yields the intervals in which the limit was used up. `hourly` is the usage in each hour.

    An interval begins at the end of the hour in which the usage reached the limit. Its end depends on the limit:

    - A limit per calendar period, such as a month: the end of that period.
    - A limit on the most recent days (a rolling period): the time at which the usage in these days has fallen below the
      limit.
    """
    limit = quota.limit if quota.kind == Quota.Kind.MONEY else quota.limit * SECONDS
    if quota.period == Quota.Period.ROLLING:
        yield from _spent_rolling(timedelta(days=quota.days or 0), hourly, limit, begins, ends)
        return
    moment = begins
    while moment < ends:
        first, until = period_of(quota.period, None, moment)
        moment = until or ends
        total, since = Decimal(0), None if limit > 0 else first
        for hour, some in hourly:
            if since is None and first <= hour < moment:
                total += some
                since = hour + HOUR if total >= limit else None
        if since is not None:
            yield since, moment


def _spent_rolling(
    length: timedelta, hourly: Hourly, limit: Decimal, begins: datetime, ends: datetime
) -> Iterator[tuple[datetime, datetime]]:
    changes = sorted(
        [(hour + HOUR, some) for hour, some in hourly]
        + [(hour + HOUR + length, -some) for hour, some in hourly],
        key=lambda change: (change[0], -change[1]),
    )
    left, total = deque(changes), Decimal(0)
    since = begins if limit <= 0 else None
    while left:
        moment = left[0][0]
        while left and left[0][0] == moment:
            total += left.popleft()[1]
        if since is None and total >= limit:
            since = moment
        elif since is not None and total < limit:
            yield since, moment
            since = None
    if since is not None:
        yield since, ends
