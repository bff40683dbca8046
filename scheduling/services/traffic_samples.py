"""Stores the requests that web servers have counted, rolls them up, and reads them as points of a chart.

A web server reports for each window all that it has counted so far. So a report that is lost, repeated or late changes
nothing: of two reports of a window, the one with more requests counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.db import transaction
from django.db.models import QuerySet

from accounting.core.bulk import insert_rows, update_rows
from accounting.core.clock import now_from_database
from scheduling.backends.summaries import WINDOW
from scheduling.metrics.reading import MOST_POINTS, step_for
from scheduling.metrics.rolling import LEVELS, begin_of, due, number_at, roll_levels
from scheduling.models import Service, TrafficSample, TrafficStream
from scheduling.services.traffic import Traffic


@dataclass(frozen=True)
class Report:
    """All that one web process has counted of a service in the window `number` of WINDOW seconds."""

    service_id: int
    number: int
    traffic: Traffic


@transaction.atomic(durable=True)
def note_traffic(*, source: str, reports: Sequence[Report]) -> None:
    """Stores reports of the web process `source`. Ignores those of services that do not exist, and those of time that
    is rolled up already."""
    streams = _locked_streams({report.service_id for report in reports})
    known = {
        (row.stream_id, row.number): row
        for row in TrafficSample.objects.filter(
            stream__in=streams, level=0, source=source, number__in={report.number for report in reports}
        )
    }
    latest: dict[tuple[int, int], Traffic] = {}
    for report in reports:
        stream = streams.get(report.service_id)
        if stream is None or (stream.rolled_until and _begin(report.number) < stream.rolled_until):
            continue
        key = report.service_id, report.number
        stored = known[key].requests if key in known else 0
        before = latest[key].requests if key in latest else stored
        if report.traffic.requests > before:
            latest[key] = report.traffic
    changed: list[TrafficSample] = []
    new: list[TrafficSample] = []
    for (service_id, number), traffic in latest.items():
        row = known.get((service_id, number)) or TrafficSample(
            stream_id=service_id, number=number, source=source, at=_begin(number)
        )
        row.requests, row.sums = traffic.requests, traffic.stored
        (changed if (service_id, number) in known else new).append(row)
        stream = streams[service_id]
        stream.oldest_at = min(stream.oldest_at, row.at)
        stream.newest_at = max(stream.newest_at, row.at)
    insert_rows(new)
    update_rows(changed, ["requests", "sums"])
    update_rows(
        [streams[service_id] for service_id in {key[0] for key in latest}], ["oldest_at", "newest_at"]
    )


def _begin(number: int) -> datetime:
    return begin_of(number, WINDOW)


def _locked_streams(service_ids: set[int]) -> dict[int, TrafficStream]:
    """Returns the streams by service, locked in the caller's transaction. Creates those that are missing."""

    def locked() -> dict[int, TrafficStream]:
        found = TrafficStream.objects.select_for_update().filter(service__in=service_ids).order_by("service")
        return {stream.service_id: stream for stream in found}

    known = locked()
    if missing := service_ids - known.keys():
        existing = Service.objects.filter(pk__in=missing).order_by("pk").values_list("pk", flat=True)
        now = now_from_database()
        insert_rows(
            [TrafficStream(service_id=pk, oldest_at=now, newest_at=now) for pk in existing],
            ignore_conflicts=True,
        )
        known = locked()
    return known


def traffic_to_roll() -> QuerySet[TrafficStream]:
    return due(TrafficStream.objects.all())


@transaction.atomic(durable=True)
def roll_up_traffic(*, service_id: int) -> int:
    """Rolls up the old samples of a service as those of jobs' metrics. Returns the number of rows that were
    replaced."""
    stream = TrafficStream.objects.select_for_update().filter(pk=service_id).first()
    if stream is None:
        return 0
    return roll_levels(stream, stream.newest_at, partial(_roll, stream))


def _roll(stream: TrafficStream, level: int, until: datetime) -> int:
    old = TrafficSample.objects.filter(stream=stream, level=level, at__lt=until)
    samples = list(old.values_list("at", "sums"))
    if not samples:
        return 0
    seconds = LEVELS[level + 1].seconds
    windows: dict[int, Traffic] = {}
    for at, sums in samples:
        windows.setdefault(number_at(at, seconds), Traffic()).add(Traffic.restored(sums))
    old.delete()
    insert_rows(
        TrafficSample(
            stream=stream,
            level=level + 1,
            number=number,
            source="",
            at=begin_of(number, seconds),
            requests=traffic.requests,
            sums=traffic.stored,
        )
        for number, traffic in windows.items()
    )
    return len(samples)


@dataclass(frozen=True)
class TrafficPoints:
    """The traffic of a service from `begins` to `ends`, in `count` windows of `seconds`, the first of which contains
    `begins`. `points` has the windows with requests, by number."""

    begins: datetime
    ends: datetime
    seconds: int
    points: dict[int, Traffic]

    @property
    def count(self) -> int:
        return max(0, -((self.first - self.ends) // timedelta(seconds=self.seconds)))

    @property
    def first(self) -> datetime:
        """Returns when the first window begins."""
        return begin_of(number_at(self.begins, self.seconds), self.seconds)

    def time_of(self, place: int) -> datetime:
        """Returns when a window begins."""
        return self.first + timedelta(seconds=self.seconds * place)

    def rate_of(self, place: int) -> float:
        """Returns the requests per second in the part of a window that is in the period."""
        begins = max(self.begins, self.time_of(place))
        covered = (min(self.ends, self.time_of(place + 1)) - begins).total_seconds()
        found = self.points.get(place)
        return found.requests / covered if found and covered > 0 else 0.0

    @property
    def whole(self) -> Traffic:
        found = Traffic()
        for point in self.points.values():
            found.add(point)
        return found


def read_traffic(
    service: Service, *, begins: datetime, ends: datetime, most_points: int = MOST_POINTS
) -> TrafficPoints:
    """Returns the requests to a service from `begins` to `ends`, with at most `most_points` windows.

    Samples belong to the period if they begin in it. The period never begins before the service was created. Its ends
    are moved to the ends of the finest windows.
    """
    begins = _begin(number_at(max(begins, service.created_at), WINDOW))
    ends = max(_begin(number_at(ends, WINDOW)), begins)
    rows = list(
        TrafficSample.objects.filter(stream=service.pk, at__gte=begins, at__lt=ends).values_list(
            "level", "at", "sums"
        )
    )
    finest = max((LEVELS[level].seconds for level, _, _ in rows), default=WINDOW)
    seconds = step_for(ends - begins, finest, most_points)
    found = TrafficPoints(begins, ends, seconds, {})
    for _, at, sums in rows:
        place = (at - found.first) // timedelta(seconds=seconds)
        found.points.setdefault(place, Traffic()).add(Traffic.restored(sums))
    return found
