"""Puts the metrics of jobs on an axis of training steps instead of time, for jobs whose programs report their steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from scheduling.backends.summaries import Summary, merged
from scheduling.metrics.reading import MOST_POINTS, JobMetrics, Series

# Names under which programs report how far they are. Where a job reports several, the first one counts.
NAMES = ("step", "global_step", "steps", "iteration", "iter", "epoch")


@dataclass(frozen=True)
class StepAxis:
    """An axis of `count` windows, each of `size` steps. The middle of the first window is the step `first`."""

    name: str
    first: float
    size: float
    count: int

    def place(self, step: float) -> int:
        """Returns the number of the window that contains the step."""
        return min(max(round((step - self.first) / self.size), 0), self.count - 1)

    def label(self, number: int) -> str:
        step = self.first + number * self.size
        return f"{self.name} {round(step)}" if self.size >= 1 else f"{self.name} {step:.4g}"


def step_axis(jobs: Iterable[JobMetrics]) -> StepAxis | None:
    """Returns one axis for the steps of these jobs; None if no job reports steps.

    The axis has the name that most of the jobs report. Steps and epochs cannot share an axis.
    """
    own = [_own_names(one) for one in jobs]
    counts = [sum(name in names for names in own) for name in NAMES]
    if not any(counts):
        return None
    name = NAMES[counts.index(max(counts))]
    reported = [names[name] for names in own if name in names]
    values = [point.last for steps in reported for point in steps.points.values()]
    first, last = min(values), max(values)
    # As fine as the samples are.
    windows = max(2, min(len(values), MOST_POINTS))
    size = (last - first) / (windows - 1)
    return StepAxis(name, first, size, windows) if size > 0 else StepAxis(name, first, 1.0, 1)


def on_steps(metrics: JobMetrics, axis: StepAxis) -> JobMetrics:
    """Returns the metrics with windows of steps. A window of time in which no step was reported counts to the step
    before it; the time before the first step is left out.

    A job that does not report the steps of the axis has no windows. Where a program repeats steps, because it started
    again, the values of its latest pass count.
    """
    steps = _own_names(metrics).get(axis.name)
    places = _places(steps, axis) if steps else {}
    series = [replace(one, points=_moved(one.points, places)) for one in metrics.series]
    return replace(metrics, over=axis.name, count=axis.count, series=[one for one in series if one.points])


def _own_names(metrics: JobMetrics) -> dict[str, Series]:
    return {one.name: one for one in reversed(metrics.series) if not one.is_measured}


def _places(steps: Series, axis: StepAxis) -> dict[int, tuple[int, int]]:
    """Returns for each window of time with a step, in order, its pass over the steps, and its window of steps."""
    found, turn, before = {}, 0, float("-inf")
    for place in sorted(steps.points):
        # Not its mean: a window in which the program started again has steps of both passes.
        step = steps.points[place].last
        turn += step < before
        found[place] = turn, axis.place(step)
        before = step
    return found


def _moved(points: Mapping[int, Summary], places: Mapping[int, tuple[int, int]]) -> dict[int, Summary]:
    found: dict[int, tuple[int, Summary]] = {}
    known_at = list(places)
    for place in sorted(points):
        index = bisect_right(known_at, place) - 1
        if index < 0:
            continue
        turn, step = places[known_at[index]]
        known = found.get(step)
        earlier = known[1] if known and known[0] == turn else None
        found[step] = turn, merged(earlier, points[place])
    return {step: point for step, (_, point) in sorted(found.items())}


def shared(jobs: Mapping[int, JobMetrics]) -> tuple[StepAxis, dict[int, JobMetrics]] | None:
    """Returns the axis of steps of several jobs, and their metrics on it; None if no job reports steps."""
    axis = step_axis(jobs.values())
    return (axis, {key: on_steps(one, axis) for key, one in jobs.items()}) if axis else None
