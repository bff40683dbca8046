"""Stops jobs that exceed their own time limit or one of their team. If a limit only warns, warns once.

The owner of a job is warned before a limit stops it, once for each length of the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from accounting.access import audit
from accounting.core.clock import now_from_database
from accounting.limits.quotas import LimitUsage, visible_lineage
from accounting.models import Quota, User
from scheduling.core.announcing import announce_to_owner
from scheduling.core.event_texts import sentence_of
from scheduling.core.locks import lock_schedule
from scheduling.jobs.actions import cancel_within
from scheduling.leases.history import note_now
from scheduling.limits.usage import ran_for
from scheduling.models import Job, JobEvent
from scheduling.models.event_codes import EventCode, Message

WARNED = "warned_of_limit"
NEAR = "time_limit_near"  # the warning before the end
SHORTEST_NOTICE, LONGEST_NOTICE = timedelta(minutes=10), timedelta(days=1)
# Jobs that hold GPUs, and waiting jobs that have held some: a limit may have been lowered since.
HAVE_RUN = Q(state__in=[Job.State.STARTING, Job.State.RUNNING]) | Q(state__in=Job.WAITING, epoch__gt=0)


@dataclass(frozen=True, slots=True)
class Overrun:
    """A job that has reached a time limit, or soon will: the limit `quota` of a team or user; None means the job's own
    limit. `left`: how long the job may still run; None if it has reached the limit."""

    job_id: int
    quota: Quota | None
    longest: timedelta
    left: timedelta | None = None

    @property
    def stops(self) -> bool:
        return _stops(self.quota) and self.left is None

    def says(self, job: Job) -> Message:
        """Returns a message about the limit for everybody who may see the job.

        - For the job's own limit, the message says how long it is.
        - For a limit of the job's own team, the message says to whom the limit applies, and its hours.
        - For a limit of a team above, it only says that there is such a limit, because not every reader may see that
          team.
        """
        if self.left is not None:
            return self._nears(job, self.left)
        if self.quota is None:
            return Message.of(EventCode.OWN_TIME_LIMIT, seconds=round((job.time_limit_hours or 0) * 3600))
        code = EventCode.TIME_LIMIT if self.stops else EventCode.TIME_LIMIT_WARNED
        if self.quota.tenant_id in visible_lineage(job.tenant, None):
            said = Message.of(code, whose=_whose(self.quota, job), hours=f"{self.quota.limit.normalize():f}")
        else:
            said = Message.of(code, above=job.tenant.name)
        return said if self.stops else said.but(quota=self.quota.pk)

    def _nears(self, job: Job, left: timedelta) -> Message:
        seconds = round(left.total_seconds())
        if self.quota is None:
            said = Message.of(EventCode.TIME_LIMIT_NEAR, left=seconds)
        elif self.quota.tenant_id in visible_lineage(job.tenant, None):
            hours = f"{self.quota.limit.normalize():f}"
            said = Message.of(
                EventCode.TIME_LIMIT_NEAR, left=seconds, whose=_whose(self.quota, job), hours=hours
            )
        else:
            said = Message.of(EventCode.TIME_LIMIT_NEAR, above=job.tenant.name)
        quota = self.quota.pk if self.quota else None
        return said.but(quota=quota, limit=round(self.longest.total_seconds()))

    def noted(self, job: Job) -> dict[str, object]:
        """Returns what the audit trail keeps about the limit, for everybody who may see the job."""
        if self.quota is None:
            return {"time_limit_hours": job.time_limit_hours}
        noted: dict[str, object] = {"quota": self.quota.pk}
        if self.quota.tenant_id in visible_lineage(job.tenant, None):
            noted |= {"limit": self.quota.limit, "whose": _whose(self.quota, job)}
        return noted


def _whose(quota: Quota, job: Job) -> str:
    return LimitUsage(quota, quota.limit, job.tenant, job.owner if quota.is_of_users else None).whose


def overlong(now: datetime, *, job_id: int | None = None) -> list[Overrun]:
    """Returns the training jobs that must be stopped or warned about, because of a time limit.

    A time limit counts the time on GPUs over all attempts. Each job is returned once, with the shortest limit that it
    has reached; limits that stop jobs come before limits that only warn, and before limits that are near (`notice`).
    Leaves out limits about which the job's history already has a warning. With `job_id`, considers only this job.
    """
    quotas = _quotas()
    # Only training jobs have time limits: a service replaces its replicas, and sessions have timeouts.
    jobs = Job.objects.filter(HAVE_RUN, kind=Job.Kind.TRAINING).select_related("tenant").defer("spec")
    if not quotas:
        jobs = jobs.filter(time_limit_hours__isnull=False)
    if job_id is not None:
        jobs = jobs.filter(pk=job_id)
    concerned = {job: limits for job in jobs if (limits := _limits_of(job, quotas))}
    ran = ran_for([job.pk for job in concerned], now) if concerned else {}
    found = {pk: _reached(job, concerned[job], ran[pk]) for job in concerned if (pk := job.pk)}
    warned = _warned([pk for pk, ones in found.items() if any(not one.stops for one in ones)])
    return [
        left[0]
        for ones in found.values()
        if (left := [one for one in ones if one.stops or _key(one) not in warned])
    ]


def notice(longest: timedelta) -> timedelta:
    """Returns how long before the end of a time limit the job's owner is warned: the last tenth of it, from 10 minutes
    to a day, and at most its last quarter."""
    return min(max(longest / 10, SHORTEST_NOTICE), LONGEST_NOTICE, longest / 4)


def _reached(job: Job, limits: Sequence[tuple[timedelta, Quota | None]], ran: timedelta) -> list[Overrun]:
    """Returns the limits that a job has reached, and last the shortest one that stops it, if the job is near to it."""
    found = [Overrun(job.pk, quota, longest) for longest, quota in limits if ran >= longest]
    longest, quota = limits[0]
    if job.state in Job.HOLDING and _stops(quota) and longest - notice(longest) <= ran < longest:
        found.append(Overrun(job.pk, quota, longest, longest - ran))
    return found


def _key(one: Overrun) -> tuple[int, str, int | None, int | None]:
    """Returns what `_warned` returns of the job's history after a warning."""
    quota = one.quota.pk if one.quota else None
    if one.left is None:
        return one.job_id, WARNED, quota, None
    return one.job_id, NEAR, quota, round(one.longest.total_seconds())


def latest_ends(jobs: Iterable[Job], now: datetime) -> dict[int, datetime]:
    """Returns, by job id, the time at which a time limit will stop the job if the job runs without a break.

    The shortest limit that stops the job counts. Leaves out jobs without such a limit.
    """
    return _ends(jobs, [quota for quota in _quotas() if _stops(quota)], now)


def end_by_limit(job: Job, reader: User) -> datetime | None:
    """Returns when a time limit stops the job if it keeps its GPUs; None if it holds none or has no time limit.

    Considers the job's own limit and those of teams that `reader` may see. A limit of another team above may stop the
    job earlier.
    """
    if job.state not in (Job.State.STARTING, Job.State.RUNNING) or job.kind != Job.Kind.TRAINING:
        return None
    stops = [quota for quota in _quotas() if _stops(quota) and _concerns(quota, job)]
    if any(quota.tenant_id != job.tenant_id for quota in stops):
        seen = visible_lineage(job.tenant, reader)
        stops = [quota for quota in stops if quota.tenant_id in seen]
    return _ends([job], stops, now_from_database()).get(job.pk)


def _ends(jobs: Iterable[Job], stops: Sequence[Quota], now: datetime) -> dict[int, datetime]:
    concerned = {
        job.pk: limits[0][0]
        for job in jobs
        if job.kind == Job.Kind.TRAINING and (limits := _limits_of(job, stops))
    }
    ran = ran_for(concerned, now) if concerned else {}
    return {pk: now + longest - ran[pk] for pk, longest in concerned.items()}


def _quotas() -> list[Quota]:
    return list(Quota.objects.filter(kind=Quota.Kind.LONGEST_RUN).select_related("tenant", "user"))


def _warned(jobs: list[int]) -> set[tuple[int, str, int | None, int | None]]:
    """Returns the job id, kind, limit id (None: the job's own) and length in seconds of the warnings that the history
    of these jobs already has. Warnings after the end of a limit have no length."""
    events = (
        JobEvent.objects.filter(job__in=jobs, kind__in=[WARNED, NEAR]) if jobs else JobEvent.objects.none()
    )
    return set(events.values_list("job_id", "kind", "detail__quota", "detail__limit"))


def _limits_of(job: Job, quotas: Iterable[Quota]) -> list[tuple[timedelta, Quota | None]]:
    """Returns the longest run times of a job, with the limits that say so. Those that stop the job come first, the
    shortest before others; None is the job's own limit."""
    found: list[tuple[timedelta, Quota | None]] = []
    if job.time_limit_hours is not None:
        found.append((timedelta(hours=job.time_limit_hours), None))
    found += [(timedelta(hours=float(quota.limit)), quota) for quota in quotas if _concerns(quota, job)]
    return sorted(found, key=lambda one: (not _stops(one[1]), one[0]))


def _concerns(quota: Quota, job: Job) -> bool:
    return job.tenant.path.startswith(quota.tenant.path) and quota.user_id in {None, job.owner_id}


def _stops(quota: Quota | None) -> bool:
    return quota is None or quota.at_limit == Quota.AtLimit.BLOCK


@transaction.atomic(durable=True)
def end_overlong(*, job_id: int) -> bool:
    """Stops a job that has reached its time limit, with the grace period of a cancellation. If the limit only warns,
    adds one warning to the job's history instead. If the end is near, adds one and announces it to the owner.

    Returns True if it stopped the job or added a warning.
    """
    lock_schedule(Job.objects.values_list("cluster_id", flat=True).get(pk=job_id))
    job = Job.objects.select_related("tenant", "owner").get(pk=job_id)
    now = now_from_database()
    over = next(iter(overlong(now, job_id=job_id)), None)
    if over is None:
        return False
    if over.stops:
        cancel_within(actor=None, job=job, why=over.says(job))
        audit.record(actor=None, verb="job.overlong", target=job, tenant=job.tenant, after=over.noted(job))
        return True
    said = over.says(job)
    if over.left is None:
        note_now(job, WARNED, said, at=now)
    else:
        note_now(job, NEAR, said, at=now)
        key = f"time-limit:{over.quota.pk if over.quota else 'own'}:{said.parameters['limit']}"
        announce_to_owner(job, "Time limit ends soon", sentence_of(said), key=key)
    return True
