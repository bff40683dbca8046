"""Celery's doors into the scheduling room. Each may come twice, late or never."""

from __future__ import annotations

from celery import shared_task
from django.conf import settings

from scheduling import actions
from scheduling import reconcile as reconciling
from scheduling.models import Cluster


@shared_task
def run_round(cluster_id: int) -> None:
    """A round of one cluster, if one is due."""
    actions.run_round(cluster_id=cluster_id)


@shared_task
def run_due_rounds() -> None:
    """The clock's tick: a round for every cluster where one is due."""
    for cluster_id in Cluster.objects.values_list("id", flat=True):
        actions.run_round(cluster_id=cluster_id)


@shared_task
def run_operations(cluster_id: int) -> None:
    """Does what the outbox holds for one cluster."""
    cluster = Cluster.objects.get(pk=cluster_id)
    actions.perform_operations(cluster=cluster, log_limit_bytes=settings.FAIRLOT_LOG_LIMIT_BYTES)


@shared_task
def run_due_operations() -> None:
    """The same for every cluster: what a lost message left undone, and retries."""
    for cluster in Cluster.objects.all():
        actions.perform_operations(cluster=cluster, log_limit_bytes=settings.FAIRLOT_LOG_LIMIT_BYTES)


@shared_task
def reconcile_all() -> None:
    """Compares what should be with what is."""
    for cluster in Cluster.objects.all():
        reconciling.reconcile(cluster)


@shared_task
def bill_running_leases() -> None:
    """Books the full hours of what still runs."""
    for cluster_id in Cluster.objects.values_list("id", flat=True):
        actions.bill_running(cluster_id=cluster_id)
