"""Following what all workers of a cluster write, with a fixed number of streams, into the jobs' logs.

Threads, and not an event loop: the client of the API server, with its tokens that change and its refusals, is one
that blocks, and waiting threads cost little. There are two kinds. Most follow one worker each until it ends. Where
there are more workers than that, a few go round among the rest and fetch what is new. A worker that is told to go
takes the place of one that is not, for what it says last can be had only until its pod is gone.
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
GOING_ROUND = 4  # threads that fetch from those that are not followed
AGAIN_SECONDS = 1.0  # a worker that is not followed is asked again after this long
# Silence for longer may be a dead connection: another one goes on where it ended.
SILENCE_SECONDS = 60.0
STOP_SECONDS = 10.0  # for threads to come to an end; the files are locked as long as one has not
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0


@dataclass
class Queued:
    """A voice, and its place in the queue."""

    voice: Voice
    not_before: float = 0.0  # monotonic
    ticket: int = 0  # of its one valid entry in the queue; 0 while it has none
    reader: str = ""  # the kind of thread that reads it
    since: int = 0  # a ticket, too: who has been read for longest has the lowest
    failures: int = 0


@dataclass
class Crew:
    """Threads of one kind."""

    most: int
    wake: threading.Condition
    threads: list[threading.Thread] = field(default_factory=list)
    idle: int = 0

    @property
    def has_room(self) -> bool:
        return bool(self.idle) or len(self.threads) < self.most


class Follower:
    """Told of pods by `put` and `gone`, reads their logs until `stop`. `streams` are followed at once."""

    def __init__(self, desk: Desk, *, streams: int) -> None:
        self._desk, self._lock = desk, desk.lock
        self._queued: dict[str, Queued] = {}  # by uid, those of whom something is to come
        self._finished: set[str] = set()  # uids
        self._of_rank: dict[tuple[int, int], list[Queued]] = defaultdict(list)  # in the order of their turns
        self._queue: list[tuple[float, int, Queued]] = []  # a heap
        self._pressing: dict[str, Queued] = {}  # of the queue, by uid
        self._tickets = 0
        self._closed_nodes: dict[str, tuple[float, int]] = {}  # until when, after how many failures
        self._crews = {
            FOLLOW: Crew(streams, threading.Condition(self._lock)),
            FETCH: Crew(GOING_ROUND if streams else 0, threading.Condition(self._lock)),
        }

    # --- being told ----------------------------------------------------------------------------

    def put(self, pod: Object) -> None:
        """A pod of ours, as it is now."""
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
        """The pod is no longer in the cluster."""
        with self._lock:
            self._finished.discard(uid)
            if known := self._queued.get(uid):
                known.voice.ended = True
                self._enqueue(known, 0.0)

    def stop(self) -> None:
        """Returns when no thread writes any more; one that still waits for an answer will not write it."""
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
        # Of one rank one after another: they share a file.
        others = self._of_rank[voice.rank_of_job]
        others.append(known)
        others.sort(key=lambda other: other.voice.epoch)
        return known

    # --- who reads whom ------------------------------------------------------------------------

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
        """A thread for the first in the queue."""
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
        """Who has been followed for longest, and is not about to go, gives way."""
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
            except Exception:  # one log that cannot be kept must not end all others
                voice = known.voice
                logger.exception("the log of job %s, rank %s", voice.job_id, voice.rank)
            finally:
                self._give_back(known, pause)

    def _take(self, kind: str) -> Queued | None:
        """The next to be read; None when all is over."""
        crew = self._crews[kind]
        with self._lock:
            while not self._desk.stopped.is_set():
                wait = None
                # Who fetches leaves it to who follows, as long as one of those has time.
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
        """The head of the queue, rid of entries that are no longer valid and of those on closed nodes."""
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
        """None: nothing more will come."""
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
        """Reads until there is no more for now; how long to leave it alone then, None: for ever."""
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
            # A follower's answer ends when the container does, of which we have not heard yet.
            return self._longer(known) if follow else AGAIN_SECONDS
        if not known.failures and not heard.bytes:  # once of each row of failures
            logger.info("the log of %s/%s: %s", voice.namespace, voice.name, trouble)
        pause = self._longer(known)
        if isinstance(trouble, Missing) or (isinstance(trouble, Refused) and trouble.code >= 500):
            pause = max(pause, self._close(voice.node))
        return pause

    def _close(self, node: str) -> float:
        """A kubelet that does not answer keeps all streams waiting that ask it: for a while none does."""
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
        """A pause that grows with each failure in a row."""
        pause = _jittered(known.failures)
        known.failures = min(known.failures + 1, 16)
        return pause


def _jittered(failures: int) -> float:
    longest = min(FIRST_PAUSE * 2**failures, LONGEST_PAUSE)
    return random.uniform(longest / 2, longest)  # noqa: S311 - not for secrets


def _container(pod: Object) -> tuple[bool, bool]:
    """Whether its container has begun, and whether it has ended."""
    for status in pod.get("status", {}).get("containerStatuses", ()):
        state = status.get("state", {})
        if ended := state.get("terminated"):
            return bool(ended.get("startedAt") and ended.get("containerID")), True
        if state.get("running"):
            return True, objects.has_ended(pod)
    return False, False
