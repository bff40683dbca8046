"""Stores samples of jobs' metrics. Reports may come twice, late, in any order, and in any number of pieces.

A window is stored once: the number of a window identifies it. What cannot be stored is counted in
`MetricStream.left_out`, by one of these words:

- `names`: values of metrics beyond the most names that a job may have.
- `long_names`: values whose names are too long.
- `not_numbers`: values that are NaN, infinite or absurdly large.
- `bytes`: bytes of output that came too fast to be searched.
- `damaged`: event files that do not have their format.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from django.db import transaction

from accounting.core.bulk import insert_rows, update_rows
from accounting.core.clock import now_from_database
from scheduling.backends.base import Sample
from scheduling.backends.summaries import Summary, merged
from scheduling.core.run_apart import apart
from scheduling.metrics.by_step import store_points
from scheduling.metrics.names import GPU_METRICS, MOST_GPUS, OTHERS, parts_of
from scheduling.metrics.reported import Reported
from scheduling.metrics.rolling import stored
from scheduling.models import Lease, MetricSample, MetricStream

# Names of one source of a job. All metrics of MOST_GPUS GPUs fit.
MOST_NAMES = {
    MetricStream.Source.MACHINE: len(GPU_METRICS) * (MOST_GPUS + 1) + 16,
    MetricStream.Source.OUTPUT: 50,
    MetricStream.Source.EVENTS: 50,
}
CHANGED = (
    "names", "oldest_at", "newest_at", "position", "left_out", "by_step", "read_at", "is_complete",
)  # fmt: skip


@dataclass(frozen=True)
class Report:
    """What is known of one job for one window of time. `number` identifies the window among those of its source."""

    job_id: int
    number: int
    at: datetime
    values: Mapping[str, Summary]  # by name
    left_out: Mapping[str, int] = field(default_factory=dict)


def note_samples(*, cluster_id: int, samples: Sequence[Sample], seen_at: datetime) -> None:
    """Stores samples that the cluster's backend reported at `seen_at` by the database's clock.

    Ignores samples of gangs that never held GPUs of this cluster.
    """
    apart(cluster_id, samples, lambda some: [_note(cluster_id, some, seen_at)])


@transaction.atomic(durable=True)
def note_reports(*, source: str, reports: Sequence[Report]) -> None:
    """Stores reports of jobs. Ignores windows that are stored already."""
    store(lock_streams(source, {report.job_id for report in reports}), reports)


@transaction.atomic(durable=True)
def _note(cluster_id: int, samples: Sequence[Sample], seen_at: datetime) -> None:
    jobs: dict[Any, int] = dict(
        Lease.objects.filter(
            cluster=cluster_id, token__in=[one.token for one in samples], held_from__isnull=False
        ).values_list("token", "job_id")
    )
    reports = [
        Report(jobs[one.token], one.number, seen_at - timedelta(seconds=one.age), few_gpus(one.values))
        for one in samples
        if one.token in jobs
    ]
    streams = lock_streams(MetricStream.Source.MACHINE, {report.job_id for report in reports})
    store(streams, reports)


def few_gpus(values: Mapping[str, Summary]) -> Mapping[str, Summary]:
    """Returns the values with those of all GPUs beyond the first MOST_GPUS summed up under OTHERS."""
    gpus = list(dict.fromkeys(gpu for gpu in (parts_of(name)[1] for name in values) if gpu))
    if len(gpus) <= MOST_GPUS:
        return values
    named, found = set(sorted(gpus)[:MOST_GPUS]), dict[str, Summary]()
    for name, value in values.items():
        metric, gpu = parts_of(name)
        kept = name if gpu in named or not gpu else f"{metric}@{OTHERS}"
        found[kept] = merged(found.get(kept), value)
    return found


def lock_streams(source: str, jobs: Collection[int]) -> dict[int, MetricStream]:
    """Returns the streams of this source by job, locked in the caller's transaction. Creates those that are missing."""

    def locked() -> dict[int, MetricStream]:
        found = MetricStream.objects.select_for_update().filter(source=source, job__in=jobs).order_by("job")
        return {stream.job_id: stream for stream in found}

    known = locked()
    if missing := sorted(set(jobs) - known.keys()):
        insert_rows([MetricStream(job_id=job, source=source) for job in missing], ignore_conflicts=True)
        known = locked()
    return known


def store(
    streams: Mapping[int, MetricStream],
    reports: Sequence[Report],
    by_step: Mapping[int, Reported] = MappingProxyType({}),
) -> None:
    """Stores reports of jobs whose streams the caller has locked, what these jobs reported by step, and the streams
    themselves.

    Takes three statements whatever the number of reports is, and those of `store_points`. Reports of time that is
    rolled up already come too late, and are ignored.
    """
    now = now_from_database()
    rows = []
    for report in reports:
        stream = streams[report.job_id]
        for word, count in report.left_out.items():
            count_left_out(stream, word, count)
        if not report.values or (stream.rolled_until is not None and report.at < stream.rolled_until):
            continue
        values = _by_position(stream, report.values)
        if not values:
            continue
        at = min(report.at, now)
        stream.oldest_at = at if stream.oldest_at is None else min(stream.oldest_at, at)
        stream.newest_at = at if stream.newest_at is None else max(stream.newest_at, at)
        rows.append(MetricSample(stream_id=stream.pk, level=0, number=report.number, at=at, values=values))
    insert_rows(rows, ignore_conflicts=True)
    store_points([(streams[job], reported) for job, reported in by_step.items()])
    update_rows(streams.values(), CHANGED)


def count_left_out(stream: MetricStream, word: str, count: int) -> None:
    if count:
        stream.left_out = stream.left_out | {word: min(stream.left_out.get(word, 0) + count, 10**15)}


def _by_position(stream: MetricStream, values: Mapping[str, Summary]) -> dict[str, Any]:
    """Returns the values as a sample stores them. Gives new names the next positions, and counts those that have no
    room."""
    positions = {name: place for place, name in enumerate(stream.names)}
    new = [name for name in values if name not in positions]
    room = MOST_NAMES[MetricStream.Source(stream.source)] - len(stream.names)
    if new[:room]:
        stream.names = [*stream.names, *new[:room]]
        positions |= {name: place for place, name in enumerate(stream.names)}
    count_left_out(stream, "names", sum(values[name].size for name in new[max(room, 0) :]))
    return {str(positions[name]): stored(value) for name, value in values.items() if name in positions}
