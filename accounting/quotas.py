"""Limits in words: what can never run, what is used up, and what is over a limit that only warns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from accounting.models import Generation, Quota, Tenant
from accounting.spending import Account, Held, Spending

# The least that a limit of hours or money can leave.
LEAST = Decimal("0.001")


@dataclass(frozen=True, slots=True)
class Standing:
    """How much of a limit over a period an account has used."""

    quota: Quota
    used: Decimal

    @property
    def is_reached(self) -> bool:
        return self.used >= self.quota.limit

    def __str__(self) -> str:
        quota = self.quota
        whose = quota.whose() if not quota.each_user else f"The user in {quota.tenant.name}"
        return (
            f"{whose} has used {_figure(self.used)} of {_figure(quota.limit)} {_unit(quota)}, {quota.when()}"
        )


def standings(
    tenant: Tenant, user_id: int | None, *, now: datetime, held: Callable[[], Iterable[Held]]
) -> list[Standing]:
    """Of all limits over a period that hold for `tenant`, and with `user_id` for this user in it.

    `held` is asked only where there are some.
    """
    quotas = Quota.objects.in_force_for(tenant, user_id).filter(kind__in=Quota.OF_A_PERIOD)
    found = list(quotas.select_related("tenant", "user", "generation"))
    spending = Spending(found, now, held() if found else ())
    return [Standing(quota, spending.used(quota, limited_by(quota, tenant, user_id))) for quota in found]


def limited_by(quota: Quota, tenant: Tenant, user_id: int | None) -> Account:
    """The account of `tenant` or above it whose use a limit counts."""
    return (tenant.pk, user_id) if quota.user_id or quota.each_user else (quota.tenant_id, None)


def _unit(quota: Quota) -> str:
    return quota.what().partition(",")[0]


def _figure(amount: Decimal) -> str:
    return f"{amount:,.2f}".rstrip("0").rstrip(".")


def never_fits(
    tenant: Tenant, generation_ids: Sequence[int], gpus: int, user_id: int | None = None
) -> str | None:
    """Why hard quotas forbid a gang of `gpus` GPUs whatever the others do, or None if they do not.

    `generation_ids` are those that the job accepts; none means any. Of several obstacles the one of
    the tenant closest to the root is named.
    """
    generations = Generation.objects.in_bulk(list(generation_ids) or None)
    if not generations:
        return None
    hard = Quota.objects.in_force_for(tenant, user_id).filter(
        at_limit=Quota.AtLimit.BLOCK, kind__in=(Quota.Kind.GPUS, *Quota.OF_A_PERIOD)
    )
    quotas = hard.select_related("tenant", "user", "generation")
    obstacles: dict[int, Quota] = {}
    for quota in quotas:
        if quota.limit >= (gpus if quota.kind == Quota.Kind.GPUS else LEAST):
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
        return f"{quota.whose()} may hold at most {int(quota.limit)} {what} at once"
    return f"{quota.whose()} may use no {what} at all"
