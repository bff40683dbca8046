"""What tenants may take: limits for the scheduler, hours left this month, and what can never run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal

from accounting.clipping import LOWER, UPPER, earliest, gpu_seconds_between, latest, moment
from accounting.models import Generation, Quota, Tenant, UsageSegment

HOUR = Decimal(3600)


@dataclass(frozen=True, slots=True)
class Limits:
    """The most GPUs at once of one tenant with all below it; None and missing are unlimited."""

    total: int | None = None
    by_generation: Mapping[int, int] = field(default_factory=dict)


def effective_limits(tenants: Iterable[Tenant]) -> dict[int, Limits]:
    """Each tenant's own limits, by tenant id; those without any are missing.

    A limit covers the tenant's whole subtree, so whoever decides checks every ancestor's, too.
    """
    quotas = Quota.objects.filter(kind=Quota.Kind.GPUS, tenant__in=[tenant.pk for tenant in tenants])
    totals: dict[int, int] = {}
    by_generation: dict[int, dict[int, int]] = {}
    for quota in quotas:
        generations = by_generation.setdefault(quota.tenant_id, {})
        if quota.generation_id is None:
            totals[quota.tenant_id] = int(quota.limit)
        else:
            generations[quota.generation_id] = int(quota.limit)
    return {pk: Limits(totals.get(pk), generations) for pk, generations in by_generation.items()}


def month_of(now: datetime) -> tuple[datetime, datetime]:
    """The calendar month of `now` in UTC: its first moment and that of the next."""
    begins = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    year, month = divmod(begins.year * 12 + begins.month, 12)
    return begins, begins.replace(year=year, month=month + 1)


def gpu_hours_left(
    now: datetime, running: Mapping[tuple[int, int], float | Decimal] | None = None
) -> dict[tuple[int, int | None], Decimal]:
    """GPU-hours left this calendar month (UTC), negative when overspent, for every monthly quota.

    Keys are (tenant id, generation id or None for all). Used is what the ledger has of the tenant's
    subtree, plus `running`: GPU-seconds held this month but not booked yet, by (tenant, generation).
    """
    quotas = list(Quota.objects.filter(kind=Quota.Kind.GPU_HOURS_MONTH))
    if not quotas:
        return {}
    paths = dict(Tenant.objects.values_list("pk", "path"))
    used: dict[tuple[int, int | None], Decimal] = {}
    for (tenant_id, generation_id), seconds in _used(*month_of(now), running or {}).items():
        for ancestor in ids_of(paths[tenant_id]):
            for kind in (generation_id, None):
                used[ancestor, kind] = used.get((ancestor, kind), Decimal(0)) + seconds
    left: dict[tuple[int, int | None], Decimal] = {}
    for quota in quotas:
        key = (quota.tenant_id, quota.generation_id)
        left[key] = quota.limit - used.get(key, Decimal(0)) / HOUR
    return left


def _used(
    begins: datetime, ends: datetime, running: Mapping[tuple[int, int], float | Decimal]
) -> dict[tuple[int, int], Decimal]:
    """GPU-seconds by (tenant, generation)."""
    used = {key: Decimal(str(seconds)) for key, seconds in running.items()}
    rows = (
        UsageSegment.objects.uncorrected()
        .overlapping(begins, ends)
        .order_by()
        .values_list("tenant_id", "generation_id")
        .annotate(seconds=gpu_seconds_between(latest(LOWER, moment(begins)), earliest(UPPER, moment(ends))))
    )
    for tenant_id, generation_id, seconds in rows:
        key = (tenant_id, generation_id)
        used[key] = used.get(key, Decimal(0)) + seconds
    return used


def never_fits(tenant: Tenant, generation_ids: Sequence[int], gpus: int) -> str | None:
    """Why hard quotas forbid a gang of `gpus` GPUs whatever the others do, or None if they do not.

    `generation_ids` are those that the job accepts; none means any. Of several obstacles the one of
    the tenant closest to the root is named.
    """
    generations = Generation.objects.in_bulk(list(generation_ids) or None)
    if not generations:
        return None
    lineage = ids_of(tenant.path)
    quotas = Quota.objects.filter(tenant__in=lineage).select_related("tenant", "generation")
    quotas = quotas.order_by("tenant__path", "generation__name")
    obstacles: dict[int, Quota] = {}
    for quota in quotas:
        if quota.limit >= (gpus if quota.kind == Quota.Kind.GPUS else Decimal("0.001")):
            continue
        concerned = generations if quota.generation_id is None else {quota.generation_id} & generations.keys()
        for generation_id in concerned:
            obstacles.setdefault(generation_id, quota)
    if len(obstacles) < len(generations):
        return None
    reasons = {quota.pk: _limit_in_words(quota) for quota in obstacles.values()}
    return f"{'; '.join(reasons.values())}; this job needs {gpus}"


def _limit_in_words(quota: Quota) -> str:
    what = quota.generation.name if quota.generation else "GPUs"
    if quota.kind == Quota.Kind.GPUS:
        return f"{quota.tenant.name} may hold at most {int(quota.limit)} {what} at once"
    return f"{quota.tenant.name} may use no {what} at all"


def ids_of(path: str) -> list[int]:
    """The tenants on a path, the root first, its own id last."""
    return [int(step) for step in path.split("/") if step]
