"""Celery tasks of the scheduling package. The message that starts a task may arrive twice, late or never. So it is safe
to run each task more than once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from uuid import UUID

from celery import shared_task
from django.conf import settings

from accounting.actions.budgets import Outlook, warn_of_budget
from accounting.actions.requests import requests_to_end
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.core.run_each import run_each
from accounting.ledger.hash_chain import seal_all
from accounting.ledger.journals import JOURNALS
from accounting.models import Budget
from fairshare.validate import InvalidPlan
from scheduling import retention, storage
from scheduling.anomalies.actions import continue_analyses, request_nightly
from scheduling.books import pricing
from scheduling.books.closing import close_hours, clusters_to_close
from scheduling.clusters.attaching import check_cluster
from scheduling.clusters.metrics import clusters_to_measure, measure_cluster
from scheduling.core import announcing
from scheduling.core.enqueue import wake_forecasts, wake_shadow
from scheduling.core.run_apart import note_failure
from scheduling.draining.actions import drains_due, end_drain
from scheduling.execution import event_metrics, output_metrics
from scheduling.execution import reconcile as reconciling
from scheduling.execution.operations import perform_operations
from scheduling.grants import end_grant
from scheduling.idle.actions import idle_to_step, step_idle
from scheduling.jobs import reading
from scheduling.jobs.time_limit import end_overlong, overlong
from scheduling.leases.actions import bill_running
from scheduling.limits.budget_status import consistent_budgets
from scheduling.metrics.rolling import roll_up, streams_to_roll
from scheduling.models import Cluster
from scheduling.pipelines import controller as pipelines
from scheduling.rounds import actions as rounds
from scheduling.rounds import forecasts, shadow
from scheduling.schedules.schedule_runs import due_schedules, run_schedule
from scheduling.services import replicas
from scheduling.services.announcements import announce_service, services_to_announce
from scheduling.services.replicas import services_to_step
from scheduling.services.traffic_samples import roll_up_traffic, traffic_to_roll
from scheduling.sessions.actions import sessions_to_step, step_session
from scheduling.shares.hour_sums import sum_share_hours
from scheduling.sweeps import controller as sweeps
from scheduling.terminals.actions import (
    close_terminal,
    end_forbidden,
    forbidden_terminals,
    forget_terminals,
    lost_terminals,
)

logger = logging.getLogger(__name__)
# Time that one message spends on analyses; well below the time after which a task counts as hung.
ANALYSIS_SECONDS = 60
# Time after which one message begins no other measurement of a job's files.
MEASURE_SECONDS = 60
# Time after which one message begins to read no other log of a cluster.
READ_SECONDS = 10
MOST_STREAMS_ROLLED = 1000


@shared_task
def run_round(cluster_id: int) -> None:
    """Runs a round of one cluster if one is due."""
    _run_round(cluster_id)


@shared_task
def run_due_rounds() -> None:
    """Runs a round for each attached cluster in which one is due."""
    clusters = Cluster.objects.attached().values_list("id", flat=True)
    run_each(clusters, _run_round)


def _run_round(cluster_id: int) -> None:
    try:
        decided = rounds.run_round(cluster_id=cluster_id)
    except InvalidPlan as error:
        note_failure(cluster_id=cluster_id, what="the plan of a round was invalid", error=error)
        return
    if decided:
        wake_forecasts(cluster_id)
        if decided.cluster.shadow:
            wake_shadow(cluster_id)


@shared_task
def forecast_starts(cluster_id: int) -> None:
    """Forecasts when the waiting jobs of a cluster will start, from the state after its last round."""
    forecasts.forecast_starts(cluster_id=cluster_id)


@shared_task
def ask_shadow(cluster_id: int) -> None:
    """Computes and records what the cluster's shadow policy would have decided in the latest rounds."""
    shadow.ask_shadow(cluster_id=cluster_id)


@shared_task
def run_operations(cluster_id: int) -> None:
    """Executes the pending operations in the outbox of one cluster."""
    _perform(Cluster.objects.get(pk=cluster_id))


def _perform(cluster: Cluster) -> None:
    perform_operations(cluster=cluster, log_limit_bytes=settings.FAIRLOT_LOG_LIMIT_BYTES)


@shared_task
def run_due_operations() -> None:
    """Executes the pending operations of every cluster. These include operations that must be retried, and operations
    whose Celery message was lost."""
    run_each(Cluster.objects.attached(), _perform)


@shared_task
def reconcile_all() -> None:
    """Reconciles the observed state of each attached local cluster with the desired state."""
    run_each(Cluster.objects.attached().filter(backend=Cluster.Backend.LOCAL), reconciling.reconcile)


@shared_task
def check_clusters() -> None:
    """Checks whether Fairlot can reach each attached Kubernetes cluster and has the necessary rights there."""
    # Longest unchecked first: if many clusters are slow to answer, the next run begins with those that this run did not
    # reach.
    run_each(Cluster.objects.attached().filter(access__isnull=False).order_by("access__checked_at"), _check)


def _check(cluster: Cluster) -> None:
    try:
        check_cluster(actor=None, cluster=cluster)
    except Refused:
        logger.info("%s was detached while it was asked", cluster)


@shared_task
def announce_waits() -> None:
    """Announces the jobs that have waited for long."""
    announcing.announce_waits()


@shared_task
def run_due_schedules() -> None:
    """Submits the jobs of all due schedules, or records why a job was not submitted."""
    run_each(due_schedules(), lambda schedule_id: run_schedule(schedule_id=schedule_id))


@shared_task
def bill_running_leases() -> None:
    """Books the full hours of leases that are still running."""
    clusters = Cluster.objects.attached().values_list("id", flat=True)
    run_each(clusters, lambda cluster_id: bill_running(cluster_id=cluster_id))


@shared_task
def close_books() -> None:
    """Closes the hours that are over in the books of all clusters, including detached ones."""
    run_each(clusters_to_close(), lambda cluster_id: close_hours(cluster_id=cluster_id))


@shared_task
def sum_shares() -> None:
    """Adds up the share intervals of each hour that is over, in all clusters. A share interval is a tenant's share of
    one generation between two successive rounds."""
    clusters = Cluster.objects.values_list("id", flat=True)
    run_each(clusters, lambda cluster_id: sum_share_hours(cluster_id=cluster_id))


@shared_task
def price_classes() -> None:
    """Books the class prices (prices of borrowed, preemptible and idle time) of closed hours."""
    run_each(clusters_to_close(), lambda cluster_id: pricing.price_classes(cluster_id=cluster_id))


@shared_task
def seal_books() -> None:
    """Appends the new entries of the ledger and of each journal to their hash chains.

    The ledger has one chain for each cluster, detached clusters included. A journal is another append-only table, such
    as the audit trail; each journal has its own chain.
    """
    books = Cluster.objects.order_by("id").values_list("id", flat=True)
    seal_all([*books, *sorted(JOURNALS)])


@shared_task
def step_service(service_id: int) -> None:
    """Takes one step of a service towards its desired state: creates and ends replicas."""
    replicas.step_service(service_id=service_id)
    announce_service(service_id=service_id)


@shared_task
def step_services() -> None:
    """Takes one step of every service, in case a message was lost or a back-off has ended."""
    ids = services_to_step().values_list("id", flat=True)
    run_each(ids, lambda service_id: replicas.step_service(service_id=service_id))


@shared_task
def step_sweep(sweep_id: int) -> None:
    """Submits the next members of a sweep, and records those that ended."""
    sweeps.step_sweep(sweep_id=sweep_id)


@shared_task
def step_sweeps() -> None:
    """Takes one step of every sweep that has not ended, in case a message was lost or a refused member fits now."""
    ids = sweeps.sweeps_to_step().values_list("id", flat=True)
    run_each(ids, lambda sweep_id: sweeps.step_sweep(sweep_id=sweep_id))


@shared_task
def step_pipeline(pipeline_id: int) -> None:
    """Submits the steps of a pipeline whose turn it is, and records those that ended."""
    pipelines.step_pipeline(pipeline_id=pipeline_id)


@shared_task
def step_pipelines() -> None:
    """Takes one step of every pipeline that has not ended, in case a message was lost, a job outside the pipeline
    ended, or a refused step fits now."""
    ids = pipelines.pipelines_to_step().values_list("id", flat=True)
    run_each(ids, lambda pipeline_id: pipelines.step_pipeline(pipeline_id=pipeline_id))


@shared_task
def step_sessions() -> None:
    """Warns the users of sessions that will soon reach their idle timeout or time limit. Stops sessions that have
    reached one of them."""
    ids = sessions_to_step().values_list("pk", flat=True)
    run_each(ids, lambda session_id: step_session(session_id=session_id))


@shared_task
def end_overlong_jobs() -> None:
    """Stops training jobs that have reached their time limit. Warns once if the limit is near, or only warns."""
    found = overlong(now_from_database())
    run_each([one.job_id for one in found], lambda job_id: end_overlong(job_id=job_id))


@shared_task
def end_drains() -> None:
    """Stops the jobs on each drained node for which the deadline of the drain has passed."""
    run_each(drains_due(now_from_database()), lambda node_id: end_drain(node_id=node_id))


@shared_task
def measure_use() -> None:
    """Reads how busy allocated GPUs are, from the metrics of attached clusters."""
    clusters = clusters_to_measure().values_list("id", flat=True)
    run_each(clusters, lambda cluster_id: measure_cluster(cluster_id=cluster_id))


@shared_task
def read_output() -> None:
    """Reads the metrics that programs have printed, from the logs of attached clusters, and those that they have
    written as event files."""
    clusters = list(Cluster.objects.attached().values_list("id", flat=True))
    for read in (output_metrics.read_output, event_metrics.read_events):
        run_each(clusters, partial(_read_metrics, read))


@shared_task
def read_last_output(cluster_id: int, jobs: list[int]) -> None:
    """Reads the last metrics of jobs that have just ended."""
    for read in (output_metrics.read_output, event_metrics.read_events):
        read(cluster_id=cluster_id, seconds=READ_SECONDS, jobs=jobs)


def _read_metrics(read: Callable[..., int], cluster_id: int) -> None:
    read(cluster_id=cluster_id, seconds=READ_SECONDS)


@shared_task
def roll_up_metrics() -> None:
    """Rolls up the older metrics of long jobs, and the older traffic of services."""
    streams = streams_to_roll().order_by("newest_at").values_list("id", flat=True)[:MOST_STREAMS_ROLLED]
    run_each(streams, lambda stream_id: roll_up(stream_id=stream_id))
    services = traffic_to_roll().order_by("newest_at").values_list("pk", flat=True)[:MOST_STREAMS_ROLLED]
    run_each(services, lambda service_id: roll_up_traffic(service_id=service_id))


@shared_task
def remove_metrics() -> None:
    """Deletes metrics of jobs and services that ended longer ago than the retention setting; 0 keeps all metrics."""
    if days := settings.FAIRLOT_KEEP_METRICS_DAYS:
        retention.remove_metrics(after=timedelta(days=days))


@shared_task
def step_idle_jobs() -> None:
    """Takes the step that is due for each job with idle GPUs: warns, stops the job, or makes it preemptible."""
    found = idle_to_step(now_from_database())
    run_each(found, lambda job_id: step_idle(job_id=job_id))


@shared_task
def end_grants() -> None:
    """Ends what was granted for a limited time, such as a higher limit, once that time has passed."""
    ids = requests_to_end().values_list("pk", flat=True)
    run_each(ids, lambda request_id: end_grant(request_id=request_id))


@shared_task
def watch_budgets() -> None:
    """Sends a warning for each threshold that a budget has newly reached: a percentage spent, such as 80 %, or a
    forecast of at least the whole amount. Checks the present and the previous budget period."""
    found: list[Outlook] = []
    try:
        with consistent_budgets() as (budgets, reader):

            def look(budget: Budget) -> None:
                found.extend(one for one in (reader.past(budget), reader.present(budget)) if one is not None)

            run_each(budgets, look)
    finally:
        run_each(found, lambda stands: warn_of_budget(stands=stands))


@shared_task
def announce_services() -> None:
    """Creates missing DNS names of services in their clusters, and deletes the DNS names of removed services."""
    ids = services_to_announce().values_list("id", flat=True)
    run_each(ids, lambda service_id: announce_service(service_id=service_id))


@shared_task
def analyse_sharing() -> None:
    """Runs analyses of sharing anomalies for ANALYSIS_SECONDS.

    If some analyses are unfinished after that, queues another message, so that reports in the same queue can run in
    between.
    """
    if continue_analyses(seconds=ANALYSIS_SECONDS, at_once=settings.FAIRLOT_ANALYSES_AT_ONCE):
        analyse_sharing.delay()


@shared_task
def analyse_nightly() -> None:
    """Requests an analysis of sharing anomalies over the last seven days for each attached cluster."""
    request_nightly()


@shared_task
def prune() -> None:
    """Deletes records of rounds that are older than the retention settings allow. Also deletes old rows of which there
    are many, such as operations and events of attempts."""
    retention.prune(
        records=timedelta(days=settings.FAIRLOT_KEEP_ROUND_RECORDS_DAYS),
        attempts=timedelta(days=settings.FAIRLOT_KEEP_ATTEMPTS_DAYS),
    )


@shared_task
def remove_files() -> None:
    """Deletes the logs and checkpoints of jobs that ended longer ago than the retention setting. Setting 0 keeps all
    files."""
    if days := settings.FAIRLOT_KEEP_JOB_FILES_DAYS:
        retention.remove_files(after=timedelta(days=days))


@shared_task
def delete_unwanted_files() -> None:
    """Deletes the files of ended jobs whose deletion users want."""
    storage.delete_unwanted_files()


@shared_task
def measure_files() -> None:
    """Measures how much disk space the files of jobs take: hourly while they run, and once after their end."""
    storage.measure_jobs(seconds=MEASURE_SECONDS)


@shared_task
def remove_code() -> None:
    """Deletes drafts that nobody has changed, and then code uploads that nothing needs, that are older than their
    retention settings. Setting 0 keeps all of them."""
    if days := settings.FAIRLOT_KEEP_DRAFTS_DAYS:
        retention.remove_drafts(after=timedelta(days=days))
    if days := settings.FAIRLOT_KEEP_CODE_DAYS:
        retention.remove_code(after=timedelta(days=days))


@shared_task
def stop_readers() -> None:
    """Removes the pods that read files of jobs, where they are over."""
    run_each(reading.clusters_with_readers(), reading.stop_readers)


@shared_task
def close_terminals() -> None:
    """Notes that terminals have ended whose users are gone, and deletes rows of terminals that ended long ago."""
    run_each(forbidden_terminals(), end_forbidden)
    run_each(lost_terminals(), _close_lost)
    forget_terminals()


def _close_lost(terminal: UUID) -> None:
    close_terminal(terminal=terminal, reason="the connection was lost", at_last_sight=True)
