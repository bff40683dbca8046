"""Stops jobs that exceed their time limit. If the limit only warns, warns once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from accounting.access import audit
from accounting.core.clock import now_from_database
from accounting.limits.quotas import LimitUsage, visible_lineage
from accounting.models import Quota
from scheduling.core.locks import lock_schedule
from scheduling.jobs.actions import cancel_within
from scheduling.leases.history import note_now
from scheduling.limits.usage import ran_for
from scheduling.models import Job, JobEvent
from scheduling.models.event_codes import EventCode, Message

WARNED = "warned_of_limit"


@dataclass(frozen=True, slots=True)
class Overrun:
    """A job that has reached a time limit, together with that limit (`quota`)."""

    job_id: int
    quota: Quota

    def says(self, code: EventCode, job: Job) -> Message:
        """Returns a message about the limit for everybody who may see the job. `code` selects the message's sentence.

        - For a limit of the job's own team, the message says to whom the limit applies, and its hours.
        - For a limit of a team above, it only says that there is such a limit, because not every reader may see that
          team.
        """
        if self.quota.tenant_id not in visible_lineage(job.tenant, None):
            return Message.of(code, above=job.tenant.name)
        return Message.of(code, whose=self.whose(job), hours=f"{self.quota.limit.normalize():f}")

    def whose(self, job: Job) -> str:
        owner = job.owner if self.quota.is_of_users else None
        return LimitUsage(self.quota, self.quota.limit, job.tenant, owner).whose


def overlong(now: datetime, *, job_id: int | None = None) -> list[Overrun]:
    """Returns the starting and running training jobs that must be stopped or warned about, because of a time limit.

    A time limit counts the time on GPUs over all attempts. Each job is returned once, with the shortest limit that it
    has reached; limits that stop jobs come before limits that only warn. Leaves out limits about which the job's
    history already has a warning. With `job_id`, considers only this job.
    """
    quotas = _quotas()
    if not quotas:
        return []
    # Only training jobs have time limits: a service replaces its replicas, and sessions have timeouts.
    jobs = Job.objects.filter(
        kind=Job.Kind.TRAINING, state__in=[Job.State.STARTING, Job.State.RUNNING]
    ).select_related("tenant")
    if job_id is not None:
        jobs = jobs.filter(pk=job_id)
    concerned = {job.pk: _of(quotas, job) for job in jobs.defer("spec")}
    ran = ran_for([pk for pk, limits in concerned.items() if limits], now)
    over = {pk: [quota for quota in limits if _is_over(quota, ran[pk])] for pk, limits in concerned.items()}
    warned = _warned([pk for pk, limits in over.items() if limits])
    return [
        Overrun(pk, left[0])
        for pk, limits in over.items()
        if (left := [quota for quota in limits if (pk, quota.pk) not in warned])
    ]


def latest_ends(jobs: Iterable[Job], now: datetime) -> dict[int, datetime]:
    """Returns, by job id, the time at which a time limit will stop the job if the job runs without a break.

    The shortest limit that stops the job counts. Leaves out jobs without such a limit.
    """
    stops = [quota for quota in _quotas() if quota.at_limit == Quota.AtLimit.BLOCK]
    concerned = {
        job.pk: limits[0] for job in jobs if job.kind == Job.Kind.TRAINING and (limits := _of(stops, job))
    }
    ran = ran_for(concerned, now) if concerned else {}
    return {pk: now + timedelta(hours=float(quota.limit)) - ran[pk] for pk, quota in concerned.items()}


def _quotas() -> list[Quota]:
    quotas = Quota.objects.filter(kind=Quota.Kind.LONGEST_RUN).select_related("tenant", "user")
    return list(quotas.order_by("at_limit", "limit"))  # limits that stop jobs come before those that warn


def _warned(jobs: list[int]) -> set[tuple[int, int]]:
    """Returns the (job id, limit id) pairs for which the job's history already has a warning."""
    events = JobEvent.objects.filter(job__in=jobs, kind=WARNED) if jobs else JobEvent.objects.none()
    return set(events.values_list("job_id", "detail__quota"))


def _of(quotas: Iterable[Quota], job: Job) -> list[Quota]:
    return [
        quota
        for quota in quotas
        if job.tenant.path.startswith(quota.tenant.path) and quota.user_id in {None, job.owner_id}
    ]


def _is_over(quota: Quota, ran: timedelta) -> bool:
    return ran >= timedelta(hours=float(quota.limit))


@transaction.atomic(durable=True)
def end_overlong(*, job_id: int) -> bool:
    """Stops a job that has reached its time limit. If the limit only warns, adds one warning to the job's history
    instead.

    Returns True if it stopped the job or added a warning.
    """
    lock_schedule(Job.objects.values_list("cluster_id", flat=True).get(pk=job_id))
    job = Job.objects.select_related("tenant", "owner").get(pk=job_id)
    now = now_from_database()
    over = next(iter(overlong(now, job_id=job_id)), None)
    if over is None:
        return False
    if over.quota.at_limit == Quota.AtLimit.BLOCK:
        cancel_within(actor=None, job=job, why=over.says(EventCode.TIME_LIMIT, job))
        after: dict[str, object] = {"quota": over.quota.pk}
        if over.quota.tenant_id in visible_lineage(job.tenant, None):
            after |= {"limit": over.quota.limit, "whose": over.whose(job)}
        audit.record(actor=None, verb="job.overlong", target=job, tenant=job.tenant, after=after)
        return True
    said = over.says(EventCode.TIME_LIMIT_WARNED, job).but(quota=over.quota.pk)
    note_now(job, WARNED, said, at=now)
    return True
