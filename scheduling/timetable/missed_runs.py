"""Decides which of the past due times still start a run, and which are recorded as missed."""

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
    """The outcome for one or more successive due times in the past: any number of missed ones, followed by at most one
    that starts a run.

    - `missed`: the first and the last missed due time; None if none is missed.
    - `runs`: the due time that starts a run; None if no run starts.
    """

    missed: tuple[datetime, datetime] | None
    runs: datetime | None
    is_late: bool = False

    @property
    def last(self) -> datetime:
        """Returns the last due time of this step: the one that starts a run, or else the last missed one."""
        moments: list[datetime] = [*(self.missed or ()), *([self.runs] if self.runs else [])]
        return max(moments)


def next_step(timetable: Timetable, due: datetime, now: datetime, *, policy: str, window: timedelta) -> Step:
    """Decides about the due times from `due` to `now`. Returns which of them are missed, and which one starts the next
    run, if any.

    `due` is the earliest due time about which no decision has been made. The latest due time always starts a run if it
    is at most ON_TIME (five minutes) ago. All other runs are late. A due time that is more than `window` ago starts no
    late run. For the rest, `policy` decides:

    - *skip*: none starts a run.
    - *once*: only the latest due time starts a run.
    - *all*: the latest MOST_AT_ONCE due times start runs. Each call returns one of them, the earliest first.
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
    """Returns the last MOST_AT_ONCE due times from `first` to `now`, in order."""
    # Searches back from `now` in growing steps, so that an early `first` does not make the search slow.
    back = MOST_AT_ONCE * SHORTEST
    while True:
        begin = max(first, now - back)
        recent = deque(_between(timetable, begin, now), maxlen=MOST_AT_ONCE)
        if begin == first or len(recent) == MOST_AT_ONCE:
            return recent
        back *= 2


def _between(timetable: Timetable, first: datetime, last: datetime) -> Iterator[datetime]:
    due = timetable.after(first - TICK)
    while due is not None and due <= last:
        yield due
        due = timetable.after(due)
