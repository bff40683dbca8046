"""The numbers that programs print become series: each line counts once, and hostile output is bounded and counted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.core.clock import now_from_database
from scheduling.backends import summaries
from scheduling.backends.base import End, Phase
from scheduling.backends.local import use
from scheduling.backends.logtimes import Moment, Times
from scheduling.backends.summaries import of_values
from scheduling.core import pubsub
from scheduling.execution import output_metrics
from scheduling.execution.output_metrics import MOST_BYTES, Turn, _parts, read_output
from scheduling.leases import history
from scheduling.metrics.printed import Line, sum_up
from scheduling.metrics.reading import read_metrics_of
from scheduling.metrics.recording import note_samples
from scheduling.metrics.reported import Reported
from scheduling.metrics.rolling import restored
from scheduling.models import Cluster, Job, MetricPoint, MetricSample, MetricStream
from scheduling.tasks import read_last_output
from tests.scheduling.local_rig import Rig, rig, until
from tests.scheduling.swept import Logs, end
from tests.scheduling.world import World, start, world

__all__ = ["rig"]


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def lab(db: None) -> World:
    return world(v100=8)


@pytest.fixture(autouse=True)
def logs(monkeypatch: pytest.MonkeyPatch) -> Logs:
    found = Logs()
    found.complete = False
    monkeypatch.setattr(output_metrics, "backend_for", lambda cluster: found)
    return found


def read(lab: World) -> int:
    return read_output(cluster_id=lab.cluster.pk, seconds=60.0)


def series_of(job: Job) -> dict[str, list[float]]:
    """Returns the mean of each sample, by name of the metric."""
    stream = MetricStream.objects.get(job=job)
    found: dict[str, list[float]] = {}
    for values in (
        MetricSample.objects.filter(stream=stream).order_by("at", "pk").values_list("values", flat=True)
    ):
        for place, value in values.items():
            found.setdefault(stream.names[int(place)], []).append(restored(value).mean)
    return found


def test_each_line_counts_once_even_if_it_came_in_pieces(lab: World, logs: Logs) -> None:
    job = start(lab)
    logs.texts[job.pk] = b"loss=4 acc=0.5\nloss=2\nlos"
    read(lab)
    read(lab)
    assert series_of(job) == {"loss": [3.0], "acc": [0.5]}
    logs.texts[job.pk] += b"s=1\nloss=9"
    read(lab)
    assert series_of(job) == {"loss": [3.0, 1.0], "acc": [0.5]}
    end(lab, job)
    logs.complete = True
    read(lab)
    assert series_of(job)["loss"] == [3.0, 1.0, 9.0]
    reads = logs.reads
    read(lab)  # the log is complete, so nobody looks at it again
    assert logs.reads == reads
    assert MetricStream.objects.get().is_complete


def test_values_have_the_times_at_which_their_lines_were_written(lab: World, logs: Logs) -> None:
    job = start(lab)
    began = now_from_database() - timedelta(seconds=9)
    Job.objects.filter(pk=job.pk).update(first_started_at=began)
    lines = [b"loss=%d step=%d\n" % (8 - step, step) for step in range(8)]
    logs.texts[job.pk] = b"".join(lines)
    moments = [Moment(1, int((began + timedelta(seconds=step)).timestamp() * 1000)) for step in range(8)]
    logs.written[job.pk] = Times([sum(map(len, lines[:step])) for step in range(8)], moments)
    read(lab)
    assert series_of(job)["loss"] == [8, 7, 6, 5, 4, 3, 2, 1]
    samples = MetricSample.objects.order_by("at").values_list("at", flat=True)
    off = [
        (at - began).total_seconds() - second for second, at in enumerate(samples) if isinstance(at, datetime)
    ]
    assert all(abs(seconds) < 0.01 for seconds in off)


def test_lines_from_before_what_is_rolled_up_count_to_the_time_after_it(lab: World, logs: Logs) -> None:
    job = start(lab)
    began = now_from_database() - timedelta(hours=2)
    Job.objects.filter(pk=job.pk).update(first_started_at=began)
    logs.texts[job.pk] = b"loss=9\n"
    read(lab)
    rolled_until = now_from_database() - timedelta(minutes=30)
    MetricStream.objects.update(rolled_until=rolled_until)
    logs.texts[job.pk] += b"loss=1\n"
    logs.written[job.pk] = Times([0], [Moment(1, int(began.timestamp() * 1000))])
    read(lab)
    assert MetricSample.objects.filter(at=rolled_until).count() == 1


def test_of_a_job_that_runs_for_longer_a_sample_sums_up_ten_seconds(lab: World, logs: Logs) -> None:
    job = start(lab)
    began = now_from_database() - timedelta(hours=1)
    Job.objects.filter(pk=job.pk).update(first_started_at=began)
    lines = [b"loss=%d\n" % step for step in range(60)]
    logs.texts[job.pk] = b"".join(lines)
    moments = [Moment(1, int((began + timedelta(seconds=step)).timestamp() * 1000)) for step in range(60)]
    logs.written[job.pk] = Times([sum(map(len, lines[:step])) for step in range(60)], moments)
    read(lab)
    assert 6 <= len(series_of(job)["loss"]) <= 7


@given(st.data())
def test_no_time_of_a_log_is_trusted(data: st.DataObject) -> None:
    """Whatever the times of a log say, each line counts once, in time between the job's start and now."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    began = now - timedelta(seconds=data.draw(st.sampled_from([30, 3000])))
    turn = Turn(Job(first_started_at=began), 1, None)
    text = data.draw(st.lists(st.sampled_from([b"loss=1\n", b"a=2\r", b"\n", b"no number\n"])).map(b"".join))
    moments = st.integers(0, 2**41).map(lambda at: Moment(1, at))
    found = data.draw(st.lists(st.tuples(st.integers(0, 200), moments), max_size=20))
    times = Times(sorted(offset for offset, _ in found), [moment for _, moment in found])
    parts = list(_parts(turn, text, 100, times, now))
    whole = [b"".join(line.data for line in lines) for _, _, lines in parts]
    assert b"".join(whole) == text
    begins = [offset for offset, _, _ in parts]
    assert begins == [100 + sum(map(len, whole[:number])) for number in range(len(parts))]
    assert all(began <= at <= now for _, at, _ in parts)
    assert all(began <= line.at <= now and line.attempt == 1 for _, _, lines in parts for line in lines)


def test_a_short_job_that_ended_between_two_readings_has_its_metrics(lab: World, logs: Logs) -> None:
    job = start(lab)
    logs.texts[job.pk] = b"loss=4\n"
    end(lab, job, End.FAILED)
    read(lab)
    assert series_of(job) == {"loss": [4.0]}
    Job.objects.filter(pk=job.pk).update(ended_at=now_from_database() - timedelta(minutes=5))
    lease = lab.lease(job)
    lease.held_until = now_from_database() - timedelta(minutes=5)
    lease.held_from = lease.running_from = lease.held_until - timedelta(minutes=1)
    lease.save()
    MetricStream.objects.update(read_at=lease.held_until)
    read(lab)
    assert MetricStream.objects.get().is_complete  # the rest of the log never came


def test_two_readers_at_once_store_a_part_once(
    lab: World, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = start(lab)
    logs.texts[job.pk] = b"loss=4 step=0\n"
    really = output_metrics._store

    def after_another(*args: Any, **named: Any) -> None:
        monkeypatch.setattr(output_metrics, "_store", really)
        read(lab)
        really(*args, **named)

    monkeypatch.setattr(output_metrics, "_store", after_another)
    read(lab)
    assert series_of(job) == {"loss": [4.0], "step": [0.0]}
    assert list(MetricPoint.objects.values_list("step", "value")) == [(0, 4)]


def test_steps_are_exact_however_the_log_was_read_and_the_end_of_a_job_brings_its_last_ones(
    lab: World, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[tuple[int, set[int]]] = []
    monkeypatch.setattr(history, "wake_output", lambda *asked: woken.append(asked))
    published: list[str] = []
    monkeypatch.setattr(pubsub, "publish", lambda *topics: published.extend(topics))
    job, other = start(lab), start(lab)
    lines = [b"step=%d loss=%d\n" % (step, step * step) for step in range(14)]
    logs.texts[other.pk] = b"step=1 loss=1\n"
    for reached in (5, 40, 41, 100):
        logs.texts[job.pk] = b"".join(lines)[:reached]
        read(lab)
    assert not woken
    reads = logs.reads
    logs.texts[job.pk], logs.complete = b"".join(lines), True
    end(lab, job)
    assert woken == [(lab.cluster.pk, {job.pk})]
    published.clear()
    read_last_output(lab.cluster.pk, [job.pk])
    assert logs.reads == reads + 1, "the other job was read, too"
    assert published == [f"job:{job.pk}"], "open pages ask no more by themselves"
    points = MetricPoint.objects.filter(stream__job=job).order_by("step")
    assert list(points.values_list("step", "value")) == [(step, step * step) for step in range(14)]
    read(lab)
    assert published == [f"job:{job.pk}"]


def test_hostile_output_is_bounded_and_counted(lab: World, logs: Logs) -> None:
    job, other = start(lab), start(lab)
    flood = b"".join(b"name%d=1\n" % number for number in range(400_000))
    logs.texts[job.pk] = flood + b"loss=nan loss=inf loss=1e999 loss=-Infinity " + b"n" * 300 + b"=1\n"
    logs.texts[other.pk] = b"loss=1\n"
    read(lab)
    stream = MetricStream.objects.get(job=job)
    assert len(stream.names) == 50
    assert stream.left_out["bytes"] == len(logs.texts[job.pk]) - MOST_BYTES
    assert (stream.left_out["not_numbers"], stream.left_out["long_names"]) == (4, 1)
    assert stream.left_out["names"] > 50_000
    assert series_of(other) == {"loss": [1.0]}


def test_steps_per_second_on_kubernetes_come_from_the_observed_progress(lab: World, logs: Logs) -> None:
    job = start(lab)
    Cluster.objects.filter(pk=lab.cluster.pk).update(backend=Cluster.Backend.KUBERNETES)
    lease, now = lab.lease(job), now_from_database()
    for seconds, steps in ((60, 100.0), (40, 150.0), (20, 250.0), (20, 250.0), (10, 10.0)):
        lease.progress_steps, lease.progress_at = steps, now - timedelta(seconds=seconds)
        lease.save()
        read(lab)
    assert [one["0"] for one in MetricSample.objects.order_by("at").values_list("values", flat=True)] == [
        2.5,
        5.0,
    ]
    assert MetricStream.objects.get(source="machine").names == ["steps_per_second"]


def test_a_log_that_cannot_be_read_is_read_later(lab: World, logs: Logs) -> None:
    job = start(lab)
    logs.texts[job.pk], logs.away = b"loss=1\n", {job.pk}
    read(lab)
    assert not MetricStream.objects.exists()
    logs.away = set()
    read(lab)
    assert series_of(job) == {"loss": [1.0]}


@given(st.lists(st.one_of(st.floats(-1e9, 1e9), st.sampled_from([float("nan"), float("inf")])), max_size=30))
def test_what_a_program_prints_is_found_again(values: list[float]) -> None:
    text = "".join(f"step 7: loss={value}\r" for value in values).encode()
    found = sum_up([Line(text, NOW, 1)], Reported())
    usable = [value for value in values if abs(value) < 1e100]
    assert found.values.get("loss") == of_values(usable)
    assert found.left_out.get("not_numbers", 0) == len(values) - len(usable)


@given(st.binary(max_size=500))
def test_any_bytes_are_output(data: bytes) -> None:
    sum_up([Line(line, NOW, 1) for line in data.splitlines(keepends=True)], Reported())


def test_a_real_program_is_measured_and_its_numbers_are_read(
    lab: World, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes of the local backend print values and use memory; the samples reach the database."""
    monkeypatch.setattr(use, "EVERY", 0.1)
    monkeypatch.setattr(summaries, "WINDOW", 1)
    monkeypatch.setattr(output_metrics, "backend_for", lambda cluster: rig.backend)
    job = start(lab)
    lease = lab.lease(job)
    program = (
        "import time\nfilled = bytearray(50_000_000)\n"
        "for step in range(1000):\n    print(f'step {step} loss={1 / (step + 1)} lr=0.1', flush=True)\n"
        "    time.sleep(0.1)\n"
    )
    gang = rig.start(rig.python(program, job=job.pk, epoch=lease.epoch, token=lease.token))
    rig.wait(gang, Phase.RUNNING)

    def measured() -> bool:
        rig.backend.use()
        note_samples(cluster_id=lab.cluster.pk, samples=rig.backend.samples(), seen_at=now_from_database())
        stream = MetricStream.objects.filter(job=job, source="machine").first()
        return stream is not None and {"memory", "cpus", "steps_per_second"} <= set(stream.names)

    until(measured, "samples of the processes")
    rig.wait_for_log("step 20", job=job.pk)
    read(lab)
    rig.stop(gang)
    rig.wait(gang)
    found = read_metrics_of([job.pk])[job.pk]
    whole = {one.name: one.whole for one in found.series}
    assert whole["loss"].high == 1.0
    assert whole["loss"].size >= 20
    assert whole["lr"].mean == pytest.approx(0.1)
    assert whole["memory"].high > 50_000_000
    assert 0 <= whole["cpus"].low <= whole["cpus"].high < 2
    assert 0 < whole["steps_per_second"].high < 100
