"""Sends Celery messages after the transaction commits.

If the broker is unavailable, no message is sent. Celery beat requests the same work again at regular intervals.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from celery import current_app
from django.db import models, transaction
from kombu.exceptions import OperationalError

from accounting.core.clock import now_from_database
from scheduling.core.redis_sender import outgoing
from scheduling.models import Cluster

logger = logging.getLogger(__name__)

# A message expires after this time without a free worker; beat then asks for the same work again.
EXPIRES_SECONDS = 30
RETRY = {"max_retries": 1, "interval_start": 0.1, "interval_max": 0.2}

# Audit events after which the next round may decide differently. The first set affects every attached cluster, the
# second only the cluster of the event's target. tests/scheduling/core/test_enqueue.py gives the reason why each other
# verb is missing here.
CHANGES_EVERY_CLUSTER = {
    "ledger.correct", "member.add", "member.change", "member.hand_over", "member.remove", "price.remove",
    "price.set",
    "quota.remove", "quota.set", "tenant.archive", "tenant.move", "tenant.restore", "tenant.set_tickets",
    "tenant.set_trade_limits", "user.deactivate", "user.reactivate", "user.set_job_order",
}  # fmt: skip
CHANGES_ITS_CLUSTER = {
    "advance.cancel", "advance.change", "advance.create", "cluster.attach",
    "cluster.attach_again", "cluster.pause", "cluster.replace_kubeconfig", "cluster.resume",
    "cluster.update", "job.cancel", "job.edit", "job.preemptible", "job.try_now", "node.declare", "node.drain",
    "node.drain_deadline", "node.remove", "node.return",
}  # fmt: skip


def want_rounds_after(verb: str, target: models.Model) -> None:
    """Requests a round of each cluster that a change may affect.

    `verb` and `target` are the verb and the target of the audit event that records the change. Does nothing if changes
    with this verb affect no cluster. Runs in the caller's transaction.
    """
    if verb in CHANGES_EVERY_CLUSTER:
        want_rounds(Cluster.objects.attached())
    elif verb in CHANGES_ITS_CLUSTER:
        its: int = getattr(target, "cluster_id", target.pk)
        want_rounds(Cluster.objects.filter(pk=its))


def want_rounds(clusters: models.QuerySet[Cluster]) -> None:
    """Requests a round of each of `clusters` soon, even if the quantum of the cluster is not over.

    Stores the requests in the caller's transaction and wakes workers after commit.
    """
    # A fixed order, so that concurrent changes wait for each other instead of deadlocking.
    held = list(clusters.select_for_update(no_key=True).order_by("pk").values_list("pk", flat=True))
    Cluster.objects.filter(pk__in=held).update(round_wanted_at=now_from_database())
    for pk in held:
        wake_rounds(pk)


def wake_rounds(cluster_id: int) -> None:
    """Asks a worker, after commit, to run a round of the cluster if one is due."""
    _after_commit("scheduling.tasks.run_round", cluster_id)


def wake_forecasts(cluster_id: int) -> None:
    """Asks a worker, after commit, to forecast when the cluster's waiting jobs will start."""
    _after_commit("scheduling.tasks.forecast_starts", cluster_id)


def wake_deletions() -> None:
    """Asks a worker, after commit, to delete the files whose deletion users want."""
    _after_commit("scheduling.tasks.delete_unwanted_files")


def wake_shadow(cluster_id: int) -> None:
    """Asks a worker, after commit, to compute what the cluster's shadow policy would decide.

    A shadow policy decides after each round, on the same data as the real policy. Its decisions are only recorded, so
    that both policies can be compared.
    """
    _after_commit("scheduling.tasks.ask_shadow", cluster_id)


def wake_operations(cluster_id: int) -> None:
    """Asks a worker, after commit, to execute the cluster's pending operations from the outbox."""
    _after_commit("scheduling.tasks.run_operations", cluster_id)


def wake_service(service_id: int) -> None:
    """Asks a worker, after commit, to create or end replicas of a service."""
    _after_commit("scheduling.tasks.step_service", service_id)


def wake_sweep(sweep_id: int) -> None:
    """Asks a worker, after commit, to submit the next members of a sweep."""
    _after_commit("scheduling.tasks.step_sweep", sweep_id)


def wake_pipeline(pipeline_id: int) -> None:
    """Asks a worker, after commit, to submit the steps of a pipeline whose turn it is."""
    _after_commit("scheduling.tasks.step_pipeline", pipeline_id)


def wake_output(cluster_id: int, jobs: Collection[int]) -> None:
    """Asks a worker, after commit, to read the last metrics of jobs of the cluster that have ended."""
    _after_commit("scheduling.tasks.read_last_output", cluster_id, sorted(jobs))


def wake_notifications() -> None:
    """Asks a worker, after commit, to route new events to the users who want to know them."""
    _after_commit("accounting.tasks.notify")


def wake_analyses() -> None:
    """Asks a worker, after commit, to continue pending analyses of sharing anomalies."""
    _after_commit("scheduling.tasks.analyse_sharing")


def _after_commit(task: str, *args: Any) -> None:
    transaction.on_commit(lambda: outgoing.put((task, args), lambda: _send(task, args)), robust=True)


def _send(task: str, args: tuple[Any, ...]) -> None:
    try:
        current_app.send_task(
            task, args=args, retry_policy=RETRY, ignore_result=True, expires=EXPIRES_SECONDS
        )
    except OperationalError as error:
        logger.warning("%s was not sent, beat will do it: %s", task, error)
