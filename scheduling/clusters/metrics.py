"""Reads the use of allocated GPUs from the metrics of Kubernetes clusters."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta

from django.conf import settings
from django.db import models, transaction

from accounting.access import audit
from accounting.access.permissions import require
from accounting.actions.checks import check_fields
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.models import User
from accounting.notifications.safe_http import NotReachable, check_url
from scheduling.backends.base import Use
from scheduling.backends.kubernetes import metrics
from scheduling.backends.kubernetes.namespaces import name_of
from scheduling.backends.kubernetes.objects import job_name
from scheduling.leases.gpu_use import note_gpu_use
from scheduling.models import Cluster, Lease, MetricsSource

logger = logging.getLogger(__name__)


@transaction.atomic(durable=True)
def set_metrics_source(
    *, actor: User | None, cluster: Cluster, url: str, query: str = ""
) -> MetricsSource | None:
    """Sets the Prometheus address and query that report the cluster's use of GPUs; without `url` removes it.

    An empty `query` selects the usual one. Raises NotAllowed unless the actor is an admin, Refused for a cluster
    that measures by itself and for an address that Fairlot may not call.
    """
    require(actor, "cluster.attach")
    if not Cluster.objects.attached().filter(pk=cluster.pk, backend=Cluster.Backend.KUBERNETES).exists():
        raise Refused(f"{cluster.name} is not an attached Kubernetes cluster.", "url")
    Cluster.objects.select_for_update(no_key=True).get(pk=cluster.pk)  # one at a time
    held = MetricsSource.objects.filter(cluster=cluster).first()
    before = {"url": held.url, "query": held.query} if held else {}
    url, query = url.strip(), query.strip() or metrics.USUAL_QUERY
    if not url:
        if held:
            audit.record(actor=actor, verb="cluster.metrics", target=cluster, before=before)
            held.delete()
        return None
    try:
        check_url(url, to_private=settings.FAIRLOT_METRICS_TO_PRIVATE)
    except NotReachable as error:
        raise Refused(str(error), "url") from None
    source = MetricsSource(cluster=cluster, url=url, query=query)
    check_fields(source, "url", "query")
    source.save()
    after = {"url": url, "query": query}
    audit.record(actor=actor, verb="cluster.metrics", target=cluster, before=before, after=after)
    return source


def clusters_to_measure() -> models.QuerySet[Cluster]:
    return Cluster.objects.attached().filter(metrics_source__isnull=False).order_by("pk")


def measure_cluster(*, cluster_id: int) -> int:
    """Queries the metrics once and records the answer; returns the number of gangs. No answer measures nothing."""
    source = MetricsSource.objects.select_related("cluster__access").filter(cluster=cluster_id).first()
    if source is None:
        return 0
    asked_at = now_from_database()
    trouble = ""
    uses: list[Use] = []
    try:
        busy = metrics.ask(source.url, source.query, to_private=settings.FAIRLOT_METRICS_TO_PRIVATE)
    except NotReachable as error:
        trouble = str(error)[:300]
        if trouble != source.trouble:
            logger.warning("the metrics of %s: %s", source.cluster, trouble)
    else:
        took = (now_from_database() - asked_at).total_seconds()
        uses = list(_uses(source.cluster, busy, asked_at, took))
        note_gpu_use(cluster_id=cluster_id, uses=uses, seen_at=asked_at)
    MetricsSource.objects.filter(cluster=cluster_id).update(asked_at=asked_at, trouble=trouble)
    return len(uses)


def _uses(cluster: Cluster, busy: metrics.Busy, asked_at: datetime, took: float) -> Iterator[Use]:
    """Yields the use of the gangs whose workers were all measured.

    The metrics look back from an unknown moment between question and answer. So measured time is certain only if it
    lies before the question and within the window that ends with the answer. Pods are named by job: until an attempt
    is older than the window, missing use may belong to the attempt before.
    """
    unused_for = metrics.WINDOW - took
    if unused_for <= 0:
        return
    looked_back_to = asked_at - timedelta(seconds=metrics.WINDOW)
    leases = Lease.objects.filter(cluster=cluster, state=Lease.State.RUNNING)
    for lease in leases.select_related("job").defer("job__spec"):
        job = lease.job
        workers = busy.get((name_of(job.tenant_id, cluster.access.namespace_prefix), job_name(job.pk)), {})
        if not workers.keys() >= set(range(job.workers)):
            continue
        percents = [workers[rank] for rank in range(job.workers)]
        is_used = any(percents)
        # A use counts in any case: it was this job's, at most a window ago.
        if not is_used and (lease.running_from is None or lease.running_from > looked_back_to):
            continue
        yield Use(
            token=lease.token,
            unused_for=0.0 if is_used else unused_for,
            percent=sum(percents) / len(percents),
            by_gpus=True,
        )
