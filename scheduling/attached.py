"""The backend of an attached cluster, put together from what the database knows of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Self

from django.conf import settings

from accounting.models import Quota
from scheduling.actions.attach import opened_kubeconfig
from scheduling.backends.base import BackendError
from scheduling.backends.kubernetes import namespaces
from scheduling.backends.kubernetes.api import Api
from scheduling.backends.kubernetes.backend import KubernetesBackend, Limited
from scheduling.backends.kubernetes.objects import NVIDIA
from scheduling.limit import Limit
from scheduling.models import Cluster, ClusterAccess, Job
from scheduling.sealing import SealError

# Of one tenant, gated and ending ones too: more than any quota of GPUs lets run.
MOST_PODS = 20_000


@dataclass(frozen=True)
class _Places:
    """Names of what lies in the cluster."""

    prefix: str
    checkpoint_claim: str

    @classmethod
    def of(cls, access: ClusterAccess) -> Self:
        return cls(access.namespace_prefix, access.checkpoint_claim)


def attached_backend(cluster: Cluster) -> KubernetesBackend:
    """The same one each time, until another kubeconfig or limit is given; BackendError when it is detached."""
    access = ClusterAccess.objects.filter(cluster=cluster).first()
    if access is None:
        raise BackendError(f"{cluster.name} is not attached")
    limit = Limit(f"cluster-{cluster.uid}", access.writes_per_second, access.writes_at_once)
    return _backend(cluster.pk, str(cluster.uid), access.changed_at, _Places.of(access), limit)


@lru_cache(maxsize=64)
def _backend(
    cluster_id: int,
    uid: str,
    changed_at: datetime,  # another kubeconfig is another backend
    places: _Places,
    limit: Limit,
) -> KubernetesBackend:
    tenants: dict[int, int] = {}  # of each job; it never changes

    def api() -> Api:
        try:
            return Limited(opened_kubeconfig(ClusterAccess.objects.get(cluster=cluster_id)).content, limit)
        except (SealError, ClusterAccess.DoesNotExist) as error:
            raise BackendError(str(error)) from None

    def tenant_of(job_id: int) -> int:
        if job_id not in tenants:
            found = (
                Job.objects.filter(pk=job_id, cluster=cluster_id).values_list("tenant_id", flat=True).first()
            )
            if found is None:
                raise KeyError(job_id)
            tenants[job_id] = found
        return tenants[job_id]

    return KubernetesBackend(
        api=api,
        owner=uid,
        namespace_of=lambda job_id: namespaces.name_of(tenant_of(job_id), places.prefix),
        settle=_settler(tenant_of, uid, places.prefix),
        checkpoint_claim=places.checkpoint_claim,
        logs=settings.FAIRLOT_JOBS_DIR / f"cluster-{cluster_id}",
        log_limit_bytes=settings.FAIRLOT_LOG_LIMIT_BYTES,
        log_streams=settings.FAIRLOT_LOG_STREAMS,
    )


def _settler(tenant_of: Callable[[int], int], uid: str, prefix: str) -> Callable[[Api, int], None]:
    """Makes a tenant's namespace what it should be, once a process and whenever its quota has changed."""
    done: set[tuple[int, int | None]] = set()

    def settle(api: Api, job_id: int) -> None:
        tenant_id = tenant_of(job_id)
        quota = Quota.objects.filter(kind=Quota.Kind.GPUS, tenant=tenant_id, generation=None).first()
        most = int(quota.limit) if quota else None
        if (tenant_id, most) in done:
            return
        gpus = {} if most is None else {NVIDIA: most}
        try:
            namespaces.ensure(
                api, tenant_id, namespaces.Walls(gpus=gpus, pods=MOST_PODS), cluster=uid, prefix=prefix
            )
        except namespaces.Unusable as error:
            raise BackendError(str(error)) from None
        done.add((tenant_id, most))

    return settle
