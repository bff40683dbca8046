"""Reads the output of all workers of a cluster with a fixed number of threads, and stores it in the jobs' logs.

There are two kinds of threads. Most threads follow one worker each until the worker ends. If there are more workers
than such threads, a few other threads fetch the new output of the remaining workers in turn.

When a worker is ordered to stop, a thread must read it soon, because its last output is lost when its pod is deleted.
If no thread is free, one of the threads that follow other workers stops doing so and reads this worker instead.

The module uses threads instead of an event loop, because the API client blocks.
"""

from __future__ import annotations

import heapq
import logging
import random
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field

from scheduling.backends.kubernetes import objects
from scheduling.backends.kubernetes.api import Missing, Object, Refused
from scheduling.backends.kubernetes.log_stream import LogContext, LogReader, ReadResult, WorkerStream
from scheduling.backends.kubernetes.transcript import LogLocked

logger = logging.getLogger(__name__)

FOLLOW, FETCH = "logs-follow", "logs-fetch"
FETCHERS = 4  # threads that fetch the output of workers that are not followed
AGAIN_SECONDS = 1.0  # until the next fetch from a worker that is not followed
# A longer silence may mean a dead connection. A new connection continues at the same position.
SILENCE_SECONDS = 60.0
STOP_SECONDS = 10.0  # that `stop` waits for threads; a log stays locked until its thread has ended
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0


@dataclass
class QueuedWorker:
    """A worker whose output has not been stored completely: the time of its next read, and the kind of thread that
    reads it now."""

    worker: WorkerStream
    not_before: float = 0.0  # monotonic time of the next read
    ticket: int = 0  # ticket of the worker's valid entry in the queue; 0 while it has no entry
    reader: str = ""  # kind of the thread that reads the worker; empty while no thread does
    # ticket of the beginning of the reading; the lowest one belongs to the worker that is read for longest
    since: int = 0
    failures: int = 0


@dataclass
class ReaderThreads:
    """The reader threads of one of the two kinds: those that follow one worker each, or those that fetch in turn."""

    most: int
    wake: threading.Condition
    threads: list[threading.Thread] = field(default_factory=list)
    idle: int = 0

    @property
    def has_room(self) -> bool:
        return bool(self.idle) or len(self.threads) < self.most


class Follower:
    """Reads the logs of all pods that are passed to `put`, until `stop` is called.

    Follows up to `streams` pods at the same time, and fetches the output of the other pods at intervals.
    """

    def __init__(self, context: LogContext, *, streams: int) -> None:
        self._context, self._lock = context, context.lock
        self._queued: dict[str, QueuedWorker] = {}  # workers with incomplete output, by UID
        self._finished: set[str] = set()  # UIDs of workers with complete output
        # by (job ID, rank), ordered by attempt
        self._of_rank: dict[tuple[int, int], list[QueuedWorker]] = defaultdict(list)
        # Heap of (time of the next read, ticket, worker).
        self._queue: list[tuple[float, int, QueuedWorker]] = []
        self._urgent: dict[str, QueuedWorker] = {}  # queued workers that are about to end, by UID
        self._tickets = 0
        # By node: the monotonic time until which no log is requested there, and the number of failures so far.
        self._closed_nodes: dict[str, tuple[float, int]] = {}
        self._groups = {
            FOLLOW: ReaderThreads(streams, threading.Condition(self._lock)),
            FETCH: ReaderThreads(FETCHERS if streams else 0, threading.Condition(self._lock)),
        }

    # --- changes of pods ------------------------------------------------------------------------

    def put(self, pod: Object) -> None:
        """Receives the current state of one of Fairlot's pods. Queues the pod for reading if it may have output that is
        not stored yet."""
        uid = pod["metadata"]["uid"]
        has_begun, has_ended = _container(pod)
        with self._lock:
            if not has_begun or uid in self._finished or self._context.stopped.is_set():
                return
            known = self._queued.get(uid) or self._add(pod)
            worker, going = known.worker, objects.is_ordered_to_end(pod)
            if known.ticket and (has_ended, going) == (worker.ended, worker.going):
                return
            worker.ended, worker.going = has_ended or worker.ended, going
            self._enqueue(known, 0.0)

    def gone(self, uid: str) -> None:
        """Receives the UID of a pod that is no longer in the cluster."""
        with self._lock:
            self._finished.discard(uid)
            if known := self._queued.get(uid):
                known.worker.ended = True
                self._enqueue(known, 0.0)

    def stop(self) -> None:
        """Stops all threads and waits up to STOP_SECONDS for them to end.

        A thread that is still waiting for a response after that time will not store the response.
        """
        self._context.stopped.set()
        with self._lock:
            for known in self._queued.values():
                if known.worker.text:
                    known.worker.text.cut()
            for group in self._groups.values():
                group.wake.notify_all()
            threads = [thread for group in self._groups.values() for thread in group.threads]
        until = time.monotonic() + STOP_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _add(self, pod: Object) -> QueuedWorker:
        about = pod["metadata"]
        worker = WorkerStream(
            uid=about["uid"],
            name=about["name"],
            namespace=about["namespace"],
            node=pod["spec"].get("nodeName", ""),
            job_id=objects.job_id_of(pod),
            rank=objects.rank_of(pod),
            is_leader=objects.is_leader(pod),
            epoch=objects.epoch_of(pod),
        )
        known = self._queued[worker.uid] = QueuedWorker(worker)
        # The attempts of a rank share a log file, so they are read one after another.
        others = self._of_rank[worker.rank_of_job]
        others.append(known)
        others.sort(key=lambda other: other.worker.epoch)
        return known

    # --- queue ---------------------------------------------------------------------------------

    def _next_ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def _enqueue(self, known: QueuedWorker, pause: float) -> None:
        if known.reader or self._of_rank[known.worker.rank_of_job][0] is not known:
            return
        known.not_before, known.ticket = time.monotonic() + pause, self._next_ticket()
        heapq.heappush(self._queue, (known.not_before, known.ticket, known))
        if known.worker.is_urgent and not known.failures:
            self._urgent[known.worker.uid] = known
            if not self._groups[FOLLOW].has_room:
                self._make_room()
        self._wake()

    def _wake(self) -> None:
        """Wakes an idle thread, or starts a new thread, to read the worker at the head of the queue."""
        for kind, group in self._groups.items():
            if group.idle:
                group.wake.notify()
                return
            if len(group.threads) < group.most:
                name = f"{kind}-{len(group.threads)}"
                thread = threading.Thread(target=self._run, args=(kind,), name=name, daemon=True)
                group.threads.append(thread)
                thread.start()
                return

    def _make_room(self) -> None:
        """Frees a thread to read another worker: ends the log response of the worker that has been followed for the
        longest time.

        Does not choose a worker that was ordered to stop and still runs, because its last output could be lost.
        """
        followed = [
            known
            for known in self._queued.values()
            if known.reader == FOLLOW and known.worker.text and not known.worker.is_urgent
        ]
        if followed:
            worker = min(followed, key=lambda known: (known.worker.is_cut, known.since)).worker
            if worker.text and not worker.is_cut:
                worker.is_cut = True
                worker.text.cut()

    def _run(self, kind: str) -> None:
        while (known := self._take(kind)) is not None:
            pause: float | None = LONGEST_PAUSE
            try:
                pause = self._read(known, follow=kind == FOLLOW)
            except Exception:  # one log that cannot be stored must not stop the reading of all others
                worker = known.worker
                logger.exception("the log of job %s, rank %s", worker.job_id, worker.rank)
            finally:
                self._requeue(known, pause)

    def _take(self, kind: str) -> QueuedWorker | None:
        """Waits until a worker is due to be read by a thread of kind `kind`, and returns the worker. Returns None after
        `stop`.

        `kind` is FOLLOW for threads that follow one worker each, or FETCH for threads that fetch from workers in turn.
        """
        group = self._groups[kind]
        with self._lock:
            while not self._context.stopped.is_set():
                wait = None
                # A fetching thread leaves the worker to the following threads while any of them is free.
                if (kind == FOLLOW or not self._groups[FOLLOW].has_room) and (known := self._first()):
                    wait = known.not_before - time.monotonic()
                    if kind == FOLLOW and self._urgent:
                        known, wait = next(iter(self._urgent.values())), 0.0
                    if wait <= 0:
                        self._urgent.pop(known.worker.uid, None)
                        known.ticket, known.reader, known.since = 0, kind, self._next_ticket()
                        known.worker.is_cut = False
                        if self._first():
                            self._wake()
                        return known
                group.idle += 1
                group.wake.wait(wait)
                group.idle -= 1
            return None

    def _first(self) -> QueuedWorker | None:
        """Returns the worker at the head of the queue, without removing it; None if the queue is empty.

        Postpones workers on nodes to which `_close` has paused log requests.
        """
        while self._queue:
            _, ticket, known = self._queue[0]
            if known.ticket != ticket:  # a later entry of the same worker has replaced this one
                heapq.heappop(self._queue)
                continue
            until, _ = self._closed_nodes.get(known.worker.node, (0.0, 0))
            if known.not_before >= until:
                return known
            heapq.heappop(self._queue)
            known.not_before, known.ticket = until, self._next_ticket()
            heapq.heappush(self._queue, (until, known.ticket, known))
        return None

    def _requeue(self, known: QueuedWorker, pause: float | None) -> None:
        """Queues the worker `known` again, to be read after `pause` seconds.

        If `pause` is None, marks the worker's output as complete instead.
        """
        worker = known.worker
        with self._lock:
            known.reader = ""
            if pause is not None:
                self._enqueue(known, pause)
                return
            del self._queued[worker.uid]
            self._finished.add(worker.uid)
            others = self._of_rank[worker.rank_of_job]
            others.remove(known)
            if others:
                self._enqueue(others[0], 0.0)
            else:
                del self._of_rank[worker.rank_of_job]

    # --- reading -------------------------------------------------------------------------------

    def _read(self, known: QueuedWorker, *, follow: bool) -> float | None:
        """Reads the worker's log once. Returns the seconds until the next read; None if the worker need not be read
        again.

        With `follow`, the read lasts until the worker's program ends.
        """
        worker = known.worker
        try:
            result = LogReader(self._context, worker).read(follow=follow)
        except LogLocked as trouble:
            logger.warning("%s", trouble)
            return self._next_pause(known)
        except FileNotFoundError:
            logger.info("the files of job %s are removed; its log ends", worker.job_id)
            return None
        except OSError as trouble:
            logger.warning(
                "the log of job %s, rank %s, cannot be kept: %s", worker.job_id, worker.rank, trouble
            )
            return self._next_pause(known)
        if result.is_done:
            return None
        return self._pause_after(known, result, follow=follow)

    def _pause_after(self, known: QueuedWorker, result: ReadResult, *, follow: bool) -> float:
        worker, trouble = known.worker, result.trouble
        if result.bytes:
            known.failures = 0
            with self._lock:
                self._closed_nodes.pop(worker.node, None)
        if worker.is_cut or self._context.stopped.is_set():
            return AGAIN_SECONDS
        if trouble is None:
            # A followed response ends when the container ends, but the watch has not reported the end yet.
            return self._next_pause(known) if follow else AGAIN_SECONDS
        if not known.failures and not result.bytes:  # logs only the first of several failures in a row
            logger.info("the log of %s/%s: %s", worker.namespace, worker.name, trouble)
        pause = self._next_pause(known)
        if isinstance(trouble, Missing) or (isinstance(trouble, Refused) and trouble.code >= 500):
            pause = max(pause, self._close(worker.node))
        return pause

    def _close(self, node: str) -> float:
        """Pauses log requests to a node after a failed request. Returns how many seconds of the pause remain.

        Without the pause, one kubelet that does not answer could block all threads.
        """
        with self._lock:
            until, failures = self._closed_nodes.get(node, (0.0, 0))
            now = time.monotonic()
            if now - until > LONGEST_PAUSE:
                failures = 0
            if until < now:
                until = now + _jittered(failures)
                self._closed_nodes[node] = until, min(failures + 1, 16)
            return until - now

    def _next_pause(self, known: QueuedWorker) -> float:
        """Counts a failed read and returns the pause until the next read, in seconds.

        The pause grows with each failure since the last success.
        """
        pause = _jittered(known.failures)
        known.failures = min(known.failures + 1, 16)
        return pause


def _jittered(failures: int) -> float:
    longest = min(FIRST_PAUSE * 2**failures, LONGEST_PAUSE)
    return random.uniform(longest / 2, longest)  # noqa: S311 - not for secrets


def _container(pod: Object) -> tuple[bool, bool]:
    """Returns a pair: whether the pod's container has started, and whether it has ended."""
    for status in pod.get("status", {}).get("containerStatuses", ()):
        state = status.get("state", {})
        if ended := state.get("terminated"):
            return bool(ended.get("startedAt") and ended.get("containerID")), True
        if state.get("running"):
            return True, objects.has_ended(pod)
    return False, False
