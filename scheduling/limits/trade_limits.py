"""Reads trade limits as arrays for a round, with a row for each account and a column for each generation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from accounting.models import Tenant
from fairshare import model as fs
from scheduling.core.locks import lock_limits
from scheduling.models import Cluster, Trade, TradeLimit


@dataclass(frozen=True, slots=True)
class LimitArrays:
    """The trade limits of T accounts on K generations, in the form of fairshare.model.Accounts.

    - `deals` (T, K): false if the account must not trade the generation at all.
    - `give_most` (T, K): the maximum number of GPUs that the account may give away in trades at the same time.
    - `give_part` (T, K): a second maximum for the same GPUs, as a fraction of the account's entitlement. The lower of
      the two maximums applies.

    An account without limits trades everything, and its maximums are infinite. All three fields are None if no tenant
    has set a limit.
    """

    deals: fs.Bools | None = None
    give_most: fs.Floats | None = None
    give_part: fs.Floats | None = None


def read_trade_limits(
    cluster: Cluster, index: Mapping[int, int], column: Mapping[int, int], size: int, *, lock: bool
) -> LimitArrays:
    """Returns the trade limits of tenants as arrays of shape (`size`, K), by account and generation.

    - `index`: the row of each tenant id. The other rows are those of users, who have no trade limits.
    - `column`: the column of each generation id.
    - `lock`: whether to lock the limits until the transaction ends, so that rounds of two clusters cannot use the same
      remainder.

    A tenant's maximum number of GPUs applies to all clusters together. GPUs that it gives away on other clusters are
    already subtracted.
    """
    found = list(TradeLimit.objects.filter(tenant__in=index.keys()).select_related("tenant").order_by())
    if not found:
        return LimitArrays()
    elsewhere: Mapping[tuple[int, int], float] = {}
    counted = {limit.tenant_id: limit.tenant for limit in found if limit.most_gpus is not None}
    if counted and cluster.trading and Cluster.objects.attached().exclude(pk=cluster.pk).exists():
        if lock:
            lock_limits()
        elsewhere = _given_elsewhere(cluster, counted.values())
    shape = size, len(column)
    deals, most, part = np.ones(shape, dtype=bool), np.full(shape, np.inf), np.full(shape, np.inf)
    # Limits on all generations come first; a limit on one generation overrides them.
    for limit in sorted(found, key=lambda limit: limit.generation_id is not None):
        if limit.generation_id is None:
            columns = list(column.values())
        else:
            columns = [column[limit.generation_id]] if limit.generation_id in column else []
        row = index[limit.tenant_id]
        deals[row, columns] = limit.trades
        most[row, columns] = np.inf if limit.most_gpus is None else float(limit.most_gpus)
        part[row, columns] = np.inf if limit.most_part is None else float(limit.most_part)
    for (tenant, generation), gpus in elsewhere.items():
        if generation in column:
            row, k = index[tenant], column[generation]
            most[row, k] = max(most[row, k] - gpus, 0.0)
    return LimitArrays(deals, most, part)


def _given_elsewhere(cluster: Cluster, tenants: Iterable[Tenant]) -> Mapping[tuple[int, int], float]:
    """Returns the number of GPUs that each tenant's subtree gives away in open trades on other clusters.

    The keys are (tenant id, generation id).
    """
    others = Cluster.objects.attached().exclude(pk=cluster.pk)
    given: dict[tuple[int, int], float] = defaultdict(float)
    in_force = Trade.objects.filter(round__cluster__in=others, ends=None).select_related("seller", "buyer")
    for trade in in_force.order_by():
        for tenant in tenants:
            sells, buys = (side.path.startswith(tenant.path) for side in (trade.seller, trade.buyer))
            if sells and not buys:
                given[tenant.pk, trade.fast_id] += trade.fast_gpus
            elif buys and not sells:
                given[tenant.pk, trade.slow_id] += trade.slow_gpus
    return given
