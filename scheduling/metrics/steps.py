"""Reads the metrics of jobs on an axis of training steps instead of time, if their programs report steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from django.db.models import Q

from scheduling.backends.summaries import Summary, merged, of_value
from scheduling.metrics.reading import JobMetrics, Series
from scheduling.metrics.reported import NAMES
from scheduling.metrics.thinning import MOST, Kept, Value, drawn
from scheduling.models import MetricPoint, MetricStream

Points = dict[float, Value]  # by step


@dataclass(frozen=True)
class StepAxis:
    """An axis from the step `first` to the step `last`."""

    name: str
    first: float
    last: float

    def label(self, step: float) -> str:
        return f"{self.name} {step:.10g}"


def axis_name(jobs: Iterable[JobMetrics]) -> str:
    """Returns the name of the steps that most of the jobs report; "" if no job reports more than one step.

    Steps and epochs cannot share an axis.
    """
    own = [{name for stream in one.streams for name in _names_of(stream)} for one in jobs]
    counts = [sum(name in names for names in own) for name in NAMES]
    return NAMES[counts.index(max(counts))] if any(counts) else ""


def _names_of(stream: MetricStream) -> Iterable[str]:
    """Yields the names of steps over which the points of the stream can be drawn."""
    ends = [Kept.restored(one) for one in stream.by_step.get("kept", {}).values()]
    if any(one.last is not None and one.low < one.last[0] for one in ends):
        yield stream.by_step["axis"]
        yield from (name for name in stream.names if name in NAMES)


def by_step(
    found: Mapping[int, JobMetrics],
    *,
    begins: datetime | None = None,
    ends: datetime | None = None,
    only: str = "",
    most_points: int = MOST,
) -> tuple[StepAxis, dict[int, JobMetrics]] | None:
    """Returns one axis of steps for these jobs and their metrics on it, by step; None if no job reports steps.

    - `begins`, `ends`: the period in which the steps were reported.
    - `only`: the name of the one number of the program that is needed; "" for all metrics.
    - `most_points`: of each series. Longer series are thinned evenly, with their first and last points.

    What programs report by these steps has a point at each of them. Everything else, such as the use of GPUs, counts to
    the step that was reported last before the end of its window. Takes one query.
    """
    name = axis_name(found.values())
    if not name:
        return None
    since, until = (begins.timestamp() if begins else 0.0), (ends.timestamp() if ends else float("inf"))
    points = _read([stream for one in found.values() for stream in one.streams], only, since, until)
    answer = {job: _on_axis(one, name, points, most_points) for job, one in found.items()}
    steps = [step for one in answer.values() for series in one.series for step in series.points]
    return (StepAxis(name, min(steps), max(steps)), answer) if steps else None


def _read(
    streams: Iterable[MetricStream], only: str, since: float, until: float
) -> dict[int, dict[str, Points]]:
    """Returns the points of each stream, by name of the metric and by step in ascending order."""
    wanted, last = Q(pk__in=[]), list[tuple[MetricStream, int, float, Value]]()
    known: dict[int, MetricStream] = {}
    for stream in streams:
        known[stream.pk] = stream
        kept = {int(metric): Kept.restored(one) for metric, one in stream.by_step.get("kept", {}).items()}
        metrics = [place for place in kept if not only or stream.names[place] in (only, *NAMES)]
        wanted |= Q(stream=stream.pk, metric__in=metrics)
        last += [(stream, place, *kept[place].last) for place in metrics if kept[place].last is not None]  # type: ignore[misc]
    rows = MetricPoint.objects.filter(wanted, at__gte=since, at__lte=until).order_by(
        "stream", "metric", "step"
    )
    found: dict[int, dict[str, Points]] = {}
    for stream_id, metric, step, value, at in rows.values_list("stream_id", "metric", "step", "value", "at"):
        found.setdefault(stream_id, {}).setdefault(known[stream_id].names[metric], {})[step] = Value(
            value, at
        )
    for stream, metric, step, latest in last:
        if since <= latest.at <= until:
            found.setdefault(stream.pk, {}).setdefault(stream.names[metric], {})[step] = latest
    return found


def _on_axis(
    metrics: JobMetrics, name: str, points: Mapping[int, Mapping[str, Points]], most: int
) -> JobMetrics:
    """Returns the metrics of a job with points by step. A job without steps of this name has no series."""
    streams = [stream for stream in metrics.streams if stream.pk in points]
    own = [stream for stream in streams if stream.by_step["axis"] == name]
    is_thinned = any(
        Kept.restored(one).width for stream in streams for one in stream.by_step["kept"].values()
    ) or any(len(some) > most for stream in streams for some in points[stream.pk].values())
    times: dict[float, float] = {}  # when each step was reported
    for stream in own:
        for some in points[stream.pk].values():
            times |= {step: value.at for step, value in some.items()}
    if not own:
        for stream in streams:
            times |= {one.value: one.at for one in points[stream.pk].get(name, {}).values()}
    timeline = _Timeline(times)
    series = []
    for stream in streams:
        for metric, some in points[stream.pk].items():
            if stream in own:
                shown = {step: of_value(some[step].value) for step in drawn(list(some), most)}
            elif metric != name:
                shown = timeline.moved((one.at, of_value(one.value)) for one in some.values())
            else:
                continue
            series.append(Series(metric, stream.source, shown))
    known = {stream.source for stream in streams}
    for one in metrics.series:
        if one.source not in known:
            ends = (
                (metrics.time_of(place + 1).timestamp(), one.points[place]) for place in sorted(one.points)
            )
            series.append(replace(one, points=timeline.moved(ends)))
    return replace(
        metrics,
        over=name,
        series=[one for one in series if one.points],
        is_thinned=is_thinned,
        step_times={step: datetime.fromtimestamp(at, UTC) for step, at in times.items()},
    )


class _Timeline:
    """When a program reported its steps."""

    def __init__(self, times: Mapping[float, float]) -> None:
        """Takes the time of each step. Of several steps at one time, the last one counts."""
        steps = {at: step for step, at in sorted(times.items())}
        self._times = sorted(steps)
        self._steps = [steps[at] for at in self._times]

    def moved(self, values: Iterable[tuple[float, Summary]]) -> dict[float, Summary]:
        """Returns values, given with their times in order, by the steps at these times. Leaves out those from before
        the first step."""
        found: dict[float, Summary] = {}
        for at, value in values:
            index = bisect_right(self._times, at) - 1
            if index >= 0:
                step = self._steps[index]
                found[step] = merged(found.get(step), value)
        return dict(sorted(found.items()))
