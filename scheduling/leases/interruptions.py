"""Finds interruptions: periods in which a session or service replica did not answer after it had answered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import QuerySet

from scheduling.core.event_texts import text_of
from scheduling.leases.lifecycle import Event
from scheduling.models import Job, JobEvent, JobForecast, Service
from scheduling.models.event_codes import Cause

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

    A replica that is ended by a rollout, or because the service needs fewer replicas, does not count as interrupted.
    """
    return _read(JobEvent.objects.filter(job__service=service))


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
    for event in reversed(latest):
        places.setdefault(event.job.slot, _Place(found)).hear(event)
    found += [place.away for place in places.values() if place.away is not None]
    return sorted(found, key=lambda one: one.began, reverse=True)


class _Place:
    """Finds the interruptions of one session, or of one slot of a service, from events in order of time.

    A slot is a numbered position in a service. A new replica takes the slot of the replica that it replaces, so all
    replicas in a slot count as one program.
    """

    def __init__(self, over: list[Interruption]) -> None:
        self._over = over
        self._answers = False
        self.away: Interruption | None = None

    def hear(self, event: JobEvent) -> None:
        if event.kind == READY:
            self._answers = True
            self._end(event.at)
            return
        cause = Cause(event.detail.get("cause", BY_KIND[event.kind]))
        if cause is Cause.REPLACED:
            self._answers = False
            self._end(event.at)
        elif self._answers:
            self._answers = False
            self.away = Interruption(event.job_id, event.job.name, cause, text_of(event), event.at, None)
        elif self.away is not None and self.away.cause is Cause.UNREADY:
            # The program stopped answering before the cause was observed.
            self.away = replace(self.away, cause=cause, text=text_of(event))

    def _end(self, at: datetime) -> None:
        if self.away is not None:
            self._over.append(replace(self.away, ended=at))
        self.away = None
