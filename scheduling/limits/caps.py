"""Translates limits, including remaining GPU-hours and money, into caps on the accounts in a round's snapshot."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from itertools import starmap
from typing import Self

import numpy as np
from django.db.models import Sum
from django.db.models.functions import Coalesce

from accounting.limits.spending import Account, Spending, UnbookedUsage
from accounting.models import Quota, Tenant
from accounting.pricing.tariff import prices_at
from fairshare import model as fs
from fairshare.tree import Tree
from scheduling.core.locks import lock_limits
from scheduling.models import Cluster, Lease

IN_ROUNDS = (Quota.Kind.GPUS, *Quota.OF_A_PERIOD, Quota.Kind.BORROWED)


@dataclass(frozen=True, slots=True)
class Caps:
    """Caps on what each account may hold: numbers of GPUs, and their cost per hour. A cap is infinite without a limit.

    - `each` (T, K): the maximum number of GPUs, by account and generation.
    - `total` (T,): the maximum number of GPUs of all generations together, by account.
    - `cost` (T,): the maximum cost per hour of all GPUs together, by account.

    See fairshare.model.Accounts.
    """

    each: fs.Floats
    total: fs.Floats
    cost: fs.Floats  # (T,) money per hour that all generations together may cost

    @classmethod
    def none(cls, accounts: int, generations: int) -> Self:
        return cls(
            np.full((accounts, generations), np.inf), np.full(accounts, np.inf), np.full(accounts, np.inf)
        )

    def lower(self, account: int, generation: int | None, gpus: float) -> None:
        """Lowers an account's cap on one generation to `gpus`, unless the cap is lower already.

        `generation` None means the cap on all generations together. A negative `gpus` counts as 0.
        """
        gpus = max(gpus, 0.0)
        if generation is None:
            self.total[account] = min(self.total[account], gpus)
        else:
            self.each[account, generation] = min(self.each[account, generation], gpus)

    def forbid(self, tree: Tree, account: fs.Ints, gpus: fs.Ints) -> fs.Bools:
        """Returns, by gang and generation (J, K), whether a cap forbids the gang to run on the generation.

        A cap forbids this if the gang needs more GPUs than the cap allows, even if no other gang runs. Considers the
        caps on GPUs of the gang's account and of the account's ancestors.

        - `tree`: the tree of accounts.
        - `account` (J,): the account of each gang.
        - `gpus` (J,): the number of GPUs that each gang needs.
        """
        each, total = tree.least_on_path(self.each), tree.least_on_path(self.total)
        found: fs.Bools = (gpus[:, None] > each[account]) | (gpus > total[account])[:, None]
        return found


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The GPUs that a user of a tenant holds or has reserved on clusters other than the round's cluster.

    - `gpus`: the number of these GPUs.
    - `seconds`: the GPU-seconds that the user may use on them in one quantum of their cluster.
    """

    gpus: int
    seconds: Decimal  # GPU-seconds until the other cluster's next round


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """All limits that affect rounds, with their usage. Leaves out limits that only warn."""

    cluster: Cluster
    quotas: Sequence[Quota]
    spending: Spending
    paths: Mapping[int, str]  # by tenant id
    prices: Mapping[int, Decimal]  # per GPU-hour, by generation id
    elsewhere: Mapping[tuple[int, int, int], Elsewhere]  # by (tenant, user, generation)
    quantum: Decimal

    @classmethod
    def read(cls, cluster: Cluster, *, now: datetime, lock: bool = False) -> Self:
        """Reads the limits and their usage at the time `now`.

        If `lock` is True, locks the limits until the transaction ends, so that rounds of two clusters cannot use the
        same remainder.
        """
        quotas = Quota.objects.filter(kind__in=IN_ROUNDS).exclude(at_limit=Quota.AtLimit.WARN)
        return cls._of(list(quotas.select_related("tenant")), cluster, now=now, lock=lock)

    @classmethod
    def _of(cls, quotas: Sequence[Quota], cluster: Cluster, *, now: datetime, lock: bool) -> Self:
        elsewhere: Mapping[tuple[int, int, int], Elsewhere] = {}
        if quotas and Cluster.objects.attached().exclude(pk=cluster.pk).exists():
            if lock:
                lock_limits()
            elsewhere = _held_elsewhere(cluster)
        bounded = any(quota.kind in Quota.OF_A_PERIOD for quota in quotas)
        return cls(
            cluster=cluster,
            quotas=quotas,
            spending=Spending(quotas, now, unbooked() if bounded else ()),
            paths=dict(Tenant.objects.values_list("pk", "path")) if quotas else {},
            prices=prices_at(now) if bounded else {},
            elsewhere=elsewhere,
            quantum=Decimal(str(cluster.effective_quantum)),
        )

    def changed(self, removed: Quota | None, added: Quota | None) -> Self:
        """Returns the limits as if `removed` were deleted and `added` were created. `added` need not be stored."""
        quotas = [quota for quota in self.quotas if removed is None or quota.pk != removed.pk]
        if added is not None and added.kind in IN_ROUNDS and added.at_limit != Quota.AtLimit.WARN:
            quotas.append(added)
        return self._of(quotas, self.cluster, now=self.spending.now, lock=False)

    def on(self, accounts: fs.Accounts, keys: Sequence[Account], generations: Sequence[int]) -> fs.Accounts:
        """Returns a copy of `accounts` with the caps that the limits set in this round.

        - `keys`: the (tenant, user) pair of each account, in the order of the accounts.
        - `generations`: the ids of the generations, in the order of columns.
        """
        shape = (len(keys), len(generations))
        cap, claim, borrow = Caps.none(*shape), Caps.none(*shape), Caps.none(*shape)
        room = self.of_periods(keys, generations, Quota.AtLimit.BLOCK)
        self._lower(claim, self.of_periods(keys, generations, Quota.AtLimit.IDLE))
        column = {generation: k for k, generation in enumerate(generations)}
        for quota, t, kind in self._each(keys, column):
            limit = float(quota.limit)
            if quota.kind == Quota.Kind.GPUS:
                here = limit - float(self._elsewhere(quota, keys[t]))
                if quota.at_limit == Quota.AtLimit.IDLE:
                    claim.lower(t, kind, here)
                else:
                    cap.lower(t, kind, limit)
                    room.lower(t, kind, here)
            elif quota.kind == Quota.Kind.BORROWED:
                for k in range(len(generations)) if kind is None else [kind]:
                    borrow.lower(t, k, limit)
        return replace(
            accounts,
            cap=cap.each,
            cap_total=cap.total,
            room=_told(room.each, cap.each),
            room_total=_told(room.total, cap.total),
            claim=_told(claim.each),
            claim_total=_told(claim.total),
            borrow=_told(borrow.each),
            price=np.array([float(self.prices.get(generation, 0)) for generation in generations]),
            room_cost=_told(room.cost),
            claim_cost=_told(claim.cost),
        )

    def of_periods(self, keys: Sequence[Account], generations: Sequence[int], at_limit: str) -> Caps:
        """Returns caps that keep each account within its remaining GPU-hours and money until the next round.

        - `keys`: the (tenant, user) pair of each account.
        - `generations`: the ids of the generations, in the order of columns.
        - `at_limit`: the effect of the limits to consider, that is, whether they block jobs or make them preemptible.
        """
        caps = Caps.none(len(keys), len(generations))
        column = {generation: k for k, generation in enumerate(generations)}
        for quota, t, kind in self._each(keys, column):
            if quota.kind not in Quota.OF_A_PERIOD or quota.at_limit != at_limit:
                continue
            left = max(self.spending.left(quota, keys[t]) - self._elsewhere(quota, keys[t]), Decimal(0))
            lasts = float(left / self.quantum)
            if quota.kind == Quota.Kind.GPU_HOURS:
                caps.lower(t, kind, lasts)
                continue
            if kind is None:  # one limit for all generations together
                caps.cost[t] = min(caps.cost[t], lasts)
            for k in range(len(generations)) if kind is None else [kind]:
                cost = self.prices.get(generations[k], Decimal(0)) * self.quantum
                caps.lower(t, k, float(left / cost) if cost else np.inf if left else 0.0)
        return caps

    @staticmethod
    def _lower(caps: Caps, by: Caps) -> None:
        np.minimum(caps.each, by.each, out=caps.each)
        np.minimum(caps.total, by.total, out=caps.total)
        np.minimum(caps.cost, by.cost, out=caps.cost)

    def _each(
        self, keys: Sequence[Account], column: Mapping[int, int]
    ) -> Iterable[tuple[Quota, int, int | None]]:
        """Yields (limit, account index, generation index) for each limit and each account to which the limit applies.

        For a limit on all generations together, the generation index is None. `keys` has the (tenant, user) pair of
        each account, and `column` the index of each generation id. Leaves out limits on generations that are not in
        `column`.
        """
        teams = {tenant: t for t, (tenant, user) in enumerate(keys) if user is None}
        leaves = [(t, key) for t, key in enumerate(keys) if key[1] is not None]
        for quota in self.quotas:
            if quota.generation_id is not None and quota.generation_id not in column:
                continue
            kind = None if quota.generation_id is None else column[quota.generation_id]
            if quota.is_of_users:
                yield from ((quota, t, kind) for t, key in leaves if self._limits(quota, key))
            elif quota.tenant_id in teams:
                yield quota, teams[quota.tenant_id], kind

    def _limits(self, quota: Quota, leaf: Account) -> bool:
        tenant, user = leaf
        whose = quota.each_user or user == quota.user_id
        return whose and self.paths[tenant].startswith(self.paths[quota.tenant_id])

    def _elsewhere(self, quota: Quota, key: Account) -> Decimal:
        """Returns how much of a limit the account can use on other clusters before their next rounds.

        - Limit on GPUs: the number of GPUs that the account holds or has reserved there.
        - Limit on GPU-hours: the GPU-seconds that it can use on these GPUs in one quantum.
        - Limit on money: these GPU-seconds times the price of a GPU-hour, which is 3600 times the cost.
        """
        tenant, user = key
        taken = Decimal(0)
        for (holder, person, generation), held in self.elsewhere.items():
            below = self.paths[holder].startswith(self.paths[tenant])
            counts = (holder, person) == key if user is not None else below
            if not counts or quota.generation_id not in {None, generation}:
                continue
            if quota.kind == Quota.Kind.MONEY:
                taken += held.seconds * self.prices.get(generation, Decimal(0))
            else:
                taken += held.seconds if quota.kind == Quota.Kind.GPU_HOURS else held.gpus
        return taken


def _told(array: fs.Floats, usual: fs.Floats | None = None) -> fs.Floats | None:
    """Returns the caps in `array`, or None if they have no effect.

    - Without `usual`: caps have no effect if all of them are infinite.
    - With `usual` (other caps on the same accounts): caps have no effect if each is at least as high as the one at the
      same place in `usual`.
    """
    same = np.isinf(array).all() if usual is None else (array >= usual).all()
    return None if same else array


def unbooked(tenants: Collection[int] | None = None) -> list[UnbookedUsage]:
    """Returns the usage of present leases that the ledger does not contain yet.

    `tenants` are ids of the tenants whose leases count; None means all tenants.
    """
    rows = Lease.objects.filter(state__in=Lease.HOLDING).unbooked()
    if tenants is not None:
        rows = rows.filter(job__tenant__in=tenants)
    since = Coalesce("billed_until", "held_from")
    names = ("job__tenant_id", "job__owner_id", "generation_id", "gpus")
    return list(starmap(UnbookedUsage, rows.values_list(*names, since)))


def _held_elsewhere(cluster: Cluster) -> Mapping[tuple[int, int, int], Elsewhere]:
    quanta = {
        other.pk: Decimal(str(other.effective_quantum)) for other in Cluster.objects.exclude(pk=cluster.pk)
    }
    leases = Lease.objects.filter(state__in=Lease.OPEN).exclude(cluster=cluster)
    names = ("cluster_id", "job__tenant_id", "job__owner_id", "generation_id")
    found: dict[tuple[int, int, int], Elsewhere] = {}
    for place, tenant, user, generation, gpus in leases.values_list(*names).annotate(Sum("gpus")).order_by():
        before = found.get((tenant, user, generation), Elsewhere(0, Decimal(0)))
        seconds = before.seconds + gpus * quanta[place]
        found[tenant, user, generation] = Elsewhere(before.gpus + gpus, seconds)
    return found
