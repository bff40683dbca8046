"""The isolation of jobs on the portal's own machine: who may submit jobs there, and what users see about the
isolation."""

from __future__ import annotations

import logging

from django.conf import settings

from accounting.models import User
from scheduling.backends.base import BackendError
from scheduling.backends.local.isolation import Isolation
from scheduling.clusters.backend_factory import isolation_of
from scheduling.models import Cluster

logger = logging.getLogger(__name__)


def is_trusted(user: User) -> bool:
    """Returns whether the user may run programs with all rights that the portal itself has on its machine."""
    return user.is_admin or settings.FAIRLOT_LOCAL_TRUSTS_ALL


def isolation_in(cluster: Cluster) -> Isolation | None:
    """Returns how jobs of a local cluster are isolated. Returns None for a Kubernetes cluster, or if no job can run in
    the cluster."""
    try:
        return isolation_of(cluster)
    except BackendError as error:
        logger.warning("what keeps jobs of %s apart is not known: %s", cluster, error)
        return None


def why_refused(cluster: Cluster, user: User) -> str:
    """Explains why `user` may not submit jobs to the cluster, and how to change that. Returns "" if the user may submit
    jobs."""
    if cluster.backend != Cluster.Backend.LOCAL or is_trusted(user):
        return ""
    try:
        isolation = isolation_of(cluster)
    except BackendError as error:
        return f"No job can run in {cluster.name} now: {error}."
    return "" if isolation is None or isolation.keeps_apart else isolation.refusal
