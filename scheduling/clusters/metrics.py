"""Reads the utilization of allocated GPUs, and the metrics of jobs, from the Prometheus servers of Kubernetes
clusters."""

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
from scheduling.backends.summaries import WINDOW, of_value
from scheduling.leases.gpu_use import note_gpu_use
from scheduling.metrics.recording import Report, few_gpus, note_reports
from scheduling.metrics.rolling import number_at
from scheduling.models import Cluster, Lease, MetricsSource, MetricStream
from scheduling.spec.roles import MOST_ROLES

logger = logging.getLogger(__name__)


@transaction.atomic(durable=True)
def set_metrics_source(
    *, actor: User | None, cluster: Cluster, url: str, query: str = ""
) -> MetricsSource | None:
    """Sets the Prometheus address and query from which Fairlot reads the use of the cluster's GPUs.

    An empty `url` removes both and returns None. An empty `query` selects the default query. Raises NotAllowed if the
    actor is not an admin. Raises Refused if the cluster is not an attached Kubernetes cluster, or if Fairlot may not
    call the address.
    """
    require(actor, "cluster.attach")
    if not Cluster.objects.attached().filter(pk=cluster.pk, backend=Cluster.Backend.KUBERNETES).exists():
        raise Refused(f"{cluster.name} is not an attached Kubernetes cluster.", "url")
    Cluster.objects.select_for_update(no_key=True).get(pk=cluster.pk)  # serialises changes
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
    """Queries the cluster's metrics once and records the GPU use of its gangs. Returns the number of measured gangs.

    If Prometheus does not answer, records only the error and returns 0.
    """
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
        _note_samples(source, asked_at)
    MetricsSource.objects.filter(cluster=cluster_id).update(asked_at=asked_at, trouble=trouble)
    return len(uses)


def _note_samples(source: MetricsSource, asked_at: datetime) -> None:
    """Asks once for the metrics of all gangs of the cluster, and stores a sample of each running one.

    A server that does not know these metrics is no failure: the pages of jobs say what is missing.
    """
    try:
        found = metrics.ask_samples(source.url, to_private=settings.FAIRLOT_METRICS_TO_PRIVATE)
    except NotReachable as error:
        logger.info("the samples of %s: %s", source.cluster, error)
        return
    reports = []
    for lease, key in _running(source.cluster):
        if values := found.get(key):
            # Pods are told apart by their job, so values from before this attempt may belong to the one before.
            at = max(filter(None, (asked_at, lease.running_from)))
            sums = few_gpus({name: of_value(value) for name, value in values.items()})
            reports.append(Report(lease.job_id, number_at(asked_at, WINDOW), at, sums))
    if reports:
        note_reports(source=MetricStream.Source.MACHINE, reports=reports)


def _running(cluster: Cluster) -> Iterator[tuple[Lease, tuple[str, str]]]:
    """Yields the running leases, each with the namespace and the name of its Job."""
    # Imported here for the same reason as in backend_factory.py.
    from scheduling.backends.kubernetes.namespaces import name_of  # noqa: PLC0415
    from scheduling.backends.kubernetes.objects import job_name  # noqa: PLC0415

    leases = Lease.objects.filter(cluster=cluster, state=Lease.State.RUNNING)
    for lease in leases.select_related("job").defer("job__spec"):
        yield lease, (name_of(lease.job.tenant_id, cluster.access.namespace_prefix), job_name(lease.job_id))


def _uses(cluster: Cluster, busy: metrics.Busy, asked_at: datetime, took: float) -> Iterator[Use]:
    """Yields the GPU use of each running gang. Leaves out a gang if some of its workers were not measured.

    - `busy`: the measured use, by worker.
    - `asked_at`: the time at which Prometheus was queried.
    - `took`: the seconds from `asked_at` to the answer.

    An idle gang is reported as idle for WINDOW - `took` seconds before `asked_at`. Leaves out idle gangs whose attempt
    began less than WINDOW seconds before `asked_at`.
    """
    from scheduling.backends.kubernetes.objects import job_name  # noqa: PLC0415 - as in _running

    # Prometheus may have evaluated the query as late as `took` seconds after `asked_at`. Only this time is certain.
    unused_for = metrics.WINDOW - took
    if unused_for <= 0:
        return
    looked_back_to = asked_at - timedelta(seconds=metrics.WINDOW)
    for lease, key in _running(cluster):
        workers = lease.gpus // lease.job.gpus_per_worker
        of_parts = [busy.get((key[0], job_name(lease.job_id, part)), {}) for part in range(MOST_ROLES)]
        if any(of_parts[1:]):  # a gang with roles, whose workers without GPUs are not measured
            percents = [percent for workers in of_parts for percent in workers.values()]
        else:
            percents = [of_parts[0][rank] for rank in range(workers) if rank in of_parts[0]]
        if len(percents) < workers:
            continue
        is_used = any(percents)
        # Measured use counts even for a young attempt: the job used its GPUs at most one WINDOW ago.
        # The metrics do not distinguish attempts, so idle time may belong to the previous one.
        if not is_used and (lease.running_from is None or lease.running_from > looked_back_to):
            continue
        yield Use(
            token=lease.token,
            unused_for=0.0 if is_used else unused_for,
            percent=sum(percents) / len(percents),
            by_gpus=True,
        )
