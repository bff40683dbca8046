"""Makes the files of jobs readable: where a reader must run in the cluster, starts and removes it."""

from __future__ import annotations

import logging

from django.db import transaction

from accounting.access import audit
from accounting.models import User
from scheduling.backends.base import Backend, BackendError, FilesNotReady, NoSuchFile
from scheduling.clusters.backend_factory import backend_for
from scheduling.models import Cluster, Job

logger = logging.getLogger(__name__)


def open_files(*, actor: User, job: Job) -> Backend:
    """Returns the backend, which can then read the job's files. `actor` may see the job.

    If a reader must run for that, starts one and raises FilesNotReady until it is ready. Raises NoSuchFile if the job
    never started, and FilesElsewhere where the portal cannot read files.
    """
    backend = backend_for(job.cluster)
    if not backend.files_are_ready(job_id=job.pk):
        if job.first_started_at is None:
            raise NoSuchFile("The folders of a job are created when it starts.")
        _start_reader(actor=actor, job=job, backend=backend)
        raise FilesNotReady("The reader of the files is starting.")
    return backend


@transaction.atomic(durable=True)
def _start_reader(*, actor: User, job: Job, backend: Backend) -> None:
    """Starts the job's reader, and notes who wanted it. Nothing is noted if there is one, or if that fails."""
    if backend.start_reader(job_id=job.pk):
        audit.record(actor=actor, verb="job.read_files", target=job, tenant=job.tenant)


def clusters_with_readers() -> list[int]:
    attached = Cluster.objects.exclude(backend=Cluster.Backend.LOCAL).filter(access__isnull=False)
    return list(attached.order_by("pk").values_list("pk", flat=True))


def stop_readers(cluster_id: int) -> None:
    """Removes the readers of a cluster that are over, and those of jobs that are deleted. Idempotent."""
    cluster = Cluster.objects.get(pk=cluster_id)

    def is_kept(job_id: int) -> bool:
        return Job.objects.filter(pk=job_id, cluster=cluster).exists()

    try:
        backend_for(cluster).stop_readers(unless=is_kept)
    except BackendError as error:
        logger.warning("readers of files in %s: %s", cluster, error)
