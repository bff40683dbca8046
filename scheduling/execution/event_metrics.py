"""Reads the metrics that programs write as TensorBoard event files, where Fairlot reaches the files of jobs.

Like output_metrics.py, it stores how far each file has been read with what was found there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction

from accounting.core.clock import now_from_database
from scheduling.backends.base import Backend, BackendError, FileKind, FilesElsewhere
from scheduling.backends.summaries import WINDOW, Summary, is_usable, merged, of_value
from scheduling.clusters.backend_factory import backend_for
from scheduling.core import pubsub
from scheduling.execution.output_metrics import LATENESS, Turn, is_due, turns_of
from scheduling.metrics.event_files import Damaged, Scalar, read_part
from scheduling.metrics.recording import Report, count_left_out, lock_streams, store
from scheduling.metrics.reported import Reported
from scheduling.metrics.rolling import begin_of, number_at
from scheduling.metrics.thinning import LARGEST_STEP, Value
from scheduling.models import Cluster, MetricStream

logger = logging.getLogger(__name__)

EVERY = timedelta(seconds=30)  # between two readings of a job's files
MOST_FILES = 20
MOST_FOLDERS = 40
MOST_ENTRIES = 200  # of one folder
MOST_BYTES = 1024 * 1024  # of one file that are read at a time
MOST_WINDOWS = 200  # that one reading of a file may add; more are summed up into longer windows
LONGEST_TAG = 100
EVENTS = MetricStream.Source.EVENTS
AXIS = "step"  # each event has one


@dataclass
class _Read:
    """What one reading of a job's event files found. `position` is how far they were read before it."""

    turn: Turn
    position: dict[str, Any]
    files: dict[str, dict[str, Any]]
    windows: list[tuple[datetime, dict[str, Summary]]] = field(default_factory=list)
    by_step: Reported = field(default_factory=lambda: Reported(axis=AXIS))
    left_out: dict[str, int] = field(default_factory=dict)
    is_whole: bool = True  # every file was read to its end

    def leave_out(self, word: str, count: int = 1) -> None:
        self.left_out[word] = self.left_out.get(word, 0) + count


def read_events(*, cluster_id: int, seconds: float, jobs: Collection[int] | None = None) -> int:
    """Reads what the jobs of a cluster have written since the last call. Returns the number of jobs that were read.

    Reads only `jobs` unless that is None. Begins no other job after `seconds`. Does nothing on clusters whose files
    Fairlot cannot read.
    """
    cluster = Cluster.objects.get(pk=cluster_id)
    if cluster.backend != Cluster.Backend.LOCAL:
        return 0
    try:
        backend = backend_for(cluster)
    except BackendError as error:
        logger.warning("the files of %s cannot be read: %s", cluster, error)
        return 0
    now, begun, read = now_from_database(), time.monotonic(), 0
    turns = turns_of(cluster_id, now, jobs)
    known = {one.job_id: one for one in MetricStream.objects.filter(source=EVENTS, job__in=list(turns))}
    long_ago = now - timedelta(days=1)
    due = []
    for job, turn in turns.items():
        stream = known.get(job)
        read_at = (stream and stream.read_at) or long_ago
        if is_due(turn, stream) and (now - read_at >= EVERY or turn.ended_at is not None):
            due.append((read_at, turn, dict(stream.position) if stream else {}))
    for _, turn, position in sorted(due, key=lambda one: one[0]):
        if time.monotonic() - begun > seconds:
            break
        try:
            _store(_read(backend, turn, position, now), now)
        except FilesElsewhere:
            return read
        except (BackendError, OSError) as error:
            logger.warning("the event files of job %s cannot be read: %s", turn.job.pk, error)
        read += 1
    return read


def _read(backend: Backend, turn: Turn, position: dict[str, Any], now: datetime) -> _Read:
    files: dict[str, dict[str, Any]] = {path: dict(one) for path, one in position.get("files", {}).items()}
    found = _Read(turn, position, files)
    for path in _event_files(backend, turn.job.pk):
        if path not in files:
            if len(files) >= MOST_FILES:
                found.leave_out("files")
                continue
            folder = path.rpartition("/")[0]
            is_first = all(other.rpartition("/")[0] == folder for other in files)
            files[path] = {"offset": 0, "run": "" if is_first else folder.rpartition("/")[2]}
        _read_file(backend, found, path, now)
    if position.get("files_left_out"):
        found.left_out.pop("files", None)  # they are counted once
    return found


def _event_files(backend: Backend, job: int) -> list[str]:
    """Returns the paths of the event files of the job, as far as the limits reach."""
    folders, found = ["work"], []
    for number in range(MOST_FOLDERS):
        if number >= len(folders):
            break
        try:
            entries = backend.list_files(job_id=job, path=folders[number], limit=MOST_ENTRIES).entries
        except FilesElsewhere:
            raise
        except BackendError:  # the job has removed it, or nothing is there yet
            continue
        for entry in entries:
            path = f"{folders[number]}/{entry.name}"
            if entry.kind == FileKind.FOLDER:
                folders.append(path)
            elif entry.kind == FileKind.FILE and "tfevents" in entry.name and not entry.why_not:
                found.append(path)
    return sorted(found)


def _read_file(backend: Backend, found: _Read, path: str, now: datetime) -> None:
    known = found.files[path]
    if known.get("damaged"):
        return
    try:
        with closing(
            backend.open_file(job_id=found.turn.job.pk, path=path, offset=known["offset"])
        ) as opened:
            if (
                known.setdefault("identity", opened.identity) != opened.identity
                or opened.size < known["offset"]
            ):
                known |= {"identity": opened.identity, "offset": 0}  # another file has taken its place
                found.is_whole = False
                return
            data = b""
            while len(data) < MOST_BYTES and (piece := opened.read(MOST_BYTES - len(data))):
                data += piece
            part = read_part(data)
    except Damaged:
        known["damaged"] = True
        found.leave_out("damaged")
        return
    except BackendError:
        return
    known["offset"] += part.used + part.skipped
    found.is_whole = found.is_whole and len(data) < MOST_BYTES
    _sum_up(found, known["run"], part.scalars, now)


def _sum_up(found: _Read, run: str, scalars: list[Scalar], now: datetime) -> None:
    """Sums up scalars by windows of the times that the program gave them."""
    job = found.turn.job
    earliest = job.first_started_at or job.created_at
    timed = []
    for scalar in scalars:
        name = f"{run}/{scalar.tag}" if run else scalar.tag
        if len(name) > LONGEST_TAG or not name.isprintable():
            found.leave_out("long_names")
        elif not is_usable(scalar.value):
            found.leave_out("not_numbers")
        else:
            # A program's clock may be wrong, and its file may lie.
            begun = earliest.timestamp() <= scalar.wall_time <= now.timestamp()
            at = datetime.fromtimestamp(scalar.wall_time, UTC) if begun else now
            timed.append((at, name, scalar.value))
            if abs(scalar.step) <= LARGEST_STEP and name != AXIS:
                found.by_step.add(name, scalar.step, Value(scalar.value, at.timestamp()))
    timed.sort(key=lambda one: one[0])
    for seconds in (WINDOW, 60, 600, 3600, 21_600):
        windows: dict[int, dict[str, Summary]] = {}
        for at, name, value in timed:
            sums = windows.setdefault(number_at(at, seconds), {})
            sums[name] = merged(sums.get(name), of_value(value))
        if len(windows) <= MOST_WINDOWS:
            break
    begins = {number: max(begin_of(number, seconds), earliest) for number in windows}
    found.windows += [(begins[number], sums) for number, sums in windows.items()]


@transaction.atomic(durable=True)
def _store(found: _Read, now: datetime) -> None:
    job = found.turn.job
    streams = lock_streams(EVENTS, {job.pk})
    stream = streams[job.pk]
    if stream.position != found.position or stream.is_complete:
        return  # another process has read the same files
    sequence = int(found.position.get("sequence", 0))
    reports = [
        Report(job.pk, sequence + number, at, values) for number, (at, values) in enumerate(found.windows)
    ]
    for word, count in found.left_out.items():
        count_left_out(stream, word, count)
    stream.position = {
        "files": found.files,
        "sequence": sequence + len(reports),
        "files_left_out": "files" in stream.left_out,
    }
    is_overdue = found.turn.ended_at is not None and now - found.turn.ended_at > LATENESS
    stream.is_complete = job.has_ended and (found.is_whole or is_overdue)
    stream.read_at = now
    if job.has_ended and reports:
        pubsub.publish(f"job:{job.pk}")
    store(streams, reports, {job.pk: found.by_step} if found.by_step.passes else {})
