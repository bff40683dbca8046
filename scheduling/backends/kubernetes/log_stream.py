"""Reads one response of a kubelet into a worker's log and extracts the job's progress."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import re2

from scheduling.backends.kubernetes.api import Api, Missing, Refused, Text, Unreachable
from scheduling.backends.kubernetes.transcript import BILLION, KubeletMessage, Transcript
from scheduling.backends.logfiles import LogFiles
from scheduling.backends.output import Progress

logger = logging.getLogger(__name__)

LOG = "/api/v1/namespaces/{}/pods/{}/log"
FETCH_BYTES = 1 << 20  # new bytes after which a worker that is not followed gives way to the next one
# The rate that is read without pauses. A worker that writes faster is read more slowly than it writes.
BYTES_PER_SECOND = 1 << 20
MARK_SECONDS = 5.0  # between records of how far a log was read
REPORT_SECONDS = 1.0  # between reports of a job's progress

Report = Callable[[int, int, float, float], None]  # job, epoch, steps, monotonic moment


def files_of(root: Path, job_id: int) -> LogFiles:
    """Returns the logs of a job, in the same layout as the local backend's."""
    return LogFiles(root / str(job_id) / "logs")


@dataclass
class WorkerStream:
    """A worker whose container has started."""

    uid: str
    name: str
    namespace: str
    node: str
    job_id: int
    rank: int
    epoch: int
    ended: bool = False  # its container has ended or its pod is gone, so its output is finite
    going: bool = False  # its pod was ordered to stop
    text: Text | None = field(default=None, repr=False)  # while it is read
    is_cut: bool = False  # its stream must give way to another

    @property
    def rank_of_job(self) -> tuple[int, int]:
        return self.job_id, self.rank

    @property
    def is_urgent(self) -> bool:
        """Returns whether its output will soon be unavailable."""
        return self.going and not self.ended


@dataclass(frozen=True)
class LogContext:
    """What all log readers of a cluster share. `lock` guards the changing fields of workers."""

    api: Api
    root: Path
    limit: int  # bytes of a log
    pattern_of: Callable[[int], str]  # by job; empty: none
    report: Report
    silence: float  # seconds after which a stream may be dead
    lock: threading.RLock = field(default_factory=threading.RLock)
    stopped: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class ReadResult:
    """The result of reading: whether nothing more will come, how many new bytes there were, and the error, if any."""

    is_done: bool = False
    bytes: int = 0
    trouble: Exception | None = None


class LogReader:
    """Reads one response about one worker."""

    def __init__(self, context: LogContext, worker: WorkerStream) -> None:
        self._context, self._worker = context, worker
        self._progress = _progress(context.pattern_of(worker.job_id)) if worker.rank == 0 else None
        self._reported_at: float | None = None
        self._unreported: tuple[float, float] | None = None
        self._received_at: float | None = None
        self._fed = 0

    def read(self, *, follow: bool) -> ReadResult:
        """Reads until there is nothing more for now or, with `follow`, until the worker ends. Raises LogLocked and
        OSError."""
        worker, context = self._worker, self._context
        was_ended = worker.ended  # asked first, because a worker that ends meanwhile may have written more
        transcript = Transcript(
            files_of(context.root, worker.job_id),
            worker.rank,
            pod=worker.uid,
            epoch=worker.epoch,
            limit=context.limit,
            new=self._take,
        )
        try:
            if transcript.done:
                return ReadResult(is_done=True)
            trouble, is_whole = self._ask(transcript, follow=follow)
            done = (
                (was_ended and (is_whole or isinstance(trouble, (Missing, KubeletMessage))))
                or self._is_gone(trouble)
                or self._is_enough(transcript)
            )
            if done:
                transcript.finish(is_complete=not self._is_enough(transcript))
            else:
                transcript.save()
            if done and self._progress and self._progress.finish():
                self._note(self._progress.steps, time.monotonic())
            self._report()
            return ReadResult(done, self._fed, trouble)
        finally:
            transcript.close()

    def _ask(self, transcript: Transcript, *, follow: bool) -> tuple[Exception | None, bool]:
        """Requests the log and reads it. Returns the error, if any, and whether the response was complete."""
        worker, context = self._worker, self._context
        query = {"container": "main", "timestamps": "true", "follow": "true" if follow else "false"}
        if transcript.since:
            query["sinceTime"] = transcript.since
        transcript.begin()
        if self._is_enough(transcript):
            return None, False
        path = LOG.format(worker.namespace, worker.name)
        try:
            with context.api.text(path, read_seconds=context.silence, **query) as text:
                return None, self._read_all(transcript, text, follow=follow)
        except (Refused, Unreachable, KubeletMessage) as trouble:
            return trouble, False

    def _read_all(self, transcript: Transcript, text: Text, *, follow: bool) -> bool:
        """Reads the response into the log and returns whether it was complete."""
        worker, stopped = self._worker, self._context.stopped
        with self._context.lock:
            worker.text = text
            if stopped.is_set():  # the stop came before there was a stream to cut
                return False
        saved_at = time.monotonic()
        try:
            for piece in text.pieces():
                now = time.monotonic()
                transcript.feed(piece)
                self._received_at = now
                if now - saved_at >= MARK_SECONDS:
                    transcript.save()
                    saved_at = now
                if stopped.is_set() or self._is_enough(transcript):
                    return False
                if not follow and self._fed >= FETCH_BYTES:
                    return False
                if not worker.going and not worker.ended:
                    stopped.wait(max(0.0, len(piece) / BYTES_PER_SECOND - (time.monotonic() - now)))
        finally:
            with self._context.lock:
                worker.text = None
        return True

    def _is_gone(self, trouble: Exception | None) -> bool:
        """Returns whether the API server has no such pod any more. A kubelet that does not find it proves less."""
        return isinstance(trouble, Missing) and f'pods "{self._worker.name}" not found' in trouble.message

    def _is_enough(self, transcript: Transcript) -> bool:
        """Returns whether reading can end because the log is full. Rank 0 is read further for its progress."""
        return transcript.is_full and self._progress is None

    # --- progress ------------------------------------------------------------------------------

    def _take(self, data: bytes, moment: int) -> None:
        self._fed += len(data)
        if self._progress is None or not self._progress.feed(data):
            return
        # The time of writing, by a clock close to ours, but not before anything that was read earlier.
        now = time.monotonic()
        age = max(0.0, datetime.now(UTC).timestamp() - moment / BILLION)
        self._note(
            self._progress.steps, now - min(age, now - self._received_at if self._received_at else age)
        )
        if self._reported_at is None or now - self._reported_at >= REPORT_SECONDS:
            self._report()

    def _note(self, steps: float | None, at: float) -> None:
        if steps is not None:
            self._unreported = steps, at

    def _report(self) -> None:
        if self._unreported:
            self._context.report(self._worker.job_id, self._worker.epoch, *self._unreported)
            self._reported_at, self._unreported = time.monotonic(), None


def _progress(pattern: str) -> Progress | None:
    try:
        return Progress(pattern) if pattern else None
    except re2.error as error:
        logger.warning("invalid progress pattern: %s", error)
        return None
