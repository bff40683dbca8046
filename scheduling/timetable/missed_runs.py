"""What becomes of due moments that have passed: which of them run, and which are told to have been missed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduling.timetable import TICK, Timetable
from scheduling.timetable.repeats import SHORTEST

# The latest due moment is on time for so long: workers are restarted, and queues are long at times.
ON_TIME = timedelta(minutes=5)
MOST_AT_ONCE = 100

SKIP, ONCE, ALL = "skip", "once", "all"


@dataclass(frozen=True)
class Step:
    """The next thing to write down: `missed` are the first and last due moment passed over, then `runs`."""

    missed: tuple[datetime, datetime] | None
    runs: datetime | None
    is_late: bool = False

    @property
    def last(self) -> datetime:
        """Up to here everything is written down then."""
        moments: list[datetime] = [*(self.missed or ()), *([self.runs] if self.runs else [])]
        return max(moments)


def next_step(timetable: Timetable, due: datetime, now: datetime, *, policy: str, window: timedelta) -> Step:
    """Of all that is due from `due` on to `now`, where `due` is the earliest that nothing was written of.

    On time is only the latest one, and only for a while. Of what is late, nothing runs (skip), the latest
    (once), or all, MOST_AT_ONCE at most; in either case only what is not older than `window`.
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
    """The last due moments from `first` to `now`, MOST_AT_ONCE at most; how long ago `first` is costs little."""
    back = MOST_AT_ONCE * SHORTEST
    while True:
        begin = max(first, now - back)
        recent = deque(_between(timetable, begin, now), maxlen=MOST_AT_ONCE)
        if begin == first or len(recent) == MOST_AT_ONCE:
            return recent
        back *= 2


def _between(timetable: Timetable, first: datetime, last: datetime) -> Iterator[datetime]:
    """Due moments from `first` to `last`, both included."""
    due = timetable.after(first - TICK)
    while due is not None and due <= last:
        yield due
        due = timetable.after(due)
