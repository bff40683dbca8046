"""Computes the cost of unbooked time: time in which leases held GPUs, but which the ledger does not contain yet."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from django.db.models import QuerySet

from accounting.core.clock import now_from_database
from accounting.pricing.tariff import cost_of, gpu_seconds, tariffs_of
from scheduling.models import Lease
from scheduling.models.leases import UNBOOKED


def unbooked_costs(leases: QuerySet[Lease] | Sequence[Lease]) -> list[tuple[Lease, Decimal, Decimal, str]]:
    """Returns (lease, GPU-seconds, cost, currency) for each interval of unbooked time up to now.

    As in the ledger, an interval ends where the price changes.
    """
    if isinstance(leases, QuerySet):
        leases = leases.filter(UNBOOKED).select_related("generation")
    unbooked = [lease for lease in leases if lease.is_unbooked]
    if not unbooked:
        return []
    now = now_from_database()
    periods = [(lease, *period) for lease in unbooked if (period := lease.unbooked_period(now)) is not None]
    if not periods:
        return []
    tariffs = tariffs_of(
        {lease.generation_id for lease, _, _ in periods},
        min(begins for _, begins, _ in periods),
        max(ends for _, _, ends in periods),
    )
    pieces = []
    for lease, begins, ends in periods:
        for start, end, rate in tariffs[lease.generation_id].cut(begins, ends):
            seconds = gpu_seconds(lease.gpus, start, end)
            pieces.append((lease, seconds, cost_of(seconds, rate.per_gpu_hour), rate.currency))
    return pieces
