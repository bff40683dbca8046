"""When replicas that a rollout replaces give their GPUs back, as far as a forecast can know."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from django.db.models import Exists, F, OuterRef

from scheduling.models import Job, Lease, Service

# From the start of a replica until it is ready, as long as no replica of the service has shown it.
UNTIL_READY = 60.0
MOST_PAST = 20  # replicas from whose starts this is estimated


class Replaced(NamedTuple):
    """A replica that ends `seconds` after the job `after` gets GPUs, or from now on if `after` is None. Jobs are places
    in a list."""

    place: int
    after: int | None
    seconds: float


def replaced_replicas(jobs: Sequence[int]) -> list[Replaced]:
    """Returns which replicas among `jobs` (ids) a rollout ends, and when.

    The controller keeps as many replicas ready as the service must have. So each further new replica that becomes ready
    lets it end one old replica. Where new replicas end by themselves or the rollout has failed, none is ended.
    """
    ready = Lease.objects.ready().filter(job=OuterRef("pk"))
    replicas = Job.objects.filter(pk__in=jobs, kind=Job.Kind.REPLICA, service__isnull=False)
    rows = (
        replicas.annotate(is_ready=Exists(ready), current=F("service__current")).defer("spec").order_by("pk")
    )
    by_service: dict[int, list[Job]] = {}
    for job in rows:
        by_service.setdefault(job.service_id or 0, []).append(job)
    rolling = {
        service: found
        for service, found in by_service.items()
        if any(job.revision_id != job.current for job in found)  # type: ignore[attr-defined]  # annotated
    }
    if not rolling:
        return []
    place = {pk: place for place, pk in enumerate(jobs)}
    services = Service.objects.filter(pk__in=rolling, stopped_at=None, removed_at=None)
    result = []
    for service in services.with_counts().select_related("current").order_by("pk"):
        if service.good_id != service.current_id and _fails(service):
            continue
        seconds = _seconds_until_ready(service)
        old = [job for job in rolling[service.pk] if job.revision_id != service.current_id and _holds(job)]
        new = [job for job in rolling[service.pk] if job.revision_id == service.current_id]
        coming = [job for job in new if not job.is_ready]  # type: ignore[attr-defined]  # annotated
        old.sort(key=lambda job: (job.is_ready, -job.pk))  # type: ignore[attr-defined]  # annotated
        coming.sort(key=lambda job: not _holds(job))
        for leaver, comer in zip(old, coming, strict=False):
            result.append(Replaced(place[leaver.pk], None if _holds(comer) else place[comer.pk], seconds))
    return result


def _holds(job: Job) -> bool:
    return job.state in (Job.State.STARTING, Job.State.RUNNING)


def _fails(service: Service) -> bool:
    has_failed = service.current is not None and service.current.failed_at is not None
    return has_failed or service.crashes  # type: ignore[attr-defined]  # annotated


def _seconds_until_ready(service: Service) -> float:
    """Returns the usual seconds from the start of a replica of the service until it is ready."""
    past = Job.objects.filter(service=service, first_started_at__isnull=False, first_ready_at__isnull=False)
    times = past.order_by("-pk").values_list("first_started_at", "first_ready_at")[:MOST_PAST]
    return median(
        [(ready - started).total_seconds() for started, ready in times if started and ready] or [UNTIL_READY]
    )
