"""Data for a service's page: its status, its description in sentences, its cost, and the changes between revisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from difflib import unified_diff

from django.db.models import Prefetch
from django.utils import timezone

from accounting.core.wording import counted, to_the_second
from accounting.models import User
from fairshare.model import Reason
from portal import interruptions
from portal.jobs.costs import costs_by
from portal.jobs.detail import yaml_of
from portal.jobs.failure import Failure, log_end_of
from portal.lists.cells import Label
from portal.readiness import what_to_do
from portal.services.failures import crashes_in_rollout, failed_replicas, has_failed
from scheduling.core.reason_labels import SHORT
from scheduling.jobs.explain import Explainer
from scheduling.leases.interruptions import first_start, silent_since
from scheduling.models import Job, JobForecast, Lease, Service, ServiceRevision
from scheduling.services.crashes import crash_loop_of

MOST_WORDS = 3  # number of reasons that a sentence lists
CALLERS_GET = "Callers get the status 503 from Fairlot."
ANSWERS_NOBODY = "The service then answers nobody until the new replica is ready."


@dataclass(frozen=True)
class Member:
    """A replica of a service that has not ended.

    `lease` is the lease that holds its GPUs, or None. `reason` says why the replica waits; "" if it does not wait.
    """

    job: Job
    lease: Lease | None
    reason: str

    @property
    def is_ready(self) -> bool:
        return self.lease is not None and self.lease.is_ready

    @property
    def why_not_ready(self) -> str:
        """Returns why the replica, which runs, is not ready; "" if it is ready or this is unknown."""
        return self.lease.why_not_ready if self.lease and not self.is_ready else ""

    @property
    def claimable_from(self) -> datetime | None:
        """Returns the time from which the replica may be suspended for other jobs.

        Returns None if the replica holds no GPUs, if it is protected because it is within the team's guaranteed share,
        or if it is already stopping.
        """
        return interruptions.claimable_from(self.lease)


@dataclass(frozen=True)
class RevisionDetail:
    """A revision of a service, with the lines of its YAML that differ from the previous revision."""

    revision: ServiceRevision
    lines: Sequence[tuple[str, str]]  # "+" or "-" ("" in the first revision), and the line
    replica: Job | None  # the replica whose log says why the revision failed
    failure: Failure | None  # the end of this log; only of the latest failed revision


def status_of(service: Service) -> Label:
    """Returns the status of a service. `service` must come from `with_counts()`, a query that also counts its
    replicas."""
    if service.removed_at:
        return Label("Removed", "muted", "slash")
    if service.stopped_at:
        return Label("Stopped", "muted", "pause")
    if service.trouble or has_failed(service):
        return Label("In trouble", "bad", "alert")
    if not service.replicas:
        return Label("Scaled to 0", "muted", "pause")
    if crashes_in_rollout(service):
        return Label("In trouble", "bad", "alert")
    if service.good_id != service.current_id and (service.ready or not service.good_id):  # type: ignore[attr-defined]  # annotated
        return Label("Rolling out", "info", "starting")
    if service.ready >= service.replicas:  # type: ignore[attr-defined]  # annotated
        return Label("Up", "good", "check-circle")
    return Label("Partly up" if service.ready else "Down", "warn", "clock")  # type: ignore[attr-defined]  # annotated


def members_of(service: Service) -> list[Member]:
    """Returns the service's replicas that have not ended, sorted by slot number. A replacement gets the slot of its
    predecessor."""
    return members_by_service([service]).get(service.pk, [])


def members_by_service(services: Iterable[Service]) -> dict[int | None, list[Member]]:
    """Returns the replicas of each service that have not ended, by service id. The replicas of a service are sorted by
    slot."""
    holding = Lease.objects.filter(state__in=Lease.HOLDING).select_related("generation", "cluster")
    jobs = (
        Job.objects.filter(service__in=[service.pk for service in services])
        .unfinished()
        .select_related("revision")
        .prefetch_related(Prefetch("leases", holding, to_attr="held"))
        .order_by("slot")
    )
    found: dict[int | None, list[Member]] = {}
    for job in jobs:
        reason = SHORT[job.reason] if job.state in Job.WAITING else ""
        held: list[Lease] = job.held  # type: ignore[attr-defined]  # prefetched
        found.setdefault(job.service_id, []).append(Member(job, next(iter(held), None), reason))
    return found


def claimable_from(members: Sequence[Member]) -> list[datetime]:
    """Returns a time for each replica that may be suspended for other jobs: the time from which this is allowed.

    Leaves out replicas within the team's guaranteed share, and replicas that are already stopping.
    """
    return [at for member in members if (at := member.claimable_from)]


def on_notice(members: Sequence[Member]) -> str:
    """Returns the subject and verb of a sentence about the replicas that may be suspended, such as "2 replicas run"."""
    count = len(claimable_from(members))
    return "1 replica runs" if count == 1 else f"{count} replicas run"


def troubles_of(service: Service, members: Sequence[Member]) -> list[str]:
    """Returns sentences that say why replicas are not ready, or why a rollout is stuck. Returns an empty list if all is
    well."""
    if service.removed_at or service.stopped_at:
        return []
    told = [f"No replicas can be created: {service.trouble}"] if service.trouble else []
    revision = service.current
    if revision is not None and has_failed(service):
        told.append(f"Revision {revision.number} has failed: {revision.why_failed}.")
    running = [member for member in members if member.job.state == Job.State.RUNNING and not member.is_ready]
    said = next((one.why_not_ready for one in running if one.why_not_ready), "")
    if said:
        told.append(f"{_are(len(running), 'running replica is', 'running replicas are')} not ready: {said}.")
        told.extend(
            filter(
                None,
                [
                    next(
                        (
                            what_to_do(one.job, one.lease, service.cluster)
                            for one in running
                            if one.why_not_ready
                        ),
                        "",
                    )
                ],
            )
        )
    if any(Reason(member.job.reason).is_never for member in members if member.reason):
        never = next(one.reason for one in members if one.reason and Reason(one.job.reason).is_never)
        told.append(f"The service can never run with its present specification: {never}.")
    elif is_stuck(service, members):
        told.append(
            "The rollout waits for GPUs, because the old replicas keep theirs until a new one is ready. With “Maximum "
            "missing replicas during a rollout” at 1, a new replica gets the GPUs of an old one."
            + (f" {ANSWERS_NOBODY}" if service.replicas == 1 else "")
        )
    if service.why_unknown:
        told.append(f"Jobs cannot reach the service by its network name: {service.why_unknown}")
    return told


def is_stuck(service: Service, members: Sequence[Member]) -> bool:
    """Returns whether a rollout is stuck because a new replica waits for GPUs.

    This can happen only if `max_unavailable` is 0. The old replicas then keep their GPUs until a new replica is ready.
    """
    if not service.good_id or service.good_id == service.current_id or service.max_unavailable:
        return False
    return any(member.job.revision_id == service.current_id and member.reason for member in members)


def sentences_of(service: Service, members: Sequence[Member], *, reader: User) -> list[str]:
    """Returns sentences that say how many replicas run, wait or end, and why. They name only objects that `reader` may
    see."""
    if service.removed_at or service.stopped_at:
        left = f" {_are(len(members), 'replica is', 'replicas are')} ending." if members else ""
        if service.removed_at:
            return [f"The service was removed.{left}"]
        return [f"The service is stopped. {CALLERS_GET}{left}"]
    ready = sum(member.is_ready for member in members)
    told = [
        f"{ready} of {counted(service.replicas, 'replica')} {'is' if 1 in (ready, service.replicas) else 'are'} ready."
    ]
    if not service.replicas:
        told = [f"The service is scaled to 0 replicas. {CALLERS_GET}"]
    if service.replicas and not ready and service.good_id and service.good_id != service.current_id:
        told = [_silent_rollout(service)]
    told += _not_ready(members)
    if crashes := crash_loop_of(service, now=timezone.now()):
        told.append(f"{crashes.text}.")
    waiting = [member for member in members if member.job.state in Job.WAITING]
    if waiting:
        why = Counter(member.reason for member in waiting).most_common(MOST_WORDS)
        waits = f"{_are(len(waiting), 'replica waits', 'replicas wait')} for GPUs"
        if len(why) > 1:
            told.append(f"{waits}: {', '.join(f'{count} × {reason}' for reason, count in why)}.")
        elif is_stuck(service, members):  # `troubles_of` explains the cause
            told.append(f"{waits}: {why[0][0]}.")
        else:
            explained = Explainer(service.cluster, reader).explain(_with_service(waiting[0].job, service))
            told += [f"{waits}.", explained.sentence]
        if forecast := first_start(member.job for member in waiting):
            told.append(_expected(forecast))
    kept = sum(member.job.state != Job.State.CANCELLING for member in members)
    if service.replicas > kept and not service.trouble and service.good_id == service.current_id:
        told.append(f"{_are(service.replicas - kept, 'replica', 'replicas')} will be created soon.")
    return told + _roll_out(service, members)


def _silent_rollout(service: Service) -> str:
    """Returns a sentence on a rollout while nobody answers, with the time since when."""
    since = silent_since(service)
    when = f" since {to_the_second(timezone.localtime(since), timezone.now())}" if since else ""
    return f"Rolling out, no replica is ready{when}: {counted(service.replicas, 'replica')} wanted."


def _expected(forecast: JobForecast) -> str:
    """Returns a sentence that says between which times the first waiting replica is expected to start."""
    now = timezone.now()
    earliest, latest = (
        at and to_the_second(timezone.localtime(at), now) for at in (forecast.earliest, forecast.starts_by)
    )
    when = f"between {earliest} and {latest}" if forecast.earliest > now else f"by {latest}"
    return f"The first waiting replica is expected to start {when}. 8 of 10 such forecasts should hold."


def _not_ready(members: Sequence[Member]) -> list[str]:
    running = [member for member in members if member.job.state == Job.State.RUNNING and not member.is_ready]
    starting = sum(member.job.state == Job.State.STARTING for member in members)
    leaving = sum(member.job.state in (Job.State.STOPPING, Job.State.CANCELLING) for member in members)
    told = []
    if running and not any(member.why_not_ready for member in running):
        told.append(f"{_are(len(running), 'running replica is', 'running replicas are')} not ready.")
    if starting:
        told.append(f"{_are(starting, 'replica is', 'replicas are')} starting.")
    if leaving:
        told.append(f"{_are(leaving, 'replica is', 'replicas are')} giving GPUs back.")
    return told


def _roll_out(service: Service, members: Sequence[Member]) -> list[str]:
    revision = service.current
    if revision is None or not service.replicas or service.good_id == service.current_id:
        return []
    of_it = [member for member in members if member.job.revision_id == revision.pk]
    proven = sum(member.job.first_ready_at is not None for member in of_it)
    kept = sum(
        member.job.revision_id != revision.pk and member.job.state != Job.State.CANCELLING
        for member in members
    )
    older = f"; {_are(kept, 'replica', 'replicas')} of older revisions will be replaced" if kept else ""
    return [
        f"Revision {revision.number} is being rolled out: {proven} of {counted(service.replicas, 'replica')}"
        f" {'has' if service.replicas == 1 else 'have'} become ready{older}."
    ]


def good_to_go_back_to(service: Service) -> ServiceRevision | None:
    """Returns the revision that worked last while another one is rolled out; None if there is no such revision."""
    return service.good if service.wanted and service.good_id != service.current_id else None


def extra_of(service: Service, members: Sequence[Member]) -> int:
    """Returns how many more replicas than wanted have not ended, as happens during a rollout.

    Returns 0 for a service that is stopped or removed.
    """
    if service.removed_at or service.stopped_at:
        return 0
    return max(0, len(members) - service.replicas)


def revisions_of(service: Service) -> list[RevisionDetail]:
    """Returns all revisions of a service, latest first, each with its difference from the previous revision."""
    found = list(service.revisions.select_related("author").order_by("-number"))
    replicas = failed_replicas(service) if any(revision.failed_at for revision in found) else {}
    latest = next((revision.pk for revision in found if revision.pk in replicas), None)
    return [
        RevisionDetail(
            now,
            _difference(then, now),
            replicas.get(now.pk),
            log_end_of(replicas[now.pk]) if now.pk == latest else None,
        )
        for now, then in zip(found, [*found[1:], None], strict=False)
    ]


def _difference(then: ServiceRevision | None, now: ServiceRevision) -> list[tuple[str, str]]:
    if then is None:
        return [("", line) for line in yaml_of(now).splitlines()]
    lines = unified_diff(yaml_of(then).splitlines(), yaml_of(now).splitlines(), n=0, lineterm="")
    return [(line[0], line[1:]) for line in list(lines)[2:] if line[0] in "+-"]


def costs_of(services: Iterable[Service], user: User) -> dict[int | None, list[tuple[str, Decimal]]]:
    """Returns the cost of each service until now, by service id, as pairs (currency, amount).

    The cost of a service is that of all replicas that it ever had.
    """
    jobs = Job.objects.filter(service__in=[service.pk for service in services])
    return costs_by("service_id", jobs, user)


def _with_service(job: Job, service: Service) -> Job:
    """Copies the tenant and cluster objects of the service to the job, so that they need not be queried again. Returns
    the job."""
    job.tenant, job.cluster = service.tenant, service.cluster
    return job


def _are(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
