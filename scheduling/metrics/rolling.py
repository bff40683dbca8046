"""Rolls up the samples of long jobs: the older the samples of a job are, the longer are their windows.

Ages count from the job's newest sample, not from now. So a short job keeps its finest samples for as long as it has any
samples, and a job that runs for months has a bounded number of rows: 3 000 for the first 60 days, and then 4 a day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

from django.db import transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Coalesce

from accounting.core.bulk import insert_rows
from scheduling.backends.summaries import WINDOW, Summary, merged, of_value
from scheduling.models import MetricSample, MetricStream, TrafficStream


class Level(NamedTuple):
    """Samples with windows of `seconds`, which are kept until they are `keep` older than the newest sample."""

    seconds: int
    keep: timedelta


LEVELS = (
    Level(WINDOW, timedelta(hours=1)),
    Level(60, timedelta(hours=12)),
    Level(600, timedelta(days=7)),
    Level(3600, timedelta(days=60)),
    Level(21_600, timedelta.max),
)
SLACK = timedelta(minutes=10)  # how much is rolled up at once, at least
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Stream = TypeVar("Stream", MetricStream, TrafficStream)
Values = Mapping[str, Any]  # as MetricSample.values stores them


def stored(value: Summary) -> float | list[float]:
    """Returns the form in which a sample stores the summary of a metric."""
    return value.total if value.size == 1 else list(value)


def restored(value: float | list[float]) -> Summary:
    if isinstance(value, list):
        size, *rest = value
        return Summary(int(size), *rest)
    return of_value(value)


def number_at(at: datetime, seconds: int) -> int:
    """Returns the number of the window of `seconds` that contains the time `at`, counted from 1970."""
    return (at - EPOCH) // timedelta(seconds=seconds)


def begin_of(number: int, seconds: int) -> datetime:
    return EPOCH + timedelta(seconds=number * seconds)


def rolled(samples: Iterable[tuple[datetime, Values]], seconds: int) -> dict[int, dict[str, Summary]]:
    """Returns the sums of samples (time, values) in windows of `seconds`: by number of the window, then by metric.

    The samples must be in order of time.
    """
    windows: dict[int, dict[str, Summary]] = {}
    for at, values in samples:
        sums = windows.setdefault(number_at(at, seconds), {})
        for name, value in values.items():
            sums[name] = merged(sums.get(name), restored(value))
    return windows


def due(streams: QuerySet[Stream]) -> QuerySet[Stream]:
    """Returns those of the streams of which the finest samples are to be rolled up."""
    since = Coalesce(F("rolled_until"), F("oldest_at"))
    return streams.filter(newest_at__gt=since + LEVELS[0].keep + SLACK)


def roll_levels(
    stream: MetricStream | TrafficStream, newest_at: datetime, roll: Callable[[int, datetime], int]
) -> int:
    """Rolls up the old samples of a stream, level by level, in the caller's transaction, which has locked the stream.
    Returns the number of rows that were replaced.

    `roll(level, until)` replaces the samples of a level before the time `until` by those of the next level, and returns
    their number.
    """
    replaced = 0
    for level, (_, keep) in enumerate(LEVELS[:-1]):
        coarser = LEVELS[level + 1].seconds
        until = begin_of(number_at(newest_at - keep, coarser), coarser)
        replaced += roll(level, until)
        if level == 0 and (stream.rolled_until is None or until > stream.rolled_until):
            stream.rolled_until = until
    stream.save(update_fields=["rolled_until"])
    return replaced


def streams_to_roll() -> QuerySet[MetricStream]:
    return due(MetricStream.objects.all())


@transaction.atomic(durable=True)
def roll_up(*, stream_id: int) -> int:
    """Rolls up the old samples of a stream. Returns the number of rows that were replaced.

    Each sample is moved as a whole, in one transaction, so it is counted once whatever happens.
    """
    stream = MetricStream.objects.select_for_update().filter(pk=stream_id).first()
    if stream is None or stream.newest_at is None:
        return 0
    return roll_levels(stream, stream.newest_at, partial(_roll, stream))


def _roll(stream: MetricStream, level: int, until: datetime) -> int:
    old = MetricSample.objects.filter(stream=stream, level=level, at__lt=until)
    samples = list(old.order_by("at", "number").values_list("at", "values"))
    if not samples:
        return 0
    seconds = LEVELS[level + 1].seconds
    old.delete()
    insert_rows(
        MetricSample(
            stream_id=stream.pk,
            level=level + 1,
            number=number,
            at=begin_of(number, seconds),
            values={name: stored(value) for name, value in sums.items()},
        )
        for number, sums in rolled(samples, seconds).items()
    )
    return len(samples)
