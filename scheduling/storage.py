"""Measures how much disk space the files of jobs take, and deletes the files of ended jobs at a user's wish."""

from __future__ import annotations

import logging
import time
from datetime import timedelta

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from accounting.access import audit
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.models import User
from scheduling.backends.base import BackendError
from scheduling.clusters.backend_factory import backend_for
from scheduling.core.enqueue import wake_deletions
from scheduling.models import Job, JobStorage, Lease
from scheduling.models.ownership import require_changeable
from scheduling.models.pipelines import files_are_needed
from scheduling.retention import remove_files_of

logger = logging.getLogger(__name__)

AT_ONCE = 100
# A job that has not ended is measured again after this time.
AGAIN_AFTER = timedelta(hours=1)


def measure_jobs(*, seconds: float) -> int:
    """Measures the files of jobs that run, once an hour, and of each job after its end. Returns how many.

    Begins with those whose measurement is oldest, and begins no other job after `seconds`. If files cannot be read,
    logs a warning; a later call tries again.
    """
    until, count, tried = time.monotonic() + seconds, 0, set[int]()
    while found := list(_due().exclude(pk__in=tried)[:AT_ONCE]):
        for job in found:
            if time.monotonic() > until:
                return count
            tried.add(job.pk)
            count += _measure(job)
    return count


def _due() -> QuerySet[Job]:
    """Returns the jobs whose files have changed, or may have changed, since they were measured."""
    old = Q(storage__measured_at=None) | Q(storage__measured_at__lt=now_from_database() - AGAIN_AFTER)
    # by the index job_with_unmeasured_files, which has no jobs that ended long ago
    unmeasured = Job.objects.filter(
        files_measured=False, files_removed_at=None, first_started_at__isnull=False, cluster__backend="local"
    )
    return (
        unmeasured.filter(Q(state__in=Job.ENDED) | old)
        .select_related("cluster")
        .order_by(F("storage__measured_at").asc(nulls_first=True), "pk")
    )


def _measure(job: Job) -> bool:
    is_final = job.has_ended and not job.leases.filter(state__in=Lease.OPEN).exists()
    try:
        sizes = backend_for(job.cluster).measure_files(job_id=job.pk)
    except BackendError as error:
        logger.warning("the files of job %s are not measured: %s", job.pk, error)
        return False
    if sizes is None:
        return False
    found = {
        "size": sizes.total,
        "files": sizes.files,
        "parts": dict(sizes.of_parts),
        "is_complete": sizes.is_complete,
        "measured_at": Now(),
    }
    with transaction.atomic(durable=True):
        JobStorage.objects.update_or_create(job=job, defaults=found)
        if is_final:
            Job.objects.filter(pk=job.pk).update(files_measured=True)
    return True


@transaction.atomic(durable=True)
def delete_files(*, actor: User, job: Job) -> JobStorage:
    """Has the log and all files of an ended job deleted soon. Asking again changes nothing.

    Raises NotAllowed unless the actor is the owner, a manager of the team or an operator. Raises Refused while the job
    may still use its files, and if they have been deleted.
    """
    require_changeable(actor, job, "delete the files of this job")
    job = Job.objects.select_related("tenant").get(pk=job.pk)
    if not job.has_ended or job.leases.filter(state__in=Lease.OPEN).exists():
        raise Refused("The job has not ended and still uses its files. Cancel it first, or wait for its end.")
    if job.files_removed_at is not None:
        raise Refused("The files of this job have already been deleted.")
    storage, _ = JobStorage.objects.select_for_update().get_or_create(job=job)
    # Read after the lock, which the creation of a pipeline takes, too.
    if Job.objects.filter(files_are_needed(), pk=job.pk).exists():
        raise Refused(
            "A pipeline or session that has not ended may still read these files. Cancel or stop it first."
        )
    if storage.deletion_wanted_at is None:
        storage.deletion_wanted_at = now_from_database()
        storage.save(update_fields=["deletion_wanted_at"])
        audit.record(
            actor=actor,
            verb="job.delete_files",
            target=job,
            tenant=job.tenant,
            before={"bytes": storage.size},
        )
    wake_deletions()
    return storage


def delete_unwanted_files() -> int:
    """Deletes the files whose deletion users want. Returns the number of jobs whose files are gone.

    If files cannot be deleted, logs a warning; the next call tries again.
    """
    wanted = Job.objects.filter(storage__deletion_wanted_at__isnull=False, files_removed_at=None)
    jobs = list(wanted.select_related("cluster").order_by("storage__deletion_wanted_at", "pk"))
    return sum(remove_files_of(job) for job in jobs)
