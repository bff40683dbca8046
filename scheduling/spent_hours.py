"""From when to when tenants had no GPU-hours of a month left: as the ledger says, to the hour."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from django.db.models import Sum
from django.db.models.functions import TruncHour

from accounting.models import Quota, Tenant, UsageSegment
from accounting.quotas import HOUR, ids_of, month_of


@dataclass(frozen=True, slots=True)
class SpentHours:
    """A quota of `tenant` was used up; of all generations where `generation` is None."""

    tenant: int
    generation: int | None
    begins: datetime
    ends: datetime


def spent_hours(begins: datetime, ends: datetime) -> list[SpentHours]:
    """For all tenants with such a quota, their own or of one above; with the quotas of today."""
    quotas = list(Quota.objects.filter(kind=Quota.Kind.GPU_HOURS_MONTH).select_related("tenant"))
    return [
        SpentHours(pk, quota.generation_id, since, until)
        for quota in quotas
        for first, until in _months(begins, ends)
        if (since := _spent_at(quota, first, until)) is not None
        for pk in _below(quota.tenant)
    ]


def when_spent(
    spent: Iterable[SpentHours], generations: Iterable[int]
) -> Iterator[tuple[datetime, datetime]]:
    """When a job that accepts these generations had none of them left; `spent` of its tenant."""
    by_month: dict[datetime, dict[int | None, datetime]] = defaultdict(dict)
    for one in spent:
        known = by_month[one.ends].get(one.generation)
        by_month[one.ends][one.generation] = one.begins if known is None else min(known, one.begins)
    kinds = list(generations)
    for until, since in by_month.items():
        moments = [_first(since, kind) for kind in kinds]
        if moments and all(at is not None for at in moments):
            yield max(at for at in moments if at is not None), until


def _first(since: Mapping[int | None, datetime], kind: int) -> datetime | None:
    return min((since[one] for one in (kind, None) if one in since), default=None)


def _months(begins: datetime, ends: datetime) -> Iterator[tuple[datetime, datetime]]:
    moment = begins
    while moment < ends:
        first, until = month_of(moment)
        yield first, until
        moment = until


def _below(tenant: Tenant) -> list[int]:
    rows = Tenant.objects.filter(path__startswith=tenant.path).values_list("pk", "path")
    return [pk for pk, path in rows if tenant.pk in ids_of(path)]


def _spent_at(quota: Quota, first: datetime, until: datetime) -> datetime | None:
    """The end of the hour in which the month's use reached the quota."""
    used = UsageSegment.objects.uncorrected().overlapping(first, until)
    used = used.filter(tenant__in=_below(quota.tenant), period__startswith__gte=first)
    if quota.generation_id is not None:
        used = used.filter(generation=quota.generation_id)
    hours = used.order_by().annotate(hour=TruncHour("period__startswith")).values_list("hour")
    total, limit = Decimal(0), quota.limit * HOUR
    if limit <= 0:
        return first
    for hour, seconds in hours.annotate(Sum("gpu_seconds")).order_by("hour"):
        total += seconds
        if total >= limit:
            end: datetime = hour + timedelta(hours=1)
            return end
    return None
