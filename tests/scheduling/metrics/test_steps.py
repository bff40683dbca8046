"""What programs report by their steps: each value once, at its step, in a bounded number of points."""

from __future__ import annotations

from itertools import pairwise

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from accounting.core.clock import now_from_database
from scheduling.metrics import thinning
from scheduling.metrics.printed import Line, sum_up
from scheduling.metrics.reading import read_metrics_of
from scheduling.metrics.recording import Report, lock_streams, store
from scheduling.metrics.reported import Reported
from scheduling.metrics.steps import by_step
from scheduling.metrics.thinning import Kept, Value, drawn, firsts
from scheduling.models import Job, MetricPoint, MetricStream
from tests.scheduling.world import World, start, world

OUTPUT = MetricStream.Source.OUTPUT
FEW = 16  # in place of MOST
STEPS = st.floats(0, 1e9) | st.integers(-100, 10_000).map(float)


@pytest.fixture
def lab(db: None) -> World:
    return world(v100=8)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinning, "MOST", FEW)


def note(job: Job, lines: list[str], *, attempt: int = 1) -> None:
    """Stores lines that the job has printed."""
    with transaction.atomic():
        streams = lock_streams(OUTPUT, {job.pk})
        reported, now = Reported.after(streams[job.pk].by_step), now_from_database()
        found = sum_up([Line(line.encode(), now, attempt) for line in lines], reported)
        number = streams[job.pk].position.get("number", 0)
        streams[job.pk].position = {"number": number + 1}
        store(streams, [Report(job.pk, number, now, found.values)], {job.pk: reported})


def series(job: Job, name: str = "loss") -> dict[float, float]:
    """Returns the values of a metric by step; none if the job has no steps."""
    found = by_step(read_metrics_of([job.pk]))
    some = [one for one in found[1][job.pk].series if one.name == name] if found else []
    return {step: point.mean for one in some for step, point in one.points.items()}


# --- which points are kept -------------------------------------------------------------------------


def kept_of(points: list[tuple[float, float]], sizes: list[int]) -> tuple[Kept, dict[float, float]]:
    """Delivers points in parts to a store in memory. Returns what is kept, as a store in the database does it."""
    kept, stored = Kept(), dict[float, float]()
    while points:
        size = sizes.pop() if sizes else len(points)
        part, points = dict(points[:size]), points[size:]
        change = kept.take({step: Value(value, 0.0) for step, value in part.items()})
        stored |= {step: one.value for step, one in change.new.items()}
        stored |= {step: one.value for step, one in change.known.items() if step in stored}
        if kept.is_full:
            left = set(kept.thin(sorted(stored)))
            stored = {step: value for step, value in stored.items() if step in left}
        assert Kept.restored(kept.stored()) == kept
    return kept, stored


@pytest.mark.usefixtures("few")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(STEPS, st.integers(0, 10**6).map(float)), min_size=1, max_size=300),
    st.lists(st.integers(1, 60)),
)
@example([(float(step), float(step)) for step in range(FEW + 1)], [])
def test_any_steps_in_any_order_keep_few_values_each_at_its_step(
    points: list[tuple[float, float]], sizes: list[int]
) -> None:
    kept, stored = kept_of(points, list(sizes))
    reported = dict(points)
    assert kept.last is not None
    assert (kept.last[0], kept.last[1].value) == (max(reported), reported[max(reported)])
    assert len(stored) <= FEW
    assert stored.items() <= reported.items(), "the value that was reported last"
    if len(points) <= FEW:
        assert stored == reported


@pytest.mark.usefixtures("few")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 3000),
    st.sampled_from([1.0, 0.1, 3.0, 100.0]),
    st.integers(-50, 50).map(float),
    st.lists(st.integers(1, 90), max_size=60),
    st.data(),
)
def test_what_is_reported_regularly_is_kept_evenly(
    count: int, apart: float, first: float, sizes: list[int], data: st.DataObject
) -> None:
    points = [(first + apart * number, float(number)) for number in range(count)]
    repeated = data.draw(st.integers(0, 5))
    if repeated:  # a delivery comes twice
        points = points[: count // 2] + points[max(0, count // 2 - repeated) :]
    _, stored = kept_of(points, list(sizes))
    numbers = sorted(round(value) for value in stored.values())
    assert numbers[0] == 0
    distances = {after - before for before, after in pairwise(numbers)}
    assert len(distances) <= 1
    assert all(one & (one - 1) == 0 for one in distances), "powers of two"
    assert len(numbers) >= min(count, FEW * 3 // 8)


@given(st.lists(STEPS, unique=True, min_size=1, max_size=200).map(sorted), st.integers(2, 50))
def test_a_chart_has_the_first_and_the_last_step_and_no_more_points_than_asked(
    steps: list[float], most: int
) -> None:
    found = drawn(steps, most)
    assert len(found) <= most
    assert (found[0], found[-1]) == (steps[0], steps[-1])
    assert found == sorted(set(found) & set(steps))
    if len(steps) <= most:
        assert found == steps


def test_intervals_of_fractions_are_exact() -> None:
    tenths = [step / 10 for step in range(100)]
    assert firsts(tenths, 0.0, 0.1) == tenths


# --- which values belong to which step ----------------------------------------------------------------


def test_each_value_belongs_to_the_step_of_its_line_or_of_the_line_before(lab: World) -> None:
    job = start(lab)
    note(job, ["loss=9", "loss=4 step=0 lr=0.1", "step=1", "loss=3", "loss=2", "step=1e99 loss=1"])
    note(job, ["val_loss=0.5", "step=2 loss=0.25 loss=0.125 bad=nan"])
    assert series(job) == {0: 4, 1: 1, 2: 0.125}
    assert series(job, "val_loss") == {1: 0.5}
    assert series(job, "lr") == {0: 0.1}
    assert series(job, "step") == {}


def test_steps_count_before_epochs(lab: World) -> None:
    job = start(lab)
    note(job, ["epoch=0 loss=9", "epoch=1 loss=8"])
    assert series(job) == {0: 9, 1: 8}
    note(job, ["step=0 epoch=2 loss=7", "epoch=3 val=1", "step=10 loss=6"])
    assert series(job) == {0: 7, 10: 6}
    assert series(job, "epoch") == {0: 3}
    assert series(job, "val") == {0: 1}


@pytest.mark.usefixtures("few")
def test_a_series_is_thinned_and_a_repeated_step_of_the_same_attempt_replaces_its_value(lab: World) -> None:
    job = start(lab)
    for begin in range(0, 200, 7):
        note(job, [f"step={step} loss={step}" for step in range(begin, min(begin + 7, 200))])
    steps = list(series(job))
    assert (steps[0], steps[-1]) == (0, 199)
    assert len(steps) <= FEW + 1
    note(job, ["step=0 loss=-1", "step=1 loss=-2", "step=199 loss=-3"])
    found = series(job)
    assert list(found) == steps
    assert (found[0], found[199]) == (-1, -3)
    assert MetricPoint.objects.count() <= FEW


@pytest.mark.usefixtures("few")
def test_an_attempt_that_goes_back_deletes_what_follows_and_a_new_run_is_exact(lab: World) -> None:
    job = start(lab)
    note(job, [f"step={step} loss={step}" for step in range(100)])
    note(job, ["step=50 loss=-50", "step=51 loss=-51"], attempt=2)
    found = series(job)
    assert all(value == step for step, value in found.items() if step < 50)
    assert list(found.items())[-2:] == [(50, -50), (51, -51)]
    note(job, ["step=52 loss=-52"], attempt=3)  # it goes on
    assert series(job) == found | {52: -52}
    note(job, ["loss=7", *(f"step={step} loss=1" for step in range(FEW))], attempt=4)
    assert series(job) == dict.fromkeys(map(float, range(FEW)), 1)


def test_attempts_in_one_reading_follow_each_other(lab: World) -> None:
    job, now = start(lab), now_from_database()
    reported = Reported()
    printed = ((1, 0), (1, 1), (1, 2), (2, 1))
    lines = [Line(b"step=%d loss=%d" % (step, attempt), now, attempt) for attempt, step in printed]
    found = sum_up(lines, reported)
    with transaction.atomic():
        store(lock_streams(OUTPUT, {job.pk}), [Report(job.pk, 0, now, found.values)], {job.pk: reported})
    assert series(job) == {0: 1, 1: 2}


def test_more_points_need_no_more_statements(lab: World) -> None:
    def statements(job: Job, begin: int, count: int) -> int:
        with CaptureQueriesContext(connection) as asked:
            note(job, [f"step={step} loss=1 acc=2" for step in range(begin, begin + count)])
        return len(asked)

    job = start(lab)
    note(job, ["step=0 loss=1 acc=2"])
    assert statements(job, 1, 1) == statements(job, 2, 400)


def test_what_has_no_name_has_no_points(lab: World) -> None:
    job = start(lab)
    note(job, [f"step={step} " + " ".join(f"x{number}=1" for number in range(80)) for step in range(3)])
    names = MetricStream.objects.get().names
    assert len(names) == 50
    assert MetricPoint.objects.values("metric").distinct().count() == 49  # the steps are no metric
