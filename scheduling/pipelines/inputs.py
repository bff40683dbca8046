"""Which files of other jobs a job of a pipeline may read, and where a cluster cannot pass files on."""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.backends.base import BackendError, Input
from scheduling.models import Cluster, ClusterAccess, Job, StepNeed


def why_no_files(cluster: Cluster) -> str:
    """Explains why jobs of a cluster cannot read the files of earlier jobs. Returns "" if they can."""
    if cluster.backend == Cluster.Backend.LOCAL:
        return ""
    if ClusterAccess.objects.filter(cluster=cluster).exclude(checkpoint_claim="").exists():
        return ""
    return (
        f"{cluster.name} cannot pass files on, because no claim for checkpoints was named when it was attached. Write"
        " “files: false”, and pass files on through a volume"
    )


def inputs_of(job: Job) -> Sequence[Input]:
    """Returns the files that a job of a pipeline may read. Raises BackendError if some of them have been deleted.

    Leaves out steps and jobs that never started, because they have no files.
    """
    if job.pipeline_id is None or job.step_index is None:
        return ()
    needs = StepNeed.objects.filter(
        step__pipeline=job.pipeline_id, step__index=job.step_index, files=True, job__isnull=False
    )
    found = []
    for need in needs.select_related("on", "job").defer("job__spec"):
        if need.job is None or need.job.first_started_at is None:
            continue
        if need.job.files_removed_at is not None:
            raise BackendError(f"the files of {need.label} that this step needs have been deleted")
        found.append(Input(need.on.name if need.on else f"job-{need.job.pk}", need.job.pk))
    return found
