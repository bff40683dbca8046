"""The backends, and which one a cluster has. Light to import: supervisors of local jobs pass through here."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduling.backends.base import Backend
    from scheduling.models import Cluster


def backend_for(cluster: Cluster) -> Backend:
    """The backend that runs `cluster`, as settings or its kubeconfig describe it; the same one each time."""
    if cluster.backend == "local":
        return _backend(cluster.pk)
    # The client of Kubernetes takes a second to import, which few processes need.
    from scheduling.attached import attached_backend  # noqa: PLC0415

    return attached_backend(cluster)


@lru_cache(maxsize=64)
def _backend(cluster_id: int) -> Backend:
    from django.conf import settings  # noqa: PLC0415 - see above

    from scheduling.backends.local.backend import LocalBackend  # noqa: PLC0415

    return LocalBackend(
        root=settings.FAIRLOT_JOBS_DIR / f"cluster-{cluster_id}",
        environments=settings.FAIRLOT_ENVIRONMENTS,
        examples=settings.FAIRLOT_EXAMPLES_DIR,
        log_limit_bytes=settings.FAIRLOT_LOG_LIMIT_BYTES,
    )


def environments_of(cluster: Cluster) -> tuple[str, ...] | None:
    """The environments that jobs may name there; None where any image will do."""
    from django.conf import settings  # noqa: PLC0415 - see above

    return tuple(settings.FAIRLOT_ENVIRONMENTS) if cluster.backend == "local" else None
