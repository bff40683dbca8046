"""Reads the metrics of a job as series on one time axis, with as many points as a chart can show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import OuterRef

from scheduling.backends.summaries import WINDOW, Summary, merged
from scheduling.metrics.names import KINDS, parts_of
from scheduling.metrics.rolling import EPOCH, LEVELS, restored
from scheduling.models import MetricSample, MetricStream

# Lengths that the windows of a chart may have, in seconds: multiples of those of the samples' levels.
STEPS = (
    WINDOW, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400, 7 * 86_400, 28 * 86_400,
    364 * 86_400,
)  # fmt: skip
MOST_POINTS = 240
LATEST = 6  # windows in which the latest values are looked up
TIME = "time"


@dataclass
class Series:
    """One metric over time or steps. `points` has a summary for each window in which there are values, by number of the
    window on the axis, or for each step."""

    name: str
    source: str
    points: dict[float, Summary] = field(default_factory=dict)

    @property
    def metric(self) -> str:
        return parts_of(self.name)[0] if self.is_measured else self.name

    @property
    def gpu(self) -> str:
        """Returns the GPU as NODE/INDEX; "" if the series belongs to the whole job."""
        return parts_of(self.name)[1] if self.is_measured else ""

    @property
    def is_measured(self) -> bool:
        """Returns whether Fairlot measures this metric, so that its meaning and unit are known."""
        return self.source == MetricStream.Source.MACHINE

    @property
    def label(self) -> str:
        kind = KINDS.get(self.metric) if self.is_measured else None
        return kind.label if kind else self.name

    @property
    def unit(self) -> str:
        kind = KINDS.get(self.metric) if self.is_measured else None
        return kind.unit if kind else ""

    @property
    def whole(self) -> Summary:
        """Returns the summary of all points; there is at least one."""
        found: Summary | None = None
        for number in sorted(self.points):
            found = merged(found, self.points[number])
        assert found is not None  # noqa: S101 - a series without points is not made
        return found


@dataclass
class JobMetrics:
    """All metrics of a job in a period. The axis has `count` windows of `seconds` from `begins` on; none if there are
    no samples.

    `over` is TIME, or the name of the steps by which the series are then (scheduling.metrics.steps); `step_times` says
    when steps were reported.
    """

    job_id: int
    begins: datetime
    seconds: int
    count: int
    series: list[Series]
    left_out: dict[str, int]
    over: str = TIME
    streams: list[MetricStream] = field(default_factory=list)
    step_times: dict[float, datetime] = field(default_factory=dict)
    is_thinned: bool = False  # whether some steps are left out

    @property
    def ends(self) -> datetime:
        return self.begins + timedelta(seconds=self.seconds * self.count)

    @property
    def times(self) -> list[datetime]:
        return [self.time_of(number) for number in range(self.count)]

    def time_of(self, number: float) -> datetime:
        """Returns when a window begins."""
        return self.begins + timedelta(seconds=self.seconds * number)

    def named(self, metric: str, source: str = MetricStream.Source.MACHINE) -> list[Series]:
        return [one for one in self.series if one.metric == metric and one.source == source]


def read_metrics_of(
    jobs: Sequence[int],
    *,
    begins: datetime | None = None,
    ends: datetime | None = None,
    origins: Mapping[int, datetime] | None = None,
    most_points: int = MOST_POINTS,
) -> dict[int, JobMetrics]:
    """Returns the metrics of each of these jobs that has streams, with windows of the same length for all of them.

    - `begins`, `ends`: the period; None: from the first sample on, or to the last one.
    - `origins`: the time of each job from which the windows of its axis are counted, to compare jobs from their starts
      on. Without it the windows of all jobs are those of the calendar.

    Takes two queries, whatever the number of jobs and samples is.
    """
    streams = {stream.pk: stream for stream in MetricStream.objects.filter(job__in=jobs).order_by("pk")}
    rows = MetricSample.objects.filter(stream__in=list(streams))
    if begins is not None:
        # A sample belongs to the period if its window overlaps it; the longest windows begin so much earlier.
        rows = rows.filter(at__gt=begins - timedelta(seconds=LEVELS[-1].seconds))
    if ends is not None:
        rows = rows.filter(at__lt=ends)
    found = [
        row
        for row in rows.order_by("at", "number").values_list("stream_id", "level", "at", "values")
        if begins is None or row[2] + timedelta(seconds=LEVELS[row[1]].seconds) > begins
    ]
    spans: dict[int, tuple[datetime, datetime]] = {}
    for stream_id, _, at, _ in found:
        job = streams[stream_id].job_id
        first, last = spans.get(job, (at, at))
        spans[job] = min(first, at), max(last, at)
    longest = max((last - first for first, last in spans.values()), default=timedelta(0))
    finest = max((LEVELS[level].seconds for _, level, _, _ in found), default=WINDOW)
    seconds = step_for(longest, finest, most_points)
    origin_of = {job: (origins or {}).get(job, EPOCH) for job in spans}
    places = {
        job: [(at - origin_of[job]) // timedelta(seconds=seconds) for at in span]
        for job, span in spans.items()
    }
    answer = {
        job: JobMetrics(
            job_id=job,
            begins=origin_of[job] + timedelta(seconds=seconds * first),
            seconds=seconds,
            count=last - first + 1,
            series=[],
            left_out={},
        )
        for job, (first, last) in places.items()
    }
    for stream in streams.values():
        nothing = JobMetrics(stream.job_id, begins or EPOCH, seconds, 0, series=[], left_out={})
        own = answer.setdefault(stream.job_id, nothing)
        own.streams.append(stream)
        for word, count in stream.left_out.items():
            own.left_out[word] = own.left_out.get(word, 0) + count
    _fill(answer, streams, found, origin_of)
    return answer


def latest_of(jobs: Sequence[int]) -> dict[int, dict[str, float]]:
    """Returns the numbers that the programs of these jobs reported last, by job and name. Takes one query.

    A number that a program reports seldom is left out if it is not among the last LATEST windows.
    """
    last = MetricSample.objects.filter(stream=OuterRef("pk")).order_by("level", "-number").values("values")
    streams = MetricStream.objects.filter(job__in=jobs).exclude(source=MetricStream.Source.MACHINE)
    found: dict[int, dict[str, float]] = {}
    rows = streams.annotate(last=ArraySubquery(last[:LATEST])).order_by("pk")
    for job, names, windows in rows.values_list("job_id", "names", "last"):
        values = found.setdefault(job, {})
        for window in reversed(windows):
            values |= {names[int(place)]: restored(value).last for place, value in window.items()}
    return found


def _fill(
    answer: Mapping[int, JobMetrics],
    streams: Mapping[int, MetricStream],
    rows: Iterable[tuple[int, int, datetime, dict[str, float | list[float]]]],
    origin_of: Mapping[int, datetime],
) -> None:
    """Adds the samples to the series of `answer`, in order of time."""
    series: dict[tuple[int, str], Series] = {}
    for stream_id, _, at, values in rows:
        stream = streams[stream_id]
        metrics = answer[stream.job_id]
        place = (at - metrics.begins) // timedelta(seconds=metrics.seconds)
        for position, value in values.items():
            one = series.get((stream_id, position))
            if one is None:
                one = series[stream_id, position] = Series(stream.names[int(position)], stream.source)
                metrics.series.append(one)
            one.points[place] = merged(one.points.get(place), restored(value))


def step_for(span: timedelta, finest: int, most_points: int) -> int:
    """Returns the shortest step, in seconds, that is a multiple of `finest` and shows `span` in at most `most_points`
    points."""
    fitting = (one for one in STEPS if one % finest == 0 and span.total_seconds() / one < most_points - 1)
    return next(fitting, STEPS[-1])
