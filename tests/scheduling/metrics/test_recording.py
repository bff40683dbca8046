"""Samples of metrics are stored once, whatever their order, and rolled up without losing what they add up to."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting.core.clock import now_from_database
from scheduling.backends.base import Sample
from scheduling.backends.summaries import WINDOW, Summary, Windows, merged, of_value, of_values
from scheduling.metrics.names import MOST_GPUS
from scheduling.metrics.recording import MOST_NAMES, Report, lock_streams, note_samples, store
from scheduling.metrics.rolling import LEVELS, begin_of, restored, roll_up, rolled, stored, streams_to_roll
from scheduling.models import Job, MetricSample, MetricStream
from scheduling.retention import remove_metrics
from tests.query_counts import queries_of
from tests.scheduling.world import World, start, world

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MACHINE = MetricStream.Source.MACHINE
# Sums of whole numbers are exact, so that no order of additions matters.
numbers = st.integers(-1000, 1000).map(float)


@pytest.fixture
def lab(db: None) -> World:
    return world(v100=8)


def whole(summaries: Sequence[Summary]) -> tuple[float, ...]:
    """Returns what must not change when samples are rolled up: count, sum, lowest and highest value."""
    return (
        sum(one.size for one in summaries), sum(one.total for one in summaries),
        min(one.low for one in summaries), max(one.high for one in summaries),
    )  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 10**6), numbers), min_size=1), st.sampled_from(LEVELS[1:]))
def test_rolled_up_samples_add_up_to_the_same(values: list[tuple[int, float]], level: tuple) -> None:
    samples = [(NOON + timedelta(seconds=at), {"0": value}) for at, value in sorted(values)]
    windows = rolled(samples, level[0])
    assert whole([sums["0"] for sums in windows.values()]) == whole([of_value(v) for _, v in values])
    for number, sums in windows.items():
        begins = begin_of(number, level[0])
        inside = [value["0"] for at, value in samples if begins <= at < begins + timedelta(seconds=level[0])]
        assert sums["0"] == of_values(inside)


@given(st.lists(st.lists(numbers, min_size=1), min_size=1))
def test_summaries_of_parts_are_the_summary_of_the_whole(parts: list[list[float]]) -> None:
    found: Summary | None = None
    for part in parts:
        summary = of_values(part)
        assert summary is not None
        found = merged(found, restored(stored(summary)))
    assert found == of_values([value for part in parts for value in part])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_chunks_order_and_repetition_of_reports_change_nothing(lab: World, data: st.DataObject) -> None:
    MetricStream.objects.all().delete()
    job = Job.objects.first() or start(lab)
    seconds = data.draw(st.lists(st.integers(0, 4 * 3600), min_size=1, max_size=30, unique=True))
    values = data.draw(st.lists(numbers, min_size=len(seconds), max_size=len(seconds)))
    now = now_from_database()
    reports = [
        Report(job.pk, at, now - timedelta(hours=5) + timedelta(seconds=at), {"x": of_value(value)})
        for at, value in zip(seconds, values, strict=True)
    ]
    shuffled = data.draw(st.permutations([*reports, *data.draw(st.lists(st.sampled_from(reports)))]))
    while shuffled:
        size = data.draw(st.integers(1, len(shuffled)))
        some, shuffled = shuffled[:size], shuffled[size:]
        store(lock_streams(MACHINE, {job.pk}), some)
    stream = MetricStream.objects.get()
    assert (stream.oldest_at, stream.newest_at) == (
        min(one.at for one in reports),
        max(one.at for one in reports),
    )
    for _ in range(2):
        stored_values = MetricSample.objects.values_list("values", flat=True)
        assert whole([restored(one["0"]) for one in stored_values]) == whole(
            [of_value(value) for value in values]
        )
        roll_up(stream_id=stream.pk)
    late = Report(job.pk, 10**9, reports[0].at - timedelta(days=1), {"x": of_value(5000.0)})
    stream.refresh_from_db()
    before = MetricSample.objects.count()
    store(lock_streams(MACHINE, {job.pk}), [late])
    assert MetricSample.objects.count() - before == (stream.rolled_until is None)


def samples_of(lab: World, count: int, *, gpus: int = 1) -> list[Sample]:
    jobs = [start(lab) for _ in range(count)]
    values = {f"gpu_power@k1/{index}": of_value(300.0) for index in range(gpus)} | {"cpus": of_value(2.0)}
    return [Sample(lab.lease(job).token, 7, 12.0, values) for job in jobs]


def test_a_report_of_a_whole_cluster_takes_few_statements(lab: World) -> None:
    some = samples_of(lab, 8, gpus=8)
    unknown = Sample(uuid4(), 7, 12.0, {"cpus": of_value(1.0)})
    with queries_of("stores a sample of each gang of a cluster"):
        note_samples(cluster_id=lab.cluster.pk, samples=[*some, unknown], seen_at=now_from_database())
    assert MetricSample.objects.count() == 8
    with queries_of("stores a further sample of each gang of a cluster"):
        note_samples(cluster_id=lab.cluster.pk, samples=some, seen_at=now_from_database())
    assert MetricSample.objects.count() == 8  # the windows are known already
    stream = MetricStream.objects.first()
    assert stream is not None
    assert len(stream.names) == 9


def test_the_gpus_of_a_big_job_have_a_bounded_number_of_series(lab: World) -> None:
    [sample] = samples_of(lab, 1, gpus=100)
    note_samples(cluster_id=lab.cluster.pk, samples=[sample], seen_at=now_from_database())
    stream, row = MetricStream.objects.get(), MetricSample.objects.get()
    assert len(stream.names) == MOST_GPUS + 2
    others = restored(row.values[str(stream.names.index("gpu_power@others"))])
    assert (others.size, others.mean) == (100 - MOST_GPUS, 300.0)


def test_names_beyond_the_most_are_counted(lab: World) -> None:
    job, most = start(lab), MOST_NAMES[MetricStream.Source.OUTPUT]
    flood = {f"x{number}": of_value(1.0) for number in range(most + 20)}
    with transaction.atomic():
        streams = lock_streams(MetricStream.Source.OUTPUT, {job.pk})
        for number in range(2):
            store(streams, [Report(job.pk, number, now_from_database(), flood)])
    stream = MetricStream.objects.get()
    assert (len(stream.names), stream.left_out) == (most, {"names": 40})


def test_a_long_job_keeps_a_bounded_number_of_rows(lab: World) -> None:
    job, now = start(lab), now_from_database()
    steps = range(0, 3 * 86_400, 60)
    with transaction.atomic():
        streams = lock_streams(MACHINE, {job.pk})
        reports = [
            Report(job.pk, at, now - timedelta(days=3) + timedelta(seconds=at), {"x": of_value(float(at))})
            for at in random.Random(1).sample(steps, len(steps))
        ]
        store(streams, reports)
    stream = streams_to_roll().get()
    with CaptureQueriesContext(connection) as asked:
        roll_up(stream_id=stream.pk)
    assert len(asked) < 30
    assert not streams_to_roll().exists()
    rows = MetricSample.objects.all()
    assert rows.count() <= 60 + 12 * 60 + 3 * 144 + 20
    found = [restored(values["0"]) for values in rows.values_list("values", flat=True)]
    assert whole(found) == whole([of_value(float(at)) for at in steps])


def test_metrics_are_deleted_long_after_the_end_of_their_job(lab: World) -> None:
    [sample] = samples_of(lab, 1)
    note_samples(cluster_id=lab.cluster.pk, samples=[sample], seen_at=now_from_database())
    assert remove_metrics(after=timedelta(0)) == 0
    job = MetricStream.objects.get().job
    job.state, job.ended_at = "succeeded", now_from_database() - timedelta(days=2)
    job.save(update_fields=["state", "ended_at"])
    assert remove_metrics(after=timedelta(days=3)) == 0
    assert remove_metrics(after=timedelta(days=1)) == 2
    assert not MetricStream.objects.exists()


def test_windows_leave_out_what_cannot_be_stored() -> None:
    windows = Windows()
    for at in range(3 * WINDOW):
        windows.add("a", float(at), {"x": float(at), "y": math.nan, "z": 1e300})
    assert list(windows.take(2.5 * WINDOW)) == [
        ("a", number, {"x": of_values(float(at) for at in range(number * WINDOW, (number + 1) * WINDOW))})
        for number in range(2)
    ]
    assert [number for _, number, _ in windows.take(9.0 * WINDOW)] == [2]
    assert list(windows.take(99.0 * WINDOW)) == []
