"""Reads a worker's log from the API server, appends it to the log file of the worker's rank, and extracts the job's
progress."""

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
FETCH_BYTES = 1 << 20  # bytes read at once from a worker that is not followed, before the next worker's turn
# The most bytes per second that are read from a running worker. A worker that writes faster is read with a delay.
BYTES_PER_SECOND = 1 << 20
MARK_SECONDS = 5.0  # between two records of the position in a log
REPORT_SECONDS = 1.0  # between two reports of a job's progress

Report = Callable[[int, int, float, float], None]  # job ID, epoch, steps, monotonic time


def files_of(root: Path, job_id: int) -> LogFiles:
    """Returns the log files of a job below the folder `root`, in the same layout as in the local backend."""
    return LogFiles(root / str(job_id) / "logs")


@dataclass
class WorkerStream:
    """The state of reading one worker's log. The worker's container has started."""

    uid: str
    name: str
    namespace: str
    node: str
    job_id: int
    rank: int
    epoch: int
    is_leader: bool  # the worker's lines give the job's progress
    ended: bool = False  # the container has ended or the pod is gone, so no new output will come
    going: bool = False  # the pod was ordered to stop
    text: Text | None = field(default=None, repr=False)  # the open response, while a thread reads it
    is_cut: bool = False  # the stream was cut to make room for another worker

    @property
    def rank_of_job(self) -> tuple[int, int]:
        return self.job_id, self.rank

    @property
    def is_urgent(self) -> bool:
        """Returns whether the worker was ordered to stop but has not ended.

        Such a worker must be read first, because its output disappears soon after it ends.
        """
        return self.going and not self.ended


@dataclass(frozen=True)
class LogContext:
    """The settings and locks that all log readers of a cluster share.

    `lock` guards the mutable fields of WorkerStream.
    """

    api: Api
    root: Path
    limit: int  # most bytes of a log
    pattern_of: Callable[[int], str]  # maps a job ID to its progress pattern; empty: no pattern
    report: Report
    silence: float  # seconds without data after which a connection counts as broken
    lock: threading.RLock = field(default_factory=threading.RLock)
    stopped: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class ReadResult:
    """The result of one request for a worker's log: whether the log is complete, the number of new bytes, and the error
    or None."""

    is_done: bool = False
    bytes: int = 0
    trouble: Exception | None = None


class LogReader:
    """Reads one worker's log from the API server, with one request."""

    def __init__(self, context: LogContext, worker: WorkerStream) -> None:
        self._context, self._worker = context, worker
        self._progress = _progress(context.pattern_of(worker.job_id)) if worker.is_leader else None
        self._reported_at: float | None = None
        self._unreported: tuple[float, float] | None = None
        self._received_at: float | None = None
        self._fed = 0

    def read(self, *, follow: bool) -> ReadResult:
        """Reads the output that exists now or, with `follow`, all output until the program ends.

        Raises LogLocked if another process writes the log file, and OSError if the log file cannot be written.
        """
        worker, context = self._worker, self._context
        # Read before the log, because a worker that ends meanwhile may have written more.
        was_ended = worker.ended
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
        """Requests the log once and passes the response to `transcript`, which writes the log file.

        With `follow`, the response continues until the worker's program ends. Returns a pair: the error or None, and
        whether the response was read to its end.
        """
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
        """Copies the response to the log file. Returns whether the response was read to its end.

        Stops before the end in each of these cases:

        - All readers were ordered to stop.
        - `_is_enough` returns True, because the log file is full.
        - `follow` is false, and FETCH_BYTES bytes were read.
        """
        worker, stopped = self._worker, self._context.stopped
        with self._context.lock:
            worker.text = text
            if stopped.is_set():  # `stop` was called before it could cut this stream
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
        """Returns whether `trouble`, the error of a request, says that the API server no longer has the pod.

        Returns False if the kubelet has answered that it does not know the pod: the API server may still have it.
        """
        return isinstance(trouble, Missing) and f'pods "{self._worker.name}" not found' in trouble.message

    def _is_enough(self, transcript: Transcript) -> bool:
        """Returns whether the log file is full, so that reading can end.

        Returns False for a job with a progress pattern, because the rest of its output may still report progress.
        """
        return transcript.is_full and self._progress is None

    # --- progress ------------------------------------------------------------------------------

    def _take(self, data: bytes, moment: int) -> None:
        self._fed += len(data)
        if self._progress is None or not self._progress.feed(data):
            return
        # Uses the time of writing by the cluster's clock, but no time before the previous piece was received.
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
