"""Decides which due times in the past still run, and which are recorded as missed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduling.timetable import TICK, Timetable
from scheduling.timetable.repeats import SHORTEST

# The latest due time counts as on time for this long, because workers restart and queues may be long.
ON_TIME = timedelta(minutes=5)
MOST_AT_ONCE = 100

SKIP, ONCE, ALL = "skip", "once", "all"


@dataclass(frozen=True)
class Step:
    """The outcome of some due times: the first and last of those that are `missed`, and then the due time that
    `runs`."""

    missed: tuple[datetime, datetime] | None
    runs: datetime | None
    is_late: bool = False

    @property
    def last(self) -> datetime:
        """Returns the last due time that this step records."""
        moments: list[datetime] = [*(self.missed or ()), *([self.runs] if self.runs else [])]
        return max(moments)


def next_step(timetable: Timetable, due: datetime, now: datetime, *, policy: str, window: timedelta) -> Step:
    """Returns the next step for the due times from `due`, the earliest without an outcome, to `now`.

    Only the latest due time can be on time, and only for ON_TIME. Of late due times, the policy *skip* runs none,
    *once* the latest, and *all* the latest MOST_AT_ONCE, one per step. *once* and *all* leave out those older than
    `window`.
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
    """Returns the last MOST_AT_ONCE due times from `first` to `now`, in order. The cost does not grow with the age of
    `first`."""
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
