"""Events of a cluster, and which turns of which jobs they are about."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from scheduling.backends.base import ClusterEvent
from scheduling.backends.kubernetes import objects
from scheduling.backends.kubernetes.cluster_cache import Gang, View
from scheduling.backends.kubernetes.events import Events, Word

# All warnings; and of what is said without alarm, what takes a worker away.
SELECTORS = ("type=Warning", "type!=Warning,reason=TaintManagerEviction")
# A word may come before that which it is about, or before its turn.
WAIT_SECONDS = 60.0


@dataclass
class ClusterEvents:
    """`mirrors` are to be given to reflectors, one for each selector."""

    view: View
    wall: Callable[[], datetime] = lambda: datetime.now(UTC)
    mirrors: Sequence[Events] = field(init=False)

    def __post_init__(self) -> None:
        self.mirrors = [Events(self.view.stir) for _ in SELECTORS]
        self._waiting: list[tuple[float, Word]] = []  # with the moment (monotonic) until which it waits

    def take(self) -> Sequence[ClusterEvent]:
        """What is new since this was last asked. The view learns of denials only now, when their words are told."""
        now = time.monotonic()
        words, self._waiting = self._waiting, []
        for mirror in self.mirrors:
            new, denials = mirror.take()
            words += [(now + WAIT_SECONDS, word) for word in new]
            for denial in denials:
                self.view.note_denial(*denial)
        found: list[ClusterEvent] = []
        for until, word in words:
            if word.job_id is None:
                found += self._of_node(word)
            elif (gang := self.view.gang(word.job_id)) is not None and gang.sight is not None:
                found += self._of(word, gang)
            elif now < until:
                self._waiting.append((until, word))
        return found

    def _of_node(self, word: Word) -> Iterator[ClusterEvent]:
        for job_id in self.view.on_node(word.node):
            if gang := self.view.gang(job_id):
                yield from self._of(word, gang)

    def _of(self, word: Word, gang: Gang) -> Iterator[ClusterEvent]:
        """Nothing when it is older than the present turn, or about something else of the same name."""
        about = gang.job["metadata"]
        began = objects.began(gang.job)
        if gang.sight is None or (word.namespace and word.namespace != about["namespace"]):
            return
        if began and word.at < began:
            return
        age = max(0.0, (self.wall() - word.at).total_seconds())
        yield ClusterEvent(word.uid, gang.sight.job_id, gang.sight.epoch, word.text, age)
