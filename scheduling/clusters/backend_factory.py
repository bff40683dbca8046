"""Builds the backend of a cluster, from the settings for a local cluster or from the kubeconfig for a Kubernetes
cluster."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path

from django.conf import settings

from scheduling.backends.base import Backend
from scheduling.backends.local.backend import LocalBackend
from scheduling.backends.local.isolation import HostPaths, Isolation
from scheduling.models import Cluster


def backend_for(cluster: Cluster) -> Backend:
    """Returns the backend of `cluster`. Returns the same object until the cluster's kubeconfig or settings change."""
    if cluster.backend == "local":
        return _backend(cluster.pk)
    # Imported here, because importing the Kubernetes client takes a second and few processes need it.
    from scheduling.clusters.attached import attached_backend  # noqa: PLC0415

    return attached_backend(cluster)


def isolation_of(cluster: Cluster) -> Isolation | None:
    """Returns how jobs of a local cluster are isolated; None for a Kubernetes cluster.

    Reads the stored result of the last test of this machine, which another process may have made. If no valid result is
    stored, tests the machine now. Raises BackendError if no job can run in the cluster.
    """
    return _backend(cluster.pk).last_isolation() if cluster.backend == "local" else None


def find_isolation(cluster: Cluster) -> Isolation:
    """Probes how jobs that this process starts in a local cluster are isolated, and returns the result.

    Raises BackendError if no job can run in the cluster.
    """
    backend = _backend(cluster.pk)
    backend.prepare()
    return backend.isolation


def gives_users(cluster: Cluster) -> bool:
    """Returns whether this process starts each team's jobs under a separate UID. False for a Kubernetes cluster.

    Raises BackendError if no job can run in the cluster.
    """
    return cluster.backend == "local" and _backend(cluster.pk).isolation.users


@lru_cache(maxsize=64)
def _backend(cluster_id: int) -> LocalBackend:
    return LocalBackend(
        root=settings.FAIRLOT_JOBS_DIR / f"cluster-{cluster_id}",
        environments=settings.FAIRLOT_ENVIRONMENTS,
        examples=settings.FAIRLOT_EXAMPLES_DIR,
        log_limit_bytes=settings.FAIRLOT_LOG_LIMIT_BYTES,
        places=local_places(),
        environments_limit_bytes=settings.FAIRLOT_LOCAL_ENVIRONMENTS_GB * 10**9,
    )


def local_places() -> HostPaths:
    """Returns the paths and UIDs that the isolation of local jobs needs, from the settings.

    The paths include the portal's files, which are hidden from jobs, and files that jobs must be able to read.
    """
    python = settings.FAIRLOT_JOB_PYTHON
    # Docker and Kubernetes mount secrets as files: the variable NAME_FILE holds the path of the file with the value of
    # NAME.
    names = ("FAIRLOT_", "SECRET_KEY", "DATABASE_", "REDIS_")
    given = [
        Path(path) for name, path in os.environ.items() if name.startswith(names) and name.endswith("_FILE")
    ]
    # Symbolic links are hidden too: a job that could replace one could give Fairlot another key.
    links = [path.parent.resolve() / path.name for path in given]
    return HostPaths(
        jobs=settings.FAIRLOT_JOBS_DIR.resolve(),
        hidden=[*(path.resolve() for path in (*settings.FAIRLOT_PRIVATE_PLACES, *given)), *links],
        secret=[path.resolve() for path in (*settings.FAIRLOT_SECRET_PLACES, *given) if path.exists()],
        code=[settings.BASE_DIR.resolve(), Path(sys.prefix).resolve()],
        # A virtual environment links to its base interpreter, so jobs must be able to read that interpreter.
        readable=[python.resolve(), settings.FAIRLOT_EXAMPLES_DIR.resolve(), Path(sys.base_prefix).resolve()],
        needed=[settings.FAIRLOT_EXAMPLES_DIR, python / "bin" / "python"],
        uids=settings.FAIRLOT_LOCAL_UIDS,
    )


def environments_of(cluster: Cluster) -> tuple[str, ...] | None:
    """Returns the names of the environments (named values of PATH) from which jobs in the cluster must choose.

    Returns None if jobs choose a container image instead, as in Kubernetes clusters.
    """
    return tuple(settings.FAIRLOT_ENVIRONMENTS) if cluster.backend == "local" else None


def paths_of(cluster: Cluster, environment: str) -> str | None:
    """Returns the value of the variable PATH in an environment of a local cluster. If `environment` is empty, uses the
    default environment.

    Returns None for an unknown environment, and for a Kubernetes cluster, whose jobs use images instead.
    """
    if cluster.backend != "local":
        return None
    named: dict[str, str] = settings.FAIRLOT_ENVIRONMENTS
    return named.get(environment or next(iter(named), ""))
