"""Reads the limits on concurrent GPUs that applied in a past period, as `PastLimit` (fairshare.counterfactual.past)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from accounting.limits.history import quotas_between
from accounting.models import Quota, Tenant
from fairshare.counterfactual.past import PastLimit

# Values of `at_limit` that make jobs wait or make them preemptible; all other limits only warn.
BINDING = (Quota.AtLimit.BLOCK, Quota.AtLimit.IDLE)


@dataclass(frozen=True, slots=True)
class Indices:
    """Maps the primary keys of tenants, of generations, and of (tenant, user) pairs to their indices in a Past."""

    tenants: Mapping[int, int]
    generations: Mapping[int, int]
    users: Mapping[tuple[int, int], int]


def limits_between(begins: datetime, ends: datetime, indices: Indices) -> Iterator[PastLimit]:
    """Yields the limits of the period that block jobs or make them preemptible. Leaves out limits that only warn.

    A yielded limit applies to a tenant's whole subtree, or to one user in one tenant. Its times are seconds since
    `begins`. `indices`: the indices of the tenants, users and generations to which limits refer.
    """
    lineages = {one.pk: one.lineage for one in Tenant.objects.filter(pk__in=indices.tenants)}
    quotas = quotas_between(begins, ends, kinds=[Quota.Kind.GPUS], at_limit=BINDING)
    for past in quotas:
        quota, kind = past.quota, None
        if quota.generation_id is not None:
            if quota.generation_id not in indices.generations:
                continue
            kind = indices.generations[quota.generation_id]
        limit = partial(
            PastLimit,
            generation=kind,
            gpus=float(quota.limit),
            begins=(past.begins - begins).total_seconds(),
            ends=(past.ends - begins).total_seconds(),
            leaves_idle=quota.at_limit == Quota.AtLimit.IDLE,
        )
        below = {pk for pk, lineage in lineages.items() if quota.tenant_id in lineage}
        if not quota.is_of_users:
            yield limit(frozenset(indices.tenants[pk] for pk in below))
            continue
        for (tenant, user), place in indices.users.items():
            if tenant in below and (quota.each_user or user == quota.user_id):
                yield limit(frozenset({indices.tenants[tenant]}), user=place)
