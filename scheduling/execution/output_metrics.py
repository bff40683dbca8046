"""Reads the metrics that programs print, from the logs of jobs that run or have just stopped. On Kubernetes, also
computes the steps per second of these jobs, which the samples of local clusters contain.

Any number of processes may read at any time, and may die in between. The position up to which a log has been read is
stored with the metrics that were found there, so each line counts once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Max, Q

from accounting.core.clock import now_from_database
from scheduling.backends.base import Backend, BackendError
from scheduling.backends.logtimes import Times
from scheduling.backends.summaries import WINDOW, of_value
from scheduling.clusters.backend_factory import backend_for
from scheduling.core import pubsub
from scheduling.metrics.printed import Line, sum_up, whole_lines
from scheduling.metrics.recording import Report, lock_streams, store
from scheduling.metrics.reported import Reported
from scheduling.metrics.rolling import number_at
from scheduling.models import Cluster, Job, Lease, MetricStream

logger = logging.getLogger(__name__)

MOST_BYTES = 1024 * 1024  # of a log that are searched at a time; of faster output, the beginning is skipped
# The last lines of a log may arrive this long after the end of an attempt. Later lines are read with the next attempt.
LATENESS = timedelta(minutes=1)
LOOKED_BACK = timedelta(hours=1)  # attempts that ended earlier are not read any more
AT_ONCE = 100  # jobs in one transaction, and fewer if they report more than MOST_POINTS points by step
MOST_POINTS = 100_000
# At first a sample sums up one second, so that a program of some seconds has a curve.
YOUNG = timedelta(minutes=10)
OUTPUT = MetricStream.Source.OUTPUT


@dataclass(frozen=True)
class Turn:
    """A job whose log may have more: its last attempt with processes, and when that one ended."""

    job: Job
    attempt: int
    ended_at: datetime | None  # None while the attempt holds GPUs
    progress: tuple[float, datetime] | None = None  # the steps that were observed last, and when


@dataclass(frozen=True)
class _Read:
    """What one reading of a log found."""

    turn: Turn
    position: int  # where it began
    reached: int
    reports: list[Report]
    by_step: Reported
    is_complete: bool


def read_output(*, cluster_id: int, seconds: float, jobs: Collection[int] | None = None) -> int:
    """Reads what the jobs of a cluster have printed since the last call. Returns the number of jobs that were read.

    Reads only `jobs` unless that is None. Begins no other job after `seconds`. The next call begins with the jobs that
    were not read for the longest time.
    """
    cluster = Cluster.objects.get(pk=cluster_id)
    try:
        backend = backend_for(cluster)
    except BackendError as error:
        logger.warning("the logs of %s cannot be read: %s", cluster, error)
        return 0
    now = now_from_database()
    turns = turns_of(cluster_id, now, jobs)
    known = {
        stream.job_id: stream for stream in MetricStream.objects.filter(source=OUTPUT, job__in=list(turns))
    }
    long_ago = now - timedelta(days=1)
    due = [turn for job, turn in turns.items() if is_due(turn, known.get(job))]
    due.sort(key=lambda turn: _read_at(known.get(turn.job.pk)) or long_ago)
    begun, read = time.monotonic(), 0
    while due and time.monotonic() - begun < seconds:
        found: list[_Read] = []
        points = 0
        while due and len(found) < AT_ONCE and points < MOST_POINTS:
            turn = due.pop(0)
            one = _read(backend, turn, known.get(turn.job.pk), now)
            if one is not None:
                found.append(one)
                points += one.by_step.size
            read += 1
        _store(found, now, with_steps=cluster.backend != Cluster.Backend.LOCAL)
    return read


def turns_of(cluster_id: int, now: datetime, jobs: Collection[int] | None = None) -> dict[int, Turn]:
    """Returns the jobs that have run in the last time, by their ids: all of the cluster, or some."""
    lately = Q(state__in=Lease.HOLDING) | Q(held_until__gt=now - LOOKED_BACK)
    if jobs is not None:
        lately &= Q(job__in=jobs)
    leases = Lease.objects.filter(lately, cluster=cluster_id, running_from__isnull=False)
    ends = leases.order_by().values("job").annotate(attempt=Max("epoch"))
    attempts: dict[int, int] = dict(ends.values_list("job", "attempt"))
    last = leases.filter(job__in=list(attempts)).annotate(until=F("held_until")).select_related("job")
    return {
        lease.job_id: Turn(lease.job, lease.epoch, lease.held_until, _progress_of(lease))
        for lease in last.defer("job__spec")
        if attempts[lease.job_id] == lease.epoch
    }


def _progress_of(lease: Lease) -> tuple[float, datetime] | None:
    if lease.progress_steps is None or lease.progress_at is None:
        return None
    return lease.progress_steps, lease.progress_at


def is_due(turn: Turn, stream: MetricStream | None) -> bool:
    if turn.job.files_removed_at is not None or (stream is not None and stream.is_complete):
        return False
    read_at = _read_at(stream)
    return turn.ended_at is None or read_at is None or read_at <= turn.ended_at + LATENESS


def _read_at(stream: MetricStream | None) -> datetime | None:
    return stream.read_at if stream is not None else None


def _position(stream: MetricStream | None) -> int:
    return int(stream.position.get("offset", 0)) if stream is not None else 0


def _read(backend: Backend, turn: Turn, stream: MetricStream | None, now: datetime) -> _Read | None:
    """Reads the next part of a job's log. Returns None if it cannot be read now."""
    begin = position = _position(stream)
    by_step = Reported.after(stream.by_step if stream else {})
    skipped: dict[str, int] = {}
    try:
        size = backend.log_size(job_id=turn.job.pk, rank=0)
        if size - begin > MOST_BYTES:
            begin = size - MOST_BYTES
            skipped = {"bytes": begin - position}
        chunk = backend.read_log(
            job_id=turn.job.pk, rank=0, offset=begin, limit=MOST_BYTES, last_attempt=turn.attempt
        )
        is_over = turn.job.has_ended
        is_overdue = turn.ended_at is not None and now - turn.ended_at > LATENESS
        is_complete = is_over and (chunk.complete or is_overdue)
        # A line that is not whole yet is read next time, unless it fills the whole part.
        data = chunk.data if is_complete or len(chunk.data) == MOST_BYTES else whole_lines(chunk.data)
        times = backend.log_times(job_id=turn.job.pk).times(0, begin, begin + len(data))
    except (BackendError, OSError) as error:
        logger.warning("the metrics of job %s cannot be read: %s", turn.job.pk, error)
        return None
    reached = begin + len(data)
    reports = [Report(turn.job.pk, position, now, {}, left_out=skipped)] if skipped else []
    if skipped:  # the first line may be cut
        line = data.partition(b"\n")[2]
        begin, data = reached - len(line), line
    for offset, at, lines in _parts(turn, data, begin, times, now):
        printed = sum_up(lines, by_step)
        reports.append(Report(turn.job.pk, offset, at, printed.values, left_out=printed.left_out))
    return _Read(turn, position, reached, reports, by_step, is_complete)


def _parts(
    turn: Turn, data: bytes, begin: int, times: Times, now: datetime
) -> Iterator[tuple[int, datetime, list[Line]]]:
    """Splits whole lines by the times at which they were written: triples (offset, time, lines).

    `begin`: the offset of `data`. Lines without a time count as written now, or at the end of the attempt.
    """
    latest = min(filter(None, (now, turn.ended_at)))
    began = turn.job.first_started_at or now
    seconds = 1 if now - began < YOUNG else WINDOW
    offset = reached = begin
    known: list[Line] = []
    for data_of_line in data.splitlines(keepends=True):
        moment = times.of(reached)
        at = min(max(datetime.fromtimestamp(moment.at / 1000, UTC), began), latest) if moment.at else latest
        if known and number_at(at, seconds) != number_at(known[0].at, seconds):
            yield offset, known[0].at, known
            offset, known = reached, []
        known.append(Line(data_of_line, at, min(moment.attempt or turn.attempt, turn.attempt)))
        reached += len(data_of_line)
    if known:
        yield offset, known[0].at, known


@transaction.atomic(durable=True)
def _store(found: list[_Read], now: datetime, *, with_steps: bool) -> None:
    streams = lock_streams(OUTPUT, {one.turn.job.pk for one in found})
    reports: list[Report] = []
    speeds = []
    for one in found:
        stream = streams[one.turn.job.pk]
        if _position(stream) != one.position or stream.is_complete:
            del streams[one.turn.job.pk]  # another process has read the same part
            continue
        if with_steps and (speed := _speed_since(stream.position, one.turn)) is not None:
            speeds.append(speed)
        stream.position = {"offset": one.reached} | _remembered(one.turn)
        stream.read_at, stream.is_complete = now, one.is_complete
        # Where samples are rolled up already, the values count to the first time that is not.
        earliest = stream.rolled_until
        reports += [
            replace(report, at=max(report.at, earliest)) if earliest else report for report in one.reports
        ]
    ended = {one.turn.job.pk for one in found if one.reports and one.turn.job.has_ended}
    pubsub.publish(
        *(f"job:{job}" for job in ended & streams.keys())
    )  # open pages refresh no more by themselves
    store(streams, reports, {one.turn.job.pk: one.by_step for one in found if one.turn.job.pk in streams})
    if speeds:
        store(lock_streams(MetricStream.Source.MACHINE, {speed.job_id for speed in speeds}), speeds)


def _remembered(turn: Turn) -> dict[str, object]:
    if turn.progress is None:
        return {}
    steps, at = turn.progress
    return {"attempt": turn.attempt, "steps": steps, "steps_at": at.timestamp()}


def _speed_since(position: Mapping[str, Any], turn: Turn) -> Report | None:
    """Returns the steps per second since `position` was stored; None if no steps were observed in this attempt since
    then."""
    if turn.progress is None or position.get("attempt") != turn.attempt:
        return None
    steps, at = turn.progress
    seconds = at.timestamp() - position["steps_at"]
    if seconds <= 0 or steps < position["steps"]:
        return None
    # Negative, because other samples of the same stream have the numbers of their windows.
    number = -number_at(at, 1)
    return Report(
        turn.job.pk, number, at, {"steps_per_second": of_value((steps - position["steps"]) / seconds)}
    )
