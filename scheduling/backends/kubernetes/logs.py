"""Follows the output of all workers of a cluster with a fixed number of streams and stores it in the jobs' logs.

It uses threads instead of an event loop, because the client of the API server blocks and waiting threads cost
little. There are two kinds of threads. Most follow one worker each until it ends. If there are more workers, a few
threads go round the others and fetch new output. A worker that is ordered to stop takes the place of one that is
not, because its last output is available only until its pod is gone.
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
from scheduling.backends.kubernetes.log_stream import Desk, Heard, Listener, Voice
from scheduling.backends.kubernetes.transcript import Occupied

logger = logging.getLogger(__name__)

FOLLOW, FETCH = "logs-follow", "logs-fetch"
GOING_ROUND = 4  # threads that fetch from workers that are not followed
AGAIN_SECONDS = 1.0  # until a worker that is not followed is asked again
# A longer silence may mean a dead connection; a new one continues where it ended.
SILENCE_SECONDS = 60.0
STOP_SECONDS = 10.0  # for threads to end; files stay locked until they have
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0


@dataclass
class Queued:
    """A worker with its position in the queue."""

    voice: Voice
    not_before: float = 0.0  # monotonic
    ticket: int = 0  # of its only valid entry in the queue; 0 without one
    reader: str = ""  # kind of the thread that reads it
    since: int = 0  # also a ticket: the lowest belongs to the worker that is read for longest
    failures: int = 0


@dataclass
class Crew:
    """The threads of one kind."""

    most: int
    wake: threading.Condition
    threads: list[threading.Thread] = field(default_factory=list)
    idle: int = 0

    @property
    def has_room(self) -> bool:
        return bool(self.idle) or len(self.threads) < self.most


class Follower:
    """Takes pods by `put` and `gone` and reads their logs until `stop`. Follows `streams` of them at the same time."""

    def __init__(self, desk: Desk, *, streams: int) -> None:
        self._desk, self._lock = desk, desk.lock
        self._queued: dict[str, Queued] = {}  # by uid: workers with output still to come
        self._finished: set[str] = set()  # uids
        self._of_rank: dict[tuple[int, int], list[Queued]] = defaultdict(list)  # ordered by attempt
        self._queue: list[tuple[float, int, Queued]] = []  # a heap
        self._pressing: dict[str, Queued] = {}  # by uid: urgent ones among the queue
        self._tickets = 0
        # closed until when, and after how many failures
        self._closed_nodes: dict[str, tuple[float, int]] = {}
        self._crews = {
            FOLLOW: Crew(streams, threading.Condition(self._lock)),
            FETCH: Crew(GOING_ROUND if streams else 0, threading.Condition(self._lock)),
        }

    # --- changes of pods ------------------------------------------------------------------------

    def put(self, pod: Object) -> None:
        """Takes the present state of one of Fairlot's pods."""
        uid = pod["metadata"]["uid"]
        has_begun, has_ended = _container(pod)
        with self._lock:
            if not has_begun or uid in self._finished or self._desk.stopped.is_set():
                return
            known = self._queued.get(uid) or self._add(pod)
            voice, going = known.voice, objects.is_told_to_end(pod)
            if known.ticket and (has_ended, going) == (voice.ended, voice.going):
                return
            voice.ended, voice.going = has_ended or voice.ended, going
            self._enqueue(known, 0.0)

    def gone(self, uid: str) -> None:
        """Takes the uid of a pod that is no longer in the cluster."""
        with self._lock:
            self._finished.discard(uid)
            if known := self._queued.get(uid):
                known.voice.ended = True
                self._enqueue(known, 0.0)

    def stop(self) -> None:
        """Stops all threads and waits for them. A thread that still waits for an answer will not write it."""
        self._desk.stopped.set()
        with self._lock:
            for known in self._queued.values():
                if known.voice.text:
                    known.voice.text.cut()
            for crew in self._crews.values():
                crew.wake.notify_all()
            threads = [thread for crew in self._crews.values() for thread in crew.threads]
        until = time.monotonic() + STOP_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _add(self, pod: Object) -> Queued:
        about = pod["metadata"]
        voice = Voice(
            uid=about["uid"],
            name=about["name"],
            namespace=about["namespace"],
            node=pod["spec"].get("nodeName", ""),
            job_id=objects.job_id_of(pod),
            rank=objects.rank_of(pod),
            epoch=objects.epoch_of(pod),
        )
        known = self._queued[voice.uid] = Queued(voice)
        # Attempts of one rank share a file, so they are read one after another.
        others = self._of_rank[voice.rank_of_job]
        others.append(known)
        others.sort(key=lambda other: other.voice.epoch)
        return known

    # --- queue ---------------------------------------------------------------------------------

    def _next_ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def _enqueue(self, known: Queued, pause: float) -> None:
        if known.reader or self._of_rank[known.voice.rank_of_job][0] is not known:
            return
        known.not_before, known.ticket = time.monotonic() + pause, self._next_ticket()
        heapq.heappush(self._queue, (known.not_before, known.ticket, known))
        if known.voice.is_pressing and not known.failures:
            self._pressing[known.voice.uid] = known
            if not self._crews[FOLLOW].has_room:
                self._make_room()
        self._wake()

    def _wake(self) -> None:
        """Wakes or starts a thread for the head of the queue."""
        for kind, crew in self._crews.items():
            if crew.idle:
                crew.wake.notify()
                return
            if len(crew.threads) < crew.most:
                name = f"{kind}-{len(crew.threads)}"
                thread = threading.Thread(target=self._run, args=(kind,), name=name, daemon=True)
                crew.threads.append(thread)
                thread.start()
                return

    def _make_room(self) -> None:
        """Cuts the stream of the worker that was followed for longest and is not about to stop."""
        followed = [
            known
            for known in self._queued.values()
            if known.reader == FOLLOW and known.voice.text and not known.voice.is_pressing
        ]
        if followed:
            voice = min(followed, key=lambda known: (known.voice.is_cut, known.since)).voice
            if voice.text and not voice.is_cut:
                voice.is_cut = True
                voice.text.cut()

    def _run(self, kind: str) -> None:
        while (known := self._take(kind)) is not None:
            pause: float | None = LONGEST_PAUSE
            try:
                pause = self._read(known, follow=kind == FOLLOW)
            except Exception:  # one log that cannot be stored must not end all others
                voice = known.voice
                logger.exception("the log of job %s, rank %s", voice.job_id, voice.rank)
            finally:
                self._give_back(known, pause)

    def _take(self, kind: str) -> Queued | None:
        """Waits for the next worker to read; None after `stop`."""
        crew = self._crews[kind]
        with self._lock:
            while not self._desk.stopped.is_set():
                wait = None
                # A fetching thread leaves the worker to following threads as long as one of them is free.
                if (kind == FOLLOW or not self._crews[FOLLOW].has_room) and (known := self._first()):
                    wait = known.not_before - time.monotonic()
                    if kind == FOLLOW and self._pressing:
                        known, wait = next(iter(self._pressing.values())), 0.0
                    if wait <= 0:
                        self._pressing.pop(known.voice.uid, None)
                        known.ticket, known.reader, known.since = 0, kind, self._next_ticket()
                        known.voice.is_cut = False
                        if self._first():
                            self._wake()
                        return known
                crew.idle += 1
                crew.wake.wait(wait)
                crew.idle -= 1
            return None

    def _first(self) -> Queued | None:
        """Returns the head of the queue. Drops invalid entries and postpones workers on closed nodes."""
        while self._queue:
            _, ticket, known = self._queue[0]
            if known.ticket != ticket:
                heapq.heappop(self._queue)
                continue
            until, _ = self._closed_nodes.get(known.voice.node, (0.0, 0))
            if known.not_before >= until:
                return known
            heapq.heappop(self._queue)
            known.not_before, known.ticket = until, self._next_ticket()
            heapq.heappush(self._queue, (until, known.ticket, known))
        return None

    def _give_back(self, known: Queued, pause: float | None) -> None:
        """Queues a worker again after `pause` seconds. With None it is finished."""
        voice = known.voice
        with self._lock:
            known.reader = ""
            if pause is not None:
                self._enqueue(known, pause)
                return
            del self._queued[voice.uid]
            self._finished.add(voice.uid)
            others = self._of_rank[voice.rank_of_job]
            others.remove(known)
            if others:
                self._enqueue(others[0], 0.0)
            else:
                del self._of_rank[voice.rank_of_job]

    # --- reading -------------------------------------------------------------------------------

    def _read(self, known: Queued, *, follow: bool) -> float | None:
        """Reads until there is nothing more for now. Returns a pause in seconds; None if the worker is finished."""
        voice = known.voice
        try:
            heard = Listener(self._desk, voice).hear(follow=follow)
        except Occupied as trouble:
            logger.warning("%s", trouble)
            return self._longer(known)
        except FileNotFoundError:
            logger.info("the files of job %s are removed; its log ends", voice.job_id)
            return None
        except OSError as trouble:
            logger.warning(
                "the log of job %s, rank %s, cannot be kept: %s", voice.job_id, voice.rank, trouble
            )
            return self._longer(known)
        if heard.is_done:
            return None
        return self._pause_after(known, heard, follow=follow)

    def _pause_after(self, known: Queued, heard: Heard, *, follow: bool) -> float:
        voice, trouble = known.voice, heard.trouble
        if heard.bytes:
            known.failures = 0
            with self._lock:
                self._closed_nodes.pop(voice.node, None)
        if voice.is_cut or self._desk.stopped.is_set():
            return AGAIN_SECONDS
        if trouble is None:
            # A followed response ends when the container ends, which the watch has not reported yet.
            return self._longer(known) if follow else AGAIN_SECONDS
        if not known.failures and not heard.bytes:  # logged once in a series of failures
            logger.info("the log of %s/%s: %s", voice.namespace, voice.name, trouble)
        pause = self._longer(known)
        if isinstance(trouble, Missing) or (isinstance(trouble, Refused) and trouble.code >= 500):
            pause = max(pause, self._close(voice.node))
        return pause

    def _close(self, node: str) -> float:
        """Closes a node for a while and returns its seconds. A kubelet that does not answer would block all streams."""
        with self._lock:
            until, failures = self._closed_nodes.get(node, (0.0, 0))
            now = time.monotonic()
            if now - until > LONGEST_PAUSE:
                failures = 0
            if until < now:
                until = now + _jittered(failures)
                self._closed_nodes[node] = until, min(failures + 1, 16)
            return until - now

    def _longer(self, known: Queued) -> float:
        """Returns a pause that grows with each consecutive failure."""
        pause = _jittered(known.failures)
        known.failures = min(known.failures + 1, 16)
        return pause


def _jittered(failures: int) -> float:
    longest = min(FIRST_PAUSE * 2**failures, LONGEST_PAUSE)
    return random.uniform(longest / 2, longest)  # noqa: S311 - not for secrets


def _container(pod: Object) -> tuple[bool, bool]:
    """Returns whether the pod's container has started, and whether it has ended."""
    for status in pod.get("status", {}).get("containerStatuses", ()):
        state = status.get("state", {})
        if ended := state.get("terminated"):
            return bool(ended.get("startedAt") and ended.get("containerID")), True
        if state.get("running"):
            return True, objects.has_ended(pod)
    return False, False
