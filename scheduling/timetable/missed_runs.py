"""Due times in the past: which of them run, and which are recorded as missed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduling.timetable import TICK, Timetable
from scheduling.timetable.repeats import SHORTEST

# For this long the latest due time is on time, because workers restart and queues may be long.
ON_TIME = timedelta(minutes=5)
MOST_AT_ONCE = 100

SKIP, ONCE, ALL = "skip", "once", "all"


@dataclass(frozen=True)
class Step:
    """The next outcome to record: the first and last due time `missed`, then those that run."""

    missed: tuple[datetime, datetime] | None
    runs: datetime | None
    is_late: bool = False

    @property
    def last(self) -> datetime:
        """Returns the last due time that this step records."""
        moments: list[datetime] = [*(self.missed or ()), *([self.runs] if self.runs else [])]
        return max(moments)


def next_step(timetable: Timetable, due: datetime, now: datetime, *, policy: str, window: timedelta) -> Step:
    """Returns the step for all due times from `due`, the earliest without an outcome, to `now`.

    Only the latest one is on time, and only for ON_TIME. Of late ones, none runs (skip), the latest (once), or all
    up to MOST_AT_ONCE; in both cases only those not older than `window`.
    """
    latest = timetable.latest(due, now)
    is_on_time = now - latest <= ON_TIME
    runs = latest if is_on_time or (policy == ONCE and now - latest <= window) else None
    if policy == ALL:
        recent = _recent(timetable, max(due, now - window), now)
        runs = recent[0] if recent else runs
    if runs is None:
        return Step((due, latest), None)
    missed = (due, timetable.latest(due, runs - TICK)) if due < runs else None
    return Step(missed, runs, is_late=not (is_on_time and runs == latest))


def _recent(timetable: Timetable, first: datetime, now: datetime) -> deque[datetime]:
    """Returns the last due times from `first` to `now`, at most MOST_AT_ONCE; a `first` long ago costs little."""
    back = MOST_AT_ONCE * SHORTEST
    while True:
        begin = max(first, now - back)
        recent = deque(_between(timetable, begin, now), maxlen=MOST_AT_ONCE)
        if begin == first or len(recent) == MOST_AT_ONCE:
            return recent
        back *= 2


def _between(timetable: Timetable, first: datetime, last: datetime) -> Iterator[datetime]:
    """Yields the due times from `first` to `last`, both included."""
    due = timetable.after(first - TICK)
    while due is not None and due <= last:
        yield due
        due = timetable.after(due)
