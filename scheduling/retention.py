"""Deletes old records of rounds, old repetitive rows such as events, and the files and metrics of jobs that ended long
ago.

Usage, shares and bills are kept.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from django.db import models, transaction
from django.db.models.functions import Now

from accounting.core.clock import now_from_database
from scheduling.backends.base import BackendError
from scheduling.clusters.backend_factory import backend_for
from scheduling.core import pubsub
from scheduling.leases.lifecycle import Event
from scheduling.models import (
    CodeUpload,
    Draft,
    Job,
    JobEvent,
    JobStorage,
    KeptForecast,
    Lease,
    MetricPoint,
    MetricSample,
    MetricStream,
    Operation,
    RoundRecord,
    ScheduleRun,
    ServiceEvent,
    ShadowRound,
    SharingAnalysis,
    TrafficSample,
    TrafficStream,
)
from scheduling.models.event_codes import ServiceEventKind
from scheduling.models.pipelines import files_are_needed

logger = logging.getLogger(__name__)

# Rows per statement; few enough that no statement blocks others for long.
AT_ONCE = 1000
# Events that a job under contention gets at every quantum. Its first and last events are of other kinds and stay.
TURNS = (Event.PICKED, Event.STARTED, Event.PREEMPTED, Event.RELEASED)
# Events that a service gets whenever replicas come and go. Events of people's actions stay.
REPEATED = (
    ServiceEventKind.REPLACED,
    ServiceEventKind.CRASHES,
    ServiceEventKind.TROUBLE,
    ServiceEventKind.PROVED,
)


def prune(*, records: timedelta, attempts: timedelta) -> int:
    """Deletes records of rounds that are older than `records`, and repetitive rows that are older than `attempts`.
    Returns the number of deleted rows.

    - The record of a round is its complete input and output, and the decision of the shadow policy. Without it, the
      round can no longer be reproduced.
    - Repetitive rows are operations, forecasts of starts, events of attempts and replicas, analyses of sharing
      anomalies, and records of skipped or refused runs of schedules. The last record of each schedule is kept.
    """
    now = now_from_database()
    old_orders = Operation.objects.filter(done_at__lt=now - attempts, lease__state=Lease.State.CLOSED)
    old_turns = JobEvent.objects.filter(at__lt=now - attempts, kind__in=[str(kind) for kind in TURNS])
    later = ScheduleRun.objects.filter(schedule=models.OuterRef("schedule"), pk__gt=models.OuterRef("pk"))
    old_runs = ScheduleRun.objects.filter(models.Exists(later), at__lt=now - attempts, job=None)
    return (
        _delete(RoundRecord.objects.filter(round__at__lt=now - records))
        + _delete(ShadowRound.objects.filter(round__at__lt=now - records))
        + _delete(old_orders)
        + _delete(old_turns)
        + _delete(old_runs)
        + _delete(KeptForecast.objects.filter(closed_at__lt=now - attempts))
        + _delete(SharingAnalysis.objects.filter(asked_at__lt=now - attempts))
        + _delete(ServiceEvent.objects.filter(at__lt=now - attempts, kind__in=REPEATED))
    )


def remove_metrics(*, after: timedelta) -> int:
    """Deletes the metrics of jobs that ended, and the traffic of services that were removed, longer than `after` ago.
    Returns the number of deleted rows."""
    before = now_from_database() - after
    old = MetricStream.objects.filter(job__state__in=Job.ENDED, job__ended_at__lt=before)
    removed = TrafficStream.objects.filter(service__removed_at__lt=before)
    # The samples go first, in batches: one stream may have thousands.
    return (
        _delete(MetricSample.objects.filter(stream__in=old))
        + _delete(MetricPoint.objects.filter(stream__in=old))
        + _delete(old)
        + _delete(TrafficSample.objects.filter(stream__in=removed))
        + _delete(removed)
    )


def remove_files(*, after: timedelta) -> int:
    """Deletes the logs and checkpoints of jobs that ended longer than `after` ago. Returns the number of these jobs.

    Leaves out jobs whose files an unfinished pipeline may still read.

    If files cannot be deleted, logs a warning; the next call tries again.
    """
    old = (
        Job.objects.filter(
            state__in=Job.ENDED, ended_at__lt=now_from_database() - after, files_removed_at=None
        )
        .exclude(leases__state__in=Lease.OPEN)
        .exclude(files_are_needed())
        .select_related("cluster")
        .order_by("pk")
    )
    total, last = 0, 0
    while found := list(old.filter(pk__gt=last)[:AT_ONCE]):
        for job in found:
            total += remove_files_of(job)
        last = found[-1].pk
    return total


def remove_drafts(*, after: timedelta) -> int:
    """Deletes the drafts that nobody has changed for `after`. Returns their number."""
    return _delete(Draft.objects.filter(saved_at__lt=now_from_database() - after))


def remove_code(*, after: timedelta) -> int:
    """Deletes code uploads that nobody needs and that were last uploaded longer than `after` ago. Returns their number.

    Needed are the uploads of jobs whose files still exist, of schedules, services, sweeps, pipelines, drafts
    and templates.
    """
    total, last = 0, 0
    old = CodeUpload.objects.unused().order_by("pk")
    while found := list(
        old.filter(uploaded_at__lt=now_from_database() - after, pk__gt=last).values_list("pk", flat=True)[
            :AT_ONCE
        ]
    ):
        total += sum(_remove_upload(pk, after) for pk in found)
        last = found[-1]
    return total


@transaction.atomic(durable=True)
def _remove_upload(pk: int, after: timedelta) -> bool:
    # A submit holds the row's lock from the check to the commit. Whether the upload is needed is therefore read again
    # once this transaction has the lock.
    if not CodeUpload.objects.select_for_update().filter(pk=pk).only("pk").exists():
        return False
    old = CodeUpload.objects.unused().filter(pk=pk, uploaded_at__lt=now_from_database() - after)
    return bool(old.only("pk").delete()[0])


def remove_files_of(job: Job) -> bool:
    """Deletes the log and checkpoints of an ended job, and marks the job. Returns whether they are gone.

    If files cannot be deleted, logs a warning.
    """
    try:
        backend_for(job.cluster).remove_files(job_id=job.pk)
    except BackendError as error:
        logger.warning("the files of job %s stay for now: %s", job.pk, error)
        return False
    # Marked one by one, so that after a crash the next call continues with the other jobs.
    with transaction.atomic(durable=True):
        Job.objects.filter(pk=job.pk, files_removed_at=None).update(files_removed_at=Now())
        JobStorage.objects.filter(job=job).delete()
        pubsub.publish(f"job:{job.pk}")
    return True


def _delete(old: models.QuerySet[Any]) -> int:
    """Deletes the rows in batches of AT_ONCE. Returns the number of deleted rows."""
    total = 0
    while found := list(old.order_by("pk").values_list("pk", flat=True)[:AT_ONCE]):
        total += old.model.objects.filter(pk__in=found).delete()[0]
    return total
