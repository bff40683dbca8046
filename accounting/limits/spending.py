"""Computes the GPU-hours and the money that count against limits over a period.

The sources are the rollups of closed hours, usage segments of later hours, and usage that is not yet in the ledger.
"""

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
# A node of the ticket tree: a tenant and one of its users, or a tenant and None for all its users together.
Account = tuple[int, int | None]
Holder = tuple[int, int, int]  # ids of tenant, user and generation


@dataclass(frozen=True, slots=True)
class UnbookedUsage:
    """Represents GPUs that a user's lease holds and whose usage from `since` on is not in the ledger yet."""

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
    """Returns the GPU-seconds and money used in [begins, ends), by (tenant id, user id, generation id).

    - `ends`: None means that all usage since `begins` counts.
    - `held`: usage that is not in the ledger yet. It counts until `ends` or `now`, whichever is earlier.
    - `tenants`: the ids of the tenants to include; None means all tenants.

    Amounts of money in earlier currencies of Fairlot do not count.
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
    """Returns the money spent by all tenants in `tenants` together, in Fairlot's present currency.

    The arguments have the same meaning as in `spent`.
    """
    return sum((one.money for one in spent(begins, now, held, tenants, ends=ends).values()), Decimal(0))


def money_held(begins: datetime, now: datetime, held: Sequence[UnbookedUsage]) -> Mapping[str, Decimal]:
    """Returns the cost of the unbooked usage in `held` from `begins` to `now`, by currency."""
    found: dict[str, Decimal] = defaultdict(Decimal)
    for _, seconds, rate in _pieces_held(held, begins, now):
        found[rate.currency] += cost_of(seconds, rate.per_gpu_hour)
    return found


def _add_held(
    found: dict[Holder, Amount], held: Sequence[UnbookedUsage], begins: datetime, now: datetime
) -> None:
    """Adds the GPU-seconds and the cost of unbooked usage from `begins` until `now` to `found`.

    If a price is not in Fairlot's present currency, no cost is added.
    """
    for one, seconds, rate in _pieces_held(held, begins, now):
        amount = found[one.tenant_id, one.user_id, one.generation_id]
        amount.gpu_seconds += seconds
        if rate.currency == settings.FAIRLOT_CURRENCY:
            amount.money += cost_of(seconds, rate.per_gpu_hour)


def _pieces_held(
    held: Sequence[UnbookedUsage], begins: datetime, now: datetime
) -> Iterator[tuple[UnbookedUsage, Decimal, Rate]]:
    """Yields (unbooked usage, GPU-seconds, price) for the time from `begins` to `now`, split at price changes."""
    first = min([one.since for one in held], default=now)
    tariffs = tariffs_of({one.generation_id for one in held}, first, now) if first < now else {}
    for one in held:
        since = max(one.since, begins)
        if since < now:
            for start, end, rate in tariffs.get(one.generation_id, Tariff()).cut(since, now):
                yield one, gpu_seconds(one.gpus, start, end), rate


class Spending:
    """Computes how much of each limit over a period is used. Queries the usage of each period at most once.

    The usage is by account: (tenant id, user id), or (tenant id, None) for all users of a tenant together.
    """

    def __init__(
        self,
        quotas: Iterable[Quota],
        now: datetime,
        held: Iterable[UnbookedUsage],
        *,
        ahead: timedelta = NO_TIME,
    ) -> None:
        """Keeps the limits on GPU-hours or money in `quotas`; ignores all other limits.

        `held`: the usage that is not in the ledger yet. `ahead`: computes the usage as of `now` + `ahead`, as if no GPU
        were used after `now`.
        """
        self.quotas = [quota for quota in quotas if quota.kind in Quota.OF_A_PERIOD]
        self._ahead = ahead
        self.now, self._held = now, list(held)
        self.paths: Mapping[int, str] = dict(Tenant.objects.values_list("pk", "path")) if self.quotas else {}
        self._read: dict[datetime, Mapping[Holder, Amount]] = {}
        self._used: dict[int, Mapping[Account, Decimal]] = {}

    def used(self, quota: Quota, account: Account) -> Decimal:
        """Returns how much of the limit `account` has used, in the limit's unit (GPU-hours or money).

        The limit must apply to `account`.
        """
        if quota.pk not in self._used:
            self._used[quota.pk] = self._by_account(quota)
        return self._used[quota.pk].get(account, Decimal(0))

    def left(self, quota: Quota, account: Account) -> Decimal:
        """Returns how much of the limit `account` has left, in GPU-seconds; negative if overspent.

        For a limit on money, returns the GPU-seconds that the remaining money buys at a price of 1 per GPU-hour. At a
        price of 2, it buys half as many.
        """
        return left_of(quota, self.used(quota, account))

    def accounts(self, quota: Quota) -> Iterable[Account]:
        """Returns the accounts whose usage counts against the limit.

        For a limit on users, these are the users with usage. For a limit on a tenant, this is only the tenant's
        account.
        """
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
        # Dividing once after summing avoids rounding: three times 20 minutes are exactly one hour.
        return defaultdict(Decimal, {account: seconds / HOUR for account, seconds in used.items()})

    def _begins(self, quota: Quota) -> datetime:
        return period_of(quota.period, quota.days, self.now + self._ahead)[0]

    def _concerned(self, begins: datetime) -> list[int]:
        """Returns the ids of all tenants whose usage counts against a limit with a period that begins at `begins`.

        These are the tenants that have such a limit, and all tenants below them.
        """
        tops = tuple(self.paths[quota.tenant_id] for quota in self.quotas if self._begins(quota) == begins)
        return [pk for pk, path in self.paths.items() if path.startswith(tops)]


def limited_by(quota: Quota, tenant_id: int, user_id: int | None) -> Account:
    """Returns the account in which `quota` counts the usage of this user in this tenant.

    - For a limit on users: (tenant id, user id).
    - For a limit on a whole tenant: (id of the limit's tenant, None), which counts all users together.

    `quota` must apply to this user.
    """
    return (tenant_id, user_id) if quota.is_of_users else (quota.tenant_id, None)


def left_of(quota: Quota, used: Decimal) -> Decimal:
    """Returns how much of a limit remains, in GPU-seconds; negative if overspent.

    `used`: how much is used, in the limit's unit (GPU-hours or money). For a limit on money, returns the GPU-seconds
    that the remaining money buys at a price of 1 per GPU-hour. At a price of 2, it buys half as many.
    """
    # Exact, because GPU-seconds and money are whole millionths.
    return ((quota.limit - used) * HOUR).quantize(MICRO)


def frees_at(quota: Quota, account: Account, now: datetime, held: Iterable[UnbookedUsage]) -> datetime | None:
    """Returns the full hour at which usage is possible again under a used-up limit, if no GPU is used until then.

    This is possible only for limits over a rolling period, because old usage drops out of it. Returns None for all
    other limits, and if the limit is 0.

    `account`: (tenant id, user id), or (tenant id, None) for all users of the tenant together. `held`: the usage that
    is not in the ledger yet.
    """
    if quota.limit <= 0 or quota.days is None:
        return None
    running, hour = list(held), timedelta(hours=1)
    # In hours from now: at `spent_for` the limit is still used up, at `freed_by` no usage counts any more.
    spent_for, freed_by = 0, quota.days * 24 + 1
    while freed_by - spent_for > 1:
        middle = (spent_for + freed_by) // 2
        used = Spending([quota], now, running, ahead=middle * hour).used(quota, account)
        spent_for, freed_by = (spent_for, middle) if used < quota.limit else (middle, freed_by)
    return start_of_hour(now) + freed_by * hour
