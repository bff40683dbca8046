"""Enforces limits on concurrent GPUs when gangs start. GPUs of stopping gangs count until these gangs have left.

Rounds do not count stopping gangs. So a gang that a round picks first gets a reservation, and starts only when the
limits leave room for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from django.db.models import Sum

from accounting.limits.spending import limited_by
from accounting.models import Quota, Tenant
from scheduling.core.locks import lock_limits
from scheduling.models import Cluster, Lease


def that_fit(leases: Iterable[Lease]) -> list[Lease]:
    """Returns those of `leases` that may start now under the limits on concurrent GPUs, in order.

    Counts the GPUs on all clusters together. The caller holds the scheduling lock and starts the leases in the same
    transaction.
    """
    leases = list(leases)
    blocking = Quota.objects.filter(kind=Quota.Kind.GPUS, at_limit=Quota.AtLimit.BLOCK)
    quotas = list(blocking.select_related("tenant")) if leases else []
    if not quotas:
        return leases
    if Cluster.objects.attached().count() > 1:
        lock_limits()
    # Rounds have counted all GPUs except those of stopping gangs.
    if not Lease.objects.filter(state=Lease.State.STOPPING).exists():
        return leases
    held = _Held(quotas, {tenant.pk: tenant for tenant in Tenant.objects.all()})
    return [lease for lease in leases if held.takes(lease)]


class _Held:
    """Counts the held GPUs against each limit on concurrent GPUs.

    If a limit applies to each user separately, counts the GPUs of each user separately.
    """

    def __init__(self, quotas: Sequence[Quota], tenants: Mapping[int, Tenant]) -> None:
        self._quotas, self._tenants = quotas, tenants
        self._gpus: dict[tuple[int, int, int | None], int] = defaultdict(int)
        holding = Lease.objects.filter(state__in=Lease.HOLDING).order_by()
        names = ("job__tenant_id", "job__owner_id", "generation_id")
        for tenant, user, generation, gpus in holding.values_list(*names).annotate(Sum("gpus")):
            for _, place in self._counted(tenant, user, generation):
                self._gpus[place] += gpus

    def takes(self, lease: Lease) -> bool:
        """Returns whether all limits leave room for the lease. If they do, counts the lease's GPUs as held."""
        counted = self._counted(lease.job.tenant_id, lease.job.owner_id, lease.generation_id)
        if any(self._gpus[place] + lease.gpus > quota.limit for quota, place in counted):
            return False
        for _, place in counted:
            self._gpus[place] += lease.gpus
        return True

    def _counted(
        self, tenant_id: int, user_id: int, generation_id: int
    ) -> list[tuple[Quota, tuple[int, int, int | None]]]:
        tenant = self._tenants[tenant_id]
        return [
            (quota, (quota.pk, *limited_by(quota, tenant_id, user_id)))
            for quota in self._quotas
            if tenant.path.startswith(quota.tenant.path)
            and quota.generation_id in {None, generation_id}
            and quota.user_id in {None, user_id}
        ]
