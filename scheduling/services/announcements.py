"""Creates the DNS name of a service in its cluster with the first replica, and deletes the name when the service is
removed."""

from __future__ import annotations

import logging

from django.db import transaction
from django.db.models import Q, QuerySet

from accounting.core.locks import only_one
from scheduling.backends.base import BackendError
from scheduling.clusters.backend_factory import backend_for
from scheduling.core import pubsub
from scheduling.core.locks import Lock
from scheduling.models import Cluster, Job, Service

logger = logging.getLogger(__name__)


def services_to_announce() -> QuerySet[Service]:
    """Returns the services in attached Kubernetes clusters that need a DNS name, or whose DNS name must be deleted."""
    attached = Service.objects.filter(cluster__detached_at=None).exclude(
        cluster__backend=Cluster.Backend.LOCAL
    )
    return attached.filter(Q(removed_at=None) | Q(announced=True))


def announce_service(*, service_id: int) -> None:
    """Creates the service's DNS name in its cluster, or deletes the name if the service is removed.

    Repeated and simultaneous calls do no harm.
    """
    with only_one(Lock.ANNOUNCEMENT, service_id) as mine:
        service = services_to_announce().select_related("cluster").filter(pk=service_id).first()
        job_id = Job.objects.filter(service=service_id).values_list("pk", flat=True).first()
        if not mine or service is None or job_id is None:
            return
        backend, about = backend_for(service.cluster), {"service": service.pk, "job_id": job_id}
        announced, why = service.removed_at is None, ""
        try:
            (backend.announce if announced else backend.withdraw)(name=service.name, **about)
        except BackendError as error:
            logger.warning("service %s: %s", service.pk, error)
            announced, why = service.announced, str(error)
        _note(service, announced, why)


@transaction.atomic(durable=True)
def _note(service: Service, announced: bool, why: str) -> None:
    if (service.announced, service.why_unknown) != (announced, why):
        Service.objects.filter(pk=service.pk).update(announced=announced, why_unknown=why)
        pubsub.publish(f"jobs:{service.tenant_id}")
