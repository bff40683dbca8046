"""Builds the backend of an attached Kubernetes cluster from the cluster's rows in the database."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Self

from django.conf import settings
from django.db.models import Q
from django.utils.crypto import salted_hmac

from accounting.core.encryption import SealError
from accounting.models import Quota
from scheduling.backends.base import BackendError
from scheduling.backends.kubernetes import namespaces, objects
from scheduling.backends.kubernetes.api import Api
from scheduling.backends.kubernetes.backend import KubernetesBackend, Limited
from scheduling.backends.kubernetes.objects import NVIDIA
from scheduling.backends.kubernetes.reader_pods import Readers, User
from scheduling.clusters.attaching import opened_kubeconfig
from scheduling.core.rate_limiter import Limit
from scheduling.models import Cluster, ClusterAccess, Job
from scheduling.spec.job_spec import JobSpec

# Limit on the pods of one tenant, including gated and ending pods: more than any limit on GPUs allows.
MOST_PODS = 20_000
UNSETTLED = -1  # a limit that no tenant has: the namespace was not set up yet
OF_ALL_GPUS = Q(
    kind=Quota.Kind.GPUS, generation=None, user=None, each_user=False, at_limit=Quota.AtLimit.BLOCK
)


@dataclass(frozen=True)
class _Places:
    """The settings of an attached cluster that determine where its jobs run and what they can reach.

    These are the prefix of namespace names, the name of the PersistentVolumeClaim for checkpoints, and the address
    ranges that jobs may reach.
    """

    prefix: str
    checkpoint_claim: str
    reachable: tuple[str, ...]
    # Part of the cache key: even ranges that were set before are written again, because others were set in between.
    reachable_since: datetime | None

    @classmethod
    def of(cls, access: ClusterAccess) -> Self:
        return cls(
            access.namespace_prefix,
            access.checkpoint_claim,
            tuple(access.reachable),
            access.reachable_since,
        )


def attached_backend(cluster: Cluster) -> KubernetesBackend:
    """Returns the backend of an attached cluster. Raises BackendError if the cluster is detached.

    Returns the same object until the cluster's kubeconfig, rate limits or reachable ranges change.
    """
    access = ClusterAccess.objects.filter(cluster=cluster).first()
    if access is None:
        raise BackendError(f"{cluster.name} is not attached")
    limit = Limit(f"cluster-{cluster.uid}", access.writes_per_second, access.writes_at_once)
    return _backend(cluster.pk, str(cluster.uid), access.changed_at, _Places.of(access), limit)


@lru_cache(maxsize=64)
def _backend(
    cluster_id: int,
    uid: str,
    changed_at: datetime,  # in the cache key only, because another kubeconfig needs another backend
    places: _Places,
    limit: Limit,
) -> KubernetesBackend:
    tenancy = _Tenancy(cluster_id, uid, places)

    def api() -> Api:
        try:
            return Limited(opened_kubeconfig(ClusterAccess.objects.get(cluster=cluster_id)).content, limit)
        except (SealError, ClusterAccess.DoesNotExist) as error:
            raise BackendError(str(error)) from None

    return KubernetesBackend(
        api=api,
        owner=uid,
        namespace_of=tenancy.namespace_of,
        settle=tenancy.settle,
        preload=tenancy.preload,
        is_bare=tenancy.is_bare,
        checkpoint_claim=places.checkpoint_claim,
        readers=Readers(
            image=settings.FAIRLOT_READER_IMAGE,
            secret_of=lambda name, nonce: salted_hmac(
                f"fairlot.reader.{uid}", f"{name}/{nonce}", algorithm="sha256"
            ).hexdigest(),
            user_of=tenancy.user_of,
        ),
        logs=settings.FAIRLOT_JOBS_DIR / f"cluster-{cluster_id}",
        log_limit_bytes=settings.FAIRLOT_LOG_LIMIT_BYTES,
        log_streams=settings.FAIRLOT_LOG_STREAMS,
    )


class _Tenancy:
    """Maps jobs to tenants and sets up the tenants' namespaces.

    Each process sets up each namespace once. It repeats the setup when the tenant's limit on GPUs has changed.
    """

    def __init__(self, cluster_id: int, uid: str, places: _Places) -> None:
        self._cluster_id, self._uid, self._places = cluster_id, uid, places
        # By job id: its tenant, and whether it runs as a pod without a Job. Neither ever changes.
        self._jobs: dict[int, tuple[int, bool]] = {}
        self._most: dict[int, int | None] = {}  # limit on GPUs by tenant id
        self._settled: dict[int, int | None] = {}
        self._lock = threading.Lock()

    def preload(self, job_id: int) -> None:
        """Reads the job's tenant and the tenant's limit on GPUs from the database.

        `settle`, which sets up the tenant's namespace, can then run without a database query.
        """
        tenant_id = self._tenant_of(job_id)
        quota = Quota.objects.filter(OF_ALL_GPUS, tenant=tenant_id).first()
        self._most[tenant_id] = int(quota.limit) if quota else None

    def namespace_of(self, job_id: int) -> str:
        return namespaces.name_of(self._tenant_of(job_id), self._places.prefix)

    def is_bare(self, job_id: int) -> bool:
        return self._known(job_id)[1]

    def user_of(self, job_id: int) -> User:
        """Returns the IDs with which the pods of the job run. Raises KeyError for an unknown job."""
        spec = Job.objects.filter(pk=job_id, cluster=self._cluster_id).values_list("spec", flat=True).first()
        if spec is None:
            raise KeyError(job_id)
        parsed = JobSpec.parse(spec)
        return User(parsed.user_id or objects.USER, parsed.group_id or objects.USER)

    def settle(self, api: Api, job_id: int) -> None:
        tenant_id = self._tenant_of(job_id)
        if tenant_id not in self._most:
            self.preload(job_id)
        most = self._most[tenant_id]
        with self._lock:  # if several gangs start at once, the first one sets up the namespace for all
            if self._settled.get(tenant_id, UNSETTLED) == most:
                return
            gpus = {} if most is None else {NVIDIA: most}
            isolation = namespaces.NamespaceIsolation(
                gpus=gpus,
                pods=MOST_PODS,
                reachable=self._places.reachable,
                portal=settings.FAIRLOT_PORTAL_FROM,
            )
            try:
                namespaces.ensure(api, tenant_id, isolation, cluster=self._uid, prefix=self._places.prefix)
            except namespaces.Unusable as error:
                raise BackendError(str(error)) from None
            self._settled[tenant_id] = most

    def _tenant_of(self, job_id: int) -> int:
        return self._known(job_id)[0]

    def _known(self, job_id: int) -> tuple[int, bool]:
        if job_id not in self._jobs:
            found = Job.objects.filter(pk=job_id, cluster=self._cluster_id)
            known = found.values_list("tenant_id", "is_bare_pod").first()
            if known is None:
                raise KeyError(job_id)
            self._jobs[job_id] = known
        return self._jobs[job_id]
