"""Which replica of a service shows why a revision does not work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from django.db.models import BooleanField, ExpressionWrapper, F, Q
from django.utils import timezone

from scheduling.models import Job, Service
from scheduling.models.event_codes import ServiceEventKind as Kind
from scheduling.services.crashes import crash_loop_of
from scheduling.services.replicas import ROLLOUTS

if TYPE_CHECKING:
    from portal.services.detail import Member


def latest_failure(service: Service, members: Sequence[Member]) -> Job | None:
    """Returns the replica, with its cluster and revision, whose log says what is wrong with the service now.

    This is the first of these that exists:

    1. While too few replicas are ready, or the current revision has failed or crashes during its rollout: the replica
       of the current revision that most recently ended by itself, which a replica should never do.
    2. The latest replica of a crash loop, also while its successor is ready.
    3. If the latest rollout was rolled back from a revision that failed: a replica of this revision.

    Returns None if there is no such replica, or if the service should have no replicas.
    """
    if not service.wanted:
        return None
    is_well = sum(member.is_ready for member in members) >= service.replicas
    if not is_well or has_failed(service) or crashes_in_rollout(service):
        failed = Job.objects.filter(service=service, revision=service.current_id, state__in=Job.BY_ITSELF)
        if latest := failed.select_related("cluster", "revision").order_by("-ended_at").first():
            return latest
    if crashes := crash_loop_of(service, now=timezone.now()):
        return crashes.latest
    rollout = service.events.filter(kind__in=ROLLOUTS).first()
    if rollout is None or rollout.kind != Kind.ROLLED_BACK or "failed" not in rollout.detail:
        return None
    replicas = failed_replicas(service).values()
    number = rollout.detail["failed"]
    return next((job for job in replicas if job.revision and job.revision.number == number), None)


def unready_replica(service: Service, members: Sequence[Member]) -> Job | None:
    """Returns a replica, with its cluster, that runs and is not ready for a known reason.

    `members` are the replicas that have not ended. The latest one is of the latest revision, so it is preferred.
    """
    unready = [
        member.job for member in members if member.job.state == Job.State.RUNNING and member.why_not_ready
    ]
    found = max(unready, key=lambda job: job.pk, default=None)
    if found is not None:
        found.cluster = service.cluster
    return found


def has_failed(service: Service) -> bool:
    """Returns whether the current revision has failed and is not the service's good revision.

    The good revision is the latest one with enough replicas that became ready. A rollback leads to this revision.
    """
    revision = service.current
    return revision is not None and revision.failed_at is not None and service.good_id != revision.pk


def crashes_in_rollout(service: Service) -> bool:
    """Returns whether the current revision is being rolled out, and a replica of it ended by itself since the rollout
    last made progress. `service` must come from `with_counts()`."""
    return service.good_id != service.current_id and service.crashes  # type: ignore[attr-defined]  # annotated


def failed_replicas(service: Service) -> dict[int | None, Job]:
    """Returns a replica of each failed revision, by the revision's id: the one whose log says best why it failed.

    This is the last one that ended by itself, otherwise the last one that ran and was never ready. The rollback or the
    next rollout has ended the latter, so it counts as cancelled. The replicas have their cluster and revision.
    """
    ran = Job.objects.filter(service=service, first_started_at__isnull=False)
    failed = ran.filter(revision__failed_at__isnull=False)
    found = (
        failed.filter(Q(state__in=Job.BY_ITSELF) | Q(first_ready_at=None))
        .annotate(is_over=ExpressionWrapper(Q(state__in=Job.BY_ITSELF), output_field=BooleanField()))
        .order_by("revision_id", "-is_over", F("ended_at").desc(nulls_first=True), "-pk")
        .distinct("revision_id")
    )
    return {job.revision_id: job for job in found.select_related("cluster", "revision")}
