"""GPU-hours and money used of limits: rollups of closed hours, later segments, and what is not booked yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from django.conf import settings
from django.db.models import Sum

from accounting.core.calendar import start_of_hour
from accounting.core.numbers import MICRO
from accounting.limits.periods import period_of
from accounting.models import Quota, Tenant
from accounting.pricing.tariff import Rate, Tariff, cost_of, gpu_seconds, tariffs_of
from accounting.usage.clipping import (
    LOWER,
    UPPER,
    cost_between,
    earliest,
    gpu_seconds_between,
    latest,
    moment,
)
from accounting.usage.plan import UsagePlan
from accounting.usage.scope import Scope

HOUR = Decimal(3600)
NO_TIME = timedelta(0)
# A node of the tree that has tickets: a tenant with one of its users, or with None for all of them.
Account = tuple[int, int | None]
Holder = tuple[int, int, int]  # tenant, user, generation


@dataclass(frozen=True, slots=True)
class UnbookedUsage:
    """GPUs that somebody holds, and that the ledger does not cover from `since` on."""

    tenant_id: int
    user_id: int
    generation_id: int
    gpus: int
    since: datetime


@dataclass(slots=True)
class Amount:
    gpu_seconds: Decimal = Decimal(0)
    money: Decimal = Decimal(0)


def spent(
    begins: datetime,
    now: datetime,
    held: Iterable[UnbookedUsage],
    tenants: Sequence[int] | None = None,
    *,
    ends: datetime | None = None,
) -> Mapping[Holder, Amount]:
    """Returns, by holder, what was used from `begins` until `ends` or now; money counts in Fairlot's currency.

    `tenants` are ids; None means all tenants.
    """
    narrow = {} if tenants is None else {"tenant__in": tenants}
    plan = UsagePlan(Scope(None, begins, ends, narrow), by_job=False)
    found: dict[Holder, Amount] = defaultdict(Amount)
    since, until = latest(LOWER, moment(begins)), earliest(UPPER, None if ends is None else moment(ends))
    holder = ("tenant_id", "user_id", "generation_id", "currency")
    sums = [some.values_list(*holder).annotate(Sum("gpu_seconds"), Sum("cost")) for some in plan.rollups()]
    segments = [
        some.values_list(*holder).annotate(
            seconds=gpu_seconds_between(since, until), money=cost_between(since, until)
        )
        for some in plan.segments()
    ]
    for rows in (*sums, *segments):
        for tenant, user, generation, currency, seconds, money in rows:
            amount = found[tenant, user, generation]
            amount.gpu_seconds += seconds
            if currency == settings.FAIRLOT_CURRENCY:
                amount.money += money
    some = [one for one in held if tenants is None or one.tenant_id in tenants]
    _add_held(found, some, begins, now if ends is None else min(now, ends))
    return found


def money_spent(
    begins: datetime,
    now: datetime,
    held: Iterable[UnbookedUsage],
    tenants: Sequence[int] | None,
    *,
    ends: datetime | None = None,
) -> Decimal:
    """Returns the money of all holders in `spent`."""
    return sum((one.money for one in spent(begins, now, held, tenants, ends=ends).values()), Decimal(0))


def money_held(begins: datetime, now: datetime, held: Sequence[UnbookedUsage]) -> Mapping[str, Decimal]:
    """Returns, by currency, the cost of unbooked usage since `begins`."""
    found: dict[str, Decimal] = defaultdict(Decimal)
    for _, seconds, rate in _pieces_held(held, begins, now):
        found[rate.currency] += cost_of(seconds, rate.per_gpu_hour)
    return found


def _add_held(
    found: dict[Holder, Amount], held: Sequence[UnbookedUsage], begins: datetime, now: datetime
) -> None:
    """Adds unbooked usage to `found`; its money only if its price is in Fairlot's currency."""
    for one, seconds, rate in _pieces_held(held, begins, now):
        amount = found[one.tenant_id, one.user_id, one.generation_id]
        amount.gpu_seconds += seconds
        if rate.currency == settings.FAIRLOT_CURRENCY:
            amount.money += cost_of(seconds, rate.per_gpu_hour)


def _pieces_held(
    held: Sequence[UnbookedUsage], begins: datetime, now: datetime
) -> Iterator[tuple[UnbookedUsage, Decimal, Rate]]:
    """Yields the GPU-seconds of unbooked usage, divided where prices change."""
    first = min([one.since for one in held], default=now)
    tariffs = tariffs_of({one.generation_id for one in held}, first, now) if first < now else {}
    for one in held:
        since = max(one.since, begins)
        if since < now:
            for start, end, rate in tariffs.get(one.generation_id, Tariff()).cut(since, now):
                yield one, gpu_seconds(one.gpus, start, end), rate


class Spending:
    """How much of each limit over a period is used, by limited account. Each period is read once."""

    def __init__(
        self,
        quotas: Iterable[Quota],
        now: datetime,
        held: Iterable[UnbookedUsage],
        *,
        ahead: timedelta = NO_TIME,
    ) -> None:
        """With `ahead`, usage is as of that much later, if nothing is used from `now` on."""
        self.quotas = [quota for quota in quotas if quota.kind in Quota.OF_A_PERIOD]
        self._ahead = ahead
        self.now, self._held = now, list(held)
        self.paths: Mapping[int, str] = dict(Tenant.objects.values_list("pk", "path")) if self.quotas else {}
        self._read: dict[datetime, Mapping[Holder, Amount]] = {}
        self._used: dict[int, Mapping[Account, Decimal]] = {}

    def used(self, quota: Quota, account: Account) -> Decimal:
        """Returns what `account`, which the limit applies to, has used, in the limit's own unit."""
        if quota.pk not in self._used:
            self._used[quota.pk] = self._by_account(quota)
        return self._used[quota.pk].get(account, Decimal(0))

    def left(self, quota: Quota, account: Account) -> Decimal:
        """Returns what is left, in GPU-seconds as of `left_of`; negative if overspent."""
        return left_of(quota, self.used(quota, account))

    def accounts(self, quota: Quota) -> Iterable[Account]:
        """Returns the accounts that have used some of a limit on users; for a limit on a tenant, that tenant."""
        if not quota.is_of_users:
            return [(quota.tenant_id, None)]
        self.used(quota, (0, None))
        return self._used[quota.pk]

    def _by_account(self, quota: Quota) -> Mapping[Account, Decimal]:
        begins = self._begins(quota)
        if begins not in self._read:
            self._read[begins] = spent(begins, self.now, self._held, self._concerned(begins))
        top = self.paths[quota.tenant_id]
        used: dict[Account, Decimal] = defaultdict(Decimal)
        for (tenant, user, generation), amount in self._read[begins].items():
            if quota.generation_id not in {None, generation} or not self.paths[tenant].startswith(top):
                continue
            if quota.user_id not in {None, user}:
                continue
            more = amount.money if quota.kind == Quota.Kind.MONEY else amount.gpu_seconds
            used[limited_by(quota, tenant, user)] += more
        if quota.kind == Quota.Kind.MONEY:
            return used
        # Dividing once after summing keeps three thirds of an hour a whole hour.
        return defaultdict(Decimal, {account: seconds / HOUR for account, seconds in used.items()})

    def _begins(self, quota: Quota) -> datetime:
        return period_of(quota.period, quota.days, self.now + self._ahead)[0]

    def _concerned(self, begins: datetime) -> list[int]:
        """Returns the tenants with a limit over this period, and all below them."""
        tops = tuple(self.paths[quota.tenant_id] for quota in self.quotas if self._begins(quota) == begins)
        return [pk for pk, path in self.paths.items() if path.startswith(tops)]


def limited_by(quota: Quota, tenant_id: int, user_id: int | None) -> Account:
    """Returns the account in which the limit counts usage of this user in this tenant, which it must apply to."""
    return (tenant_id, user_id) if quota.is_of_users else (quota.tenant_id, None)


def left_of(quota: Quota, used: Decimal) -> Decimal:
    """Returns what `used` leaves of a limit, in GPU-seconds; for money, at a price of 1 per hour. Negative if
    overspent.

    It is exact: GPU-seconds and money count in millionths, which a division to hours and back keeps.
    """
    return ((quota.limit - used) * HOUR).quantize(MICRO)


def frees_at(quota: Quota, account: Account, now: datetime, held: Iterable[UnbookedUsage]) -> datetime | None:
    """Returns the full hour at which a rolling period first leaves some of the limit, if nothing is used until then.

    None if that never happens. The hour is found by bisection.
    """
    if quota.limit <= 0 or quota.days is None:
        return None
    running, hour = list(held), timedelta(hours=1)
    # in hours from now: at the first the limit is still used up, at the second nothing counts any more
    spent_for, freed_by = 0, quota.days * 24 + 1
    while freed_by - spent_for > 1:
        middle = (spent_for + freed_by) // 2
        used = Spending([quota], now, running, ahead=middle * hour).used(quota, account)
        spent_for, freed_by = (spent_for, middle) if used < quota.limit else (middle, freed_by)
    return start_of_hour(now) + freed_by * hour
