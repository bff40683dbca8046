"""Teams whose measured speed-ups changed when they began to trade, for jobs whose labels tell their model."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

import numpy as np
from django.db.models import Min

from fairshare.trading.changed_speeds import Samples, changed_with_trading
from scheduling.models import JobSpeed, Trade
from scheduling.shares.snapshot import MODEL_LABEL

# Jobs within this time before and after are compared; a team that did not trade for as long begins again with its next
# trade.
WINDOW = timedelta(days=30)


def changed_speeds(tenants: Collection[int], begins: datetime, ends: datetime) -> dict[int, float]:
    """Returns, by tenant that began to trade in the period, the factor by which its speed-ups changed.

    Compares only jobs with the label `model`, each model with itself. Leaves out tenants without a change.
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
        # A job that was measured both before and after belongs to neither side.
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
    """Returns, by tenant that traded in the period, the time of its first trade."""
    found: dict[int, datetime] = {}
    for side in ("seller", "buyer"):
        trades = Trade.objects.filter(**{f"{side}__in": tenants}, begins__gte=begins, begins__lt=ends)
        for tenant, first in trades.order_by().values_list(side).annotate(first=Min("begins")):
            found[tenant] = min(first, found.get(tenant, first))
    return found
