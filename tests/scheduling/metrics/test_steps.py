"""Metrics on an axis of steps."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from scheduling.backends.summaries import of_value
from scheduling.metrics.reading import JobMetrics, Series
from scheduling.metrics.steps import on_steps, step_axis
from scheduling.models import MetricStream

OUTPUT = MetricStream.Source.OUTPUT
STEPS = st.floats(0, 1e9) | st.integers(0, 100).map(float)


def metrics(steps: list[float], name: str = "step") -> JobMetrics:
    """Returns the metrics of a job that reported one step and one value, its number, in each window of time."""
    series = [
        Series(name, OUTPUT, {place: of_value(step) for place, step in enumerate(steps)}),
        Series("value", OUTPUT, {place: of_value(float(place)) for place in range(len(steps))}),
    ]
    return JobMetrics(1, datetime(2026, 1, 1, tzinfo=UTC), 10, len(steps), series, {})


@given(st.lists(STEPS, min_size=1, max_size=40))
def test_every_window_has_a_value_of_the_latest_pass_over_its_steps(steps: list[float]) -> None:
    found = metrics(steps)
    axis = step_axis([found])
    assert axis is not None
    [points] = [one.points for one in on_steps(found, axis).series if one.name == "value"]
    assert all(0 <= place < axis.count for place in points)
    for place, point in points.items():
        there = [number for number, step in enumerate(steps) if axis.place(step) == place]
        assert point.last == there[-1]
        # Values of different passes are never summed up.
        inside = steps[int(point.low) : int(point.high) + 1]
        assert inside == sorted(inside)


def test_what_was_measured_between_two_steps_counts_to_the_one_before() -> None:
    found = metrics([0.0, 10.0])
    found.series.append(Series("memory", OUTPUT, {-1: of_value(1.0), 5: of_value(7.0)}))
    axis = step_axis([found])
    assert axis is not None
    [points] = [one.points for one in on_steps(found, axis).series if one.name == "memory"]
    assert points == {axis.place(10.0): of_value(7.0)}


def test_a_job_without_steps_has_no_axis_of_steps() -> None:
    assert step_axis([metrics([1.0], name="loss")]) is None


def test_labels_say_steps_as_the_program_counts_them() -> None:
    epochs = step_axis([metrics([0.0, 0.5, 1.0], name="epoch")])
    assert epochs is not None
    assert [epochs.label(number) for number in range(3)] == ["epoch 0", "epoch 0.5", "epoch 1"]


def test_steps_and_epochs_share_no_axis() -> None:
    steps, epochs = metrics([0.0, 9000.0]), metrics([0.0, 9.0], name="epoch")
    axis = step_axis([steps, epochs])
    assert axis is not None
    assert axis.name == "step"
    assert on_steps(epochs, axis).series == []


def test_steps_that_hardly_differ_have_one_window() -> None:
    axis = step_axis([metrics([0.0, 5e-324, 0.0])])
    assert axis is not None
    assert axis.count == 1
