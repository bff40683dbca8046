"""The cluster's events about jobs: finds the job and the attempt that each Kubernetes event concerns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from scheduling.backends.base import ClusterEvent
from scheduling.backends.kubernetes import objects
from scheduling.backends.kubernetes.cluster_cache import ClusterCache, Gang
from scheduling.backends.kubernetes.events import Events, EventText

# All warnings, and the only normal event that removes workers.
SELECTORS = ("type=Warning", "type!=Warning,reason=TaintManagerEviction")
# Seconds that an event waits for its Job or pod, because the watches may report the event first.
WAIT_SECONDS = 60.0


@dataclass
class ClusterEvents:
    """Collects the Kubernetes events about jobs.

    `mirrors` contains one store of events for each field selector in SELECTORS. Together, the field selectors select
    all events that matter. Reflectors fill the stores.
    """

    view: ClusterCache
    wall: Callable[[], datetime] = lambda: datetime.now(UTC)
    mirrors: Sequence[Events] = field(init=False)

    def __post_init__(self) -> None:
        self.mirrors = [Events(self.view.notify) for _ in SELECTORS]
        self._waiting: list[tuple[float, EventText]] = []  # with the monotonic time when the event is dropped

    def take(self) -> Sequence[ClusterEvent]:
        """Returns new events about known gangs since the last call. Also stores new denials in the cache.

        A denial is the reason why the Job controller could not create a pod.
        """
        now = time.monotonic()
        words, self._waiting = self._waiting, []
        for mirror in self.mirrors:
            new, denials = mirror.take()
            words += [(now + WAIT_SECONDS, word) for word in new]
            # Stored in the call that returns the event: if a denial stops a gang, users see the reason in the event.
            for _, uid, denial in denials:
                self.view.record_denial(uid, denial)
        found: list[ClusterEvent] = []
        for until, word in words:
            if word.job_id is None:
                found += self._of_node(word)
            elif (gang := self.view.gang(word.job_id)) is not None and gang.status is not None:
                found += self._of(word, gang)
            elif now < until:
                self._waiting.append((until, word))
        return found

    def _of_node(self, word: EventText) -> Iterator[ClusterEvent]:
        for job_id in self.view.on_node(word.node):
            if gang := self.view.gang(job_id):
                yield from self._of(word, gang)

    def _of(self, word: EventText, gang: Gang) -> Iterator[ClusterEvent]:
        """Converts `word`, the text of a Kubernetes event, to a ClusterEvent about this gang, and yields it.

        Yields nothing if the event is older than the gang's current attempt or comes from another namespace.
        """
        about = gang.job["metadata"]
        began = objects.began(gang.job)
        if gang.status is None or (word.namespace and word.namespace != about["namespace"]):
            return
        if began and word.at < began:
            return
        age = max(0.0, (self.wall() - word.at).total_seconds())
        yield ClusterEvent(word.uid, gang.status.job_id, gang.status.epoch, word.text, age)
