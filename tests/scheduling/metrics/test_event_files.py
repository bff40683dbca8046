"""TensorBoard's event files are read piece by piece, whatever a program has written into them."""

from __future__ import annotations

import os
import struct
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.core.clock import now_from_database
from scheduling.backends.base import Phase
from scheduling.execution import event_metrics
from scheduling.execution.event_metrics import MOST_FILES, read_events
from scheduling.metrics.event_files import LONGEST_RECORD, Damaged, masked_crc, read_part
from scheduling.metrics.reading import read_metrics_of
from scheduling.metrics.steps import StepAxis, by_step
from scheduling.models import Job, MetricSample, MetricStream
from tests.scheduling.local_rig import Rig, rig
from tests.scheduling.world import World, start, world

__all__ = ["rig"]


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def event(at: float, *values: bytes, step: int = 7) -> bytes:
    return record(
        b"\x09"
        + struct.pack("<d", at)
        + b"\x10"
        + varint(step % 2**64)
        + field(5, b"".join(field(1, one) for one in values))
    )


def simple(tag: str, value: float) -> bytes:
    return field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)


def tensor(tag: str, kind: int, content: bytes, number: int = 4) -> bytes:
    return field(1, tag.encode()) + field(8, b"\x08" + bytes([kind]) + field(2, b"") + field(number, content))


def test_the_checksum_is_that_of_published_files() -> None:
    """The check value of CRC-32C is that of its definition (RFC 3720, B.4): 32 bytes of zero give 8A9136AA."""
    unmasked = masked_crc(bytes(32)) - 0xA282EAD8 & 0xFFFFFFFF
    assert (unmasked << 15 | unmasked >> 17) & 0xFFFFFFFF == 0x8A9136AA


def test_scalars_of_both_formats_are_read_and_everything_else_is_skipped() -> None:
    data = record(b"\x09" + struct.pack("<d", 1.0) + field(3, b"brain.Event:2")) + event(
        2.0,
        simple("loss", 0.5),
        tensor("accuracy", 1, struct.pack("<f", 0.25)),
        tensor("lr", 2, struct.pack("<d", 1e-3)),
        tensor("packed", 1, struct.pack("<f", 4.0), number=5),
        tensor("histogram", 2, struct.pack("<ddd", 1, 2, 3)),
        field(1, b"picture") + field(4, b"png" * 100),
    )
    part = read_part(data + data[:9])
    assert part.used == len(data)
    assert [(one.wall_time, one.tag, round(one.value, 9)) for one in part.scalars] == [
        (2.0, "loss", 0.5), (2.0, "accuracy", 0.25), (2.0, "lr", 1e-3), (2.0, "packed", 4.0),
    ]  # fmt: skip


def test_a_record_that_is_too_long_is_skipped_even_if_it_goes_on_behind_the_part() -> None:
    long = record(bytes(LONGEST_RECORD + 1))
    whole = long + event(1.0, simple("loss", 2.0))
    assert [one.tag for one in read_part(whole).scalars] == ["loss"]
    part = read_part(long[:500])
    assert (part.used, part.skipped) == (500, len(long) - 500)


@given(st.binary(max_size=300))
def test_any_contents_of_a_record_are_harmless(content: bytes) -> None:
    data = record(content) + record(field(5, field(1, content)))
    assert read_part(data).used == len(data)


@given(st.binary(min_size=1, max_size=300))
def test_any_bytes_are_read_or_damaged(data: bytes) -> None:
    try:
        assert read_part(data).used <= len(data)
    except Damaged:
        assert len(data) >= 12


@given(st.lists(st.floats(-1e6, 1e6, width=32), max_size=8), st.data())
def test_pieces_of_a_file_have_the_same_scalars_as_the_whole(
    values: list[float], data: st.DataObject
) -> None:
    whole = b"".join(event(float(place), simple("x", value)) for place, value in enumerate(values))
    found, offset, end = [], 0, 0
    while end < len(whole):
        end = data.draw(st.integers(end + 1, len(whole)))
        part = read_part(whole[offset:end])
        found += part.scalars
        offset += part.used
    assert [one.value for one in found] == values


# --- the files of jobs -----------------------------------------------------------------------------


@pytest.fixture
def lab(db: None, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(event_metrics, "backend_for", lambda cluster: rig.backend)
    monkeypatch.setattr(event_metrics, "EVERY", timedelta(0))
    return world(v100=8)


@pytest.fixture
def job(lab: World, rig: Rig) -> Job:
    """Returns a job with real folders, whose program runs."""
    job = start(lab)
    lab.age(lab.lease(job), 600)
    Job.objects.filter(pk=job.pk).update(first_started_at=now_from_database() - timedelta(minutes=10))
    lease = lab.lease(job)
    gang = rig.start(rig.gang("mkdir -p runs; sleep 1000", job=job.pk, epoch=lease.epoch, token=lease.token))
    rig.wait(gang, Phase.RUNNING)
    return job


def write(rig: Rig, job: Job, name: str, data: bytes) -> None:
    path = rig.files(job.pk).folder / "work" / "rank-0" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)


def means(job: Job) -> dict[str, list[float]]:
    found = read_metrics_of([job.pk])
    return {
        one.name: [one.points[place].mean for place in sorted(one.points)] for one in found[job.pk].series
    }


def read(lab: World) -> None:
    read_events(cluster_id=lab.cluster.pk, seconds=60.0)


def test_event_files_of_a_running_job_become_series_at_the_times_of_their_events(
    lab: World, rig: Rig, job: Job
) -> None:
    now = now_from_database().timestamp()
    events = [event(now - 500 + 100 * n, simple("loss", float(n))) for n in range(4)]
    write(rig, job, "runs/a/events.out.tfevents.1", b"".join(events[:2]) + events[2][:10])
    read(lab)
    assert means(job) == {"loss": [0.0, 1.0]}
    write(rig, job, "runs/a/events.out.tfevents.1", events[2][10:] + events[3])
    write(
        rig,
        job,
        "runs/b/events.out.tfevents.1",
        event(now - 300, simple("loss", 7.0), simple("nan", float("nan"))),
    )
    read(lab)
    read(lab)
    assert means(job) == {"loss": [0.0, 1.0, 2.0, 3.0], "b/loss": [7.0]}
    assert MetricStream.objects.get().left_out == {"not_numbers": 1}


def test_scalars_belong_to_the_steps_of_their_events(lab: World, rig: Rig, job: Job) -> None:
    now = now_from_database().timestamp()
    events = [
        event(now - 9, simple("loss", step / 4), simple("step", 1.0), step=step) for step in range(-1, 6)
    ]
    epochs = [event(now - 9, simple("epoch_loss", epoch / 2), step=epoch) for epoch in range(2)]
    name = "runs/a/events.out.tfevents.1"
    write(rig, job, name, b"".join(events[:3]))
    assert by_step(read_metrics_of([job.pk])) is None
    read(lab)
    read(lab)
    write(rig, job, name, b"".join([*events[3:], *epochs, event(now, simple("loss", 9.0), step=5)]))
    read(lab)
    found = by_step(read_metrics_of([job.pk]))
    assert found is not None
    axis, on_axis = found
    assert axis == StepAxis("step", -1, 5)
    series = {
        one.name: {step: point.mean for step, point in one.points.items()} for one in on_axis[job.pk].series
    }
    assert series == {
        "loss": {step: 9.0 if step == 5 else step / 4 for step in range(-1, 6)}, "epoch_loss": {0: 0, 1: 0.5},
    }  # fmt: skip


def test_hostile_event_files_are_bounded(lab: World, rig: Rig, job: Job) -> None:
    now = now_from_database().timestamp()
    write(rig, job, "tfevents.damaged", b"no events at all")
    write(
        rig,
        job,
        "tfevents.names",
        event(now, *[simple(f"t{n}", 1.0) for n in range(300)], simple("x" * 400, 1.0)),
    )
    write(
        rig,
        job,
        "tfevents.times",
        b"".join(event(at, simple("t0", 5.0)) for at in (-1e300, float("nan"), 1e18)),
    )
    flood = b"".join(event(now - 600 + n / 10, simple("t1", 1.0)) for n in range(6000))
    write(rig, job, "tfevents.flood", flood)
    for number in range(MOST_FILES + 5):
        write(rig, job, f"z{number}/tfevents", event(now, simple("loss", 1.0)))
    os.symlink("/etc/passwd", rig.files(job.pk).folder / "work" / "rank-0" / "tfevents.link")
    read(lab)
    read(lab)
    stream = MetricStream.objects.get()
    assert len(stream.names) <= 50
    assert stream.left_out["damaged"] == 1
    assert stream.left_out["long_names"] == 1
    assert stream.left_out["files"] > 0
    assert MetricSample.objects.count() < 400
