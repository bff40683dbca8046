"""Finds teams whose jobs' measured speed-ups changed when the team began to trade.

Such a change is suspicious, because a team can profit from false reports of progress only while it trades. Compares
only jobs with the same value of the label `model`.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

import numpy as np
from django.db.models import Min

from fairshare.trading.changed_speeds import Samples, changed_with_trading
from scheduling.models import JobSpeed, Trade
from scheduling.shares.snapshot import MODEL_LABEL

# Compares jobs submitted from this long before the period until this long after it. A team without a trade for this
# long counts as beginning to trade again with its next trade.
WINDOW = timedelta(days=30)


def changed_speeds(tenants: Collection[int], begins: datetime, ends: datetime) -> dict[int, float]:
    """Returns, by tenant id, how much the measured speed-ups of a tenant's jobs changed when the tenant began to trade.

    The value is a factor above 1: 1.2 means that a speed-up grew or shrank by a factor of 1.2. It is the largest change
    that is unlikely to be due to chance. Leaves out tenants without such a change, and tenants that did not begin to
    trade in [`begins`, `ends`).
    """
    began = _first_trades(tenants, begins, ends)
    for tenant in _first_trades(began, begins - WINDOW, begins):
        began.pop(tenant)
    if not began:
        return {}
    speeds = JobSpeed.objects.filter(
        job__tenant__in=began,
        job__created_at__range=(begins - WINDOW, ends + WINDOW),
        job__labels__key=MODEL_LABEL,
        seconds__gt=0,
        steps__gt=0,
    ).values_list(
        "job__tenant", "job__labels__value", "generation", "steps", "seconds", "updated_at", "job__created_at"
    )
    found = [
        (tenant, model, generation, steps / seconds, created >= began[tenant])
        for tenant, model, generation, steps, seconds, measured, created in speeds
        # Leaves out a job that was submitted before the tenant's first trade and last measured after it.
        if measured < began[tenant] or created >= began[tenant]
    ]
    if not found:
        return {}
    teams, models, generations, rates, trading = zip(*found, strict=True)
    names, team = np.unique(np.array(teams), return_inverse=True)
    model = np.unique(np.array(models), return_inverse=True)[1]
    moved = changed_with_trading(
        Samples(team, model, np.array(generations), np.array(rates), np.array(trading)), len(names)
    )
    return {int(name): float(by) for name, by in zip(names, moved, strict=True) if by > 1}


def _first_trades(tenants: Collection[int], begins: datetime, ends: datetime) -> dict[int, datetime]:
    """Returns, by tenant id, the time of each tenant's first trade in [`begins`, `ends`). Leaves out tenants without a
    trade."""
    found: dict[int, datetime] = {}
    for side in ("seller", "buyer"):
        trades = Trade.objects.filter(**{f"{side}__in": tenants}, begins__gte=begins, begins__lt=ends)
        for tenant, first in trades.order_by().values_list(side).annotate(first=Min("begins")):
            found[tenant] = min(first, found.get(tenant, first))
    return found
