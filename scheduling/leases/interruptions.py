"""Finds interruptions: periods in which a session or service replica did not answer after it had answered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import QuerySet

from scheduling.core.event_texts import text_of
from scheduling.leases.lifecycle import Event
from scheduling.models import Job, JobEvent, JobForecast, Service
from scheduling.models.event_codes import Cause, EventCode, ServiceEventKind

READY, UNREADY = "ready", "unready"
# The Cause of events that have none in their parameters, by kind of event.
BY_KIND = {
    Event.PREEMPTED: Cause.CLAIMED,
    Event.RELEASED: Cause.LOST,
    Event.START_FAILED: Cause.LOST,
    Event.SUCCEEDED: Cause.ENDED,
    Event.FAILED: Cause.ENDED,
    Event.CANCEL: Cause.PERSON,
    UNREADY: Cause.UNREADY,
}
# The most events that are read; a job under contention has a few for every attempt.
MOST_EVENTS = 2000


@dataclass(frozen=True, slots=True)
class Interruption:
    """A period in which a program did not answer although it had answered before, with the cause."""

    job_id: int  # the job that answered before
    name: str
    cause: Cause
    text: str
    began: datetime
    ended: datetime | None  # None: the program still does not answer


def of_session(job: Job) -> list[Interruption]:
    """Returns the interruptions of a session, latest first. The end of the session does not count as an
    interruption."""
    ends = (Event.SUCCEEDED, Event.FAILED, Event.CANCEL)
    found = _read(JobEvent.objects.filter(job=job).exclude(kind__in=ends))
    # An interruption that lasts at the end of the session ends with it.
    return [one if one.ended or not job.has_ended else replace(one, ended=job.ended_at) for one in found]


def of_service(service: Service) -> list[Interruption]:
    """Returns the interruptions of all replicas of a service, latest first.

    A replica that is ended by a rollout, or because the service needs fewer replicas, does not count as interrupted,
    unless a rollout leaves no replica that answers: then the service is interrupted until a replica is ready, or until
    it is stopped, removed or scaled to no replicas.
    """
    found = _read(JobEvent.objects.filter(job__service=service))
    gaps = [one for one in found if one.cause is Cause.REPLACED]
    if not gaps:
        return found
    kinds = [ServiceEventKind.STOPPED, ServiceEventKind.REMOVED, ServiceEventKind.SCALED]
    told = service.events.filter(kind__in=kinds, at__gte=gaps[-1].began)
    unwanted = [event.at for event in told if event.detail.get("replicas", 0) == 0]
    return [_until_unwanted(one, unwanted) if one in gaps else one for one in found]


def silent_since(service: Service) -> datetime | None:
    """Returns since when no replica of a service answers, of which none is ready now; None if this is unknown."""
    return max((one.began for one in of_service(service) if one.ended is None), default=None)


def _until_unwanted(one: Interruption, unwanted: Iterable[datetime]) -> Interruption:
    """Ends an interruption at the first time in `unwanted` that is in it."""
    within = [at for at in unwanted if one.began <= at and (one.ended is None or at < one.ended)]
    return replace(one, ended=min(within, default=one.ended))


def first_start(jobs: Iterable[Job]) -> JobForecast | None:
    """Returns the forecast of the waiting job in `jobs` that is expected to start first; None if no forecast predicts a
    start."""
    waiting = [job.pk for job in jobs if job.state in Job.WAITING]
    forecasts = JobForecast.objects.filter(job__in=waiting, starts_by__isnull=False)
    return forecasts.order_by("starts_by").first() if waiting else None


def back_by(jobs: Iterable[Job]) -> datetime | None:
    """Returns the latest time at which the first of the waiting jobs in `jobs` is expected to start; None if no
    forecast predicts a start."""
    forecast = first_start(jobs)
    return forecast.starts_by if forecast else None


def _read(events: QuerySet[JobEvent]) -> list[Interruption]:
    told = events.filter(kind__in=[READY, *BY_KIND]).select_related("job").defer("job__spec")
    latest = list(told.order_by("-at", "-id")[:MOST_EVENTS])
    found: list[Interruption] = []
    places: dict[int | None, _Place] = {}
    gap: Interruption | None = None  # a rollout has left no replica that answers
    for event in reversed(latest):
        place = places.setdefault(event.job.slot, _Place(found))
        answered = place.answers
        place.hear(event)
        if gap is not None and place.answers:
            found.append(replace(gap, ended=event.at))
            gap = None
        if (
            answered
            and event.code == EventCode.SERVICE_CHANGES
            and not any(one.answers for one in places.values())
        ):
            gap = _interruption(event, Cause.REPLACED)
    found += [one for one in (gap, *(place.away for place in places.values())) if one is not None]
    return sorted(found, key=lambda one: one.began, reverse=True)


def _interruption(event: JobEvent, cause: Cause) -> Interruption:
    return Interruption(event.job_id, event.job.name, cause, text_of(event), event.at, None)


class _Place:
    """Finds the interruptions of one session, or of one slot of a service, from events in order of time.

    A slot is a numbered position in a service. A new replica takes the slot of the replica that it replaces, so all
    replicas in a slot count as one program.
    """

    def __init__(self, over: list[Interruption]) -> None:
        self._over = over
        self.answers = False
        self.away: Interruption | None = None

    def hear(self, event: JobEvent) -> None:
        if event.kind == READY:
            self.answers = True
            self._end(event.at)
            return
        cause = Cause(event.detail.get("cause", BY_KIND[event.kind]))
        if cause is Cause.REPLACED:
            self.answers = False
            self._end(event.at)
        elif self.answers:
            self.answers = False
            self.away = _interruption(event, cause)
        elif self.away is not None and self.away.cause is Cause.UNREADY:
            # The program stopped answering before the cause was observed.
            self.away = replace(self.away, cause=cause, text=text_of(event))

    def _end(self, at: datetime) -> None:
        if self.away is not None:
            self._over.append(replace(self.away, ended=at))
        self.away = None
