"""When nobody answered for a session or in a replica's place after somebody had, for what cause and how long."""

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
# Of events that do not say their cause themselves.
BY_KIND = {
    Event.PREEMPTED: Cause.CLAIMED,
    Event.RELEASED: Cause.LOST,
    Event.START_FAILED: Cause.LOST,
    Event.SUCCEEDED: Cause.ENDED,
    Event.FAILED: Cause.ENDED,
    Event.CANCEL: Cause.PERSON,
    UNREADY: Cause.UNREADY,
}
# How far back is looked; a job under contention has a few at every attempt.
MOST_EVENTS = 2000


@dataclass(frozen=True, slots=True)
class Interruption:
    """From when to when nobody answered, and why."""

    job_id: int  # who answered before
    name: str
    cause: Cause
    text: str
    began: datetime
    ended: datetime | None  # None: nobody answers yet


def of_session(job: Job) -> list[Interruption]:
    """The latest first; that it has ended is none."""
    ends = (Event.SUCCEEDED, Event.FAILED, Event.CANCEL)
    found = _read(JobEvent.objects.filter(job=job).exclude(kind__in=ends))
    # What was interrupted when it ended stays so no longer.
    return [one if one.ended or not job.has_ended else replace(one, ended=job.ended_at) for one in found]


def of_service(service: Service) -> list[Interruption]:
    """The latest first, of all places for replicas; that a roll-out or scaling ends a replica is none."""
    return _read(JobEvent.objects.filter(job__service=service))


def back_by(jobs: Iterable[Job]) -> datetime | None:
    """When the first of the jobs that wait is expected to start at the latest; None where that is not known."""
    waiting = [job.pk for job in jobs if job.state in Job.WAITING]
    forecasts = JobForecast.objects.filter(job__in=waiting, starts_by__isnull=False)
    return forecasts.order_by("starts_by").values_list("starts_by", flat=True).first() if waiting else None


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
    """Where somebody answers: a session, or a replica and those that came after it."""

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
            # It stopped answering before Fairlot saw why.
            self.away = replace(self.away, cause=cause, text=text_of(event))

    def _end(self, at: datetime) -> None:
        if self.away is not None:
            self._over.append(replace(self.away, ended=at))
        self.away = None
