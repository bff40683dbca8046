"""Says how a job goes on after a suspension, from what is known of it."""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.models import Cluster, Job, JobEvent
from scheduling.models.event_codes import EventCode


@dataclass(frozen=True, slots=True)
class Continuation:
    """How a job goes on after a suspension. `needs_help` is True if it may lose work unless its program saves it."""

    sentence: str
    needs_help: bool = False


def continuation_of(job: Job) -> Continuation:
    """Returns how the job goes on after a suspension.

    Fairlot knows the checkpoints of a job only if its spec has a `checkpoint`.
    """
    pattern, cluster = job.spec.get("checkpoint"), job.cluster
    freezes = cluster.freezes and not (cluster.slicing == Cluster.Slicing.AUTO and pattern)
    if freezes and job.max_workers is None:
        said = "When suspended, the job is frozen and keeps its memory. On other GPUs it starts again"
        return Continuation(f"{said}, with its newest checkpoint." if pattern else f"{said}.", not pattern)
    if not pattern:
        return Continuation(
            "When suspended, the job starts from the beginning, unless its program reads its own checkpoint.",
            True,
        )
    said = (
        f"When suspended, the job starts again with its newest checkpoint, the last that matches {pattern}."
    )
    resumed = JobEvent.objects.filter(job=job, code=EventCode.RESUMED).order_by("-pk").first()
    if resumed is not None:
        return Continuation(f"{said} Attempt {resumed.epoch} resumed from {resumed.detail['checkpoint']}.")
    if job.epoch > 1:
        return Continuation(f"{said} No attempt has found a complete one yet.", True)
    return Continuation(said)
