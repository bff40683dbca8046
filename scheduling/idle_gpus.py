"""When a job whose GPUs nobody uses is warned and when it is stopped: what follows from a rule, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

# What was measured longer ago says nothing about the present.
STALE = timedelta(minutes=3)


class Step(Enum):
    NOTHING = "nothing"
    WARN = "warn"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Terms:
    """A rule as it holds for one job."""

    after: timedelta
    grace: timedelta
    snooze: timedelta  # the longest
    stops: bool  # else it only warns


@dataclass(frozen=True, slots=True)
class Idleness:
    """Of one job that runs. None is what was not, or is not any more."""

    since: datetime | None  # when its GPUs were last used, or it began; None: they are used
    lasted: timedelta  # held without use since then, as measured
    measured_until: datetime
    first_told: datetime | None = None  # when it was first warned, or put that off
    warned: datetime | None = None
    snoozed_until: datetime | None = None

    def is_warned(self, terms: Terms) -> bool:
        """Whether a warning stands: not used since, no snooze since, and idle for long enough by the present rule."""
        return (
            self.since is not None
            and self.warned is not None
            and self.warned >= self.since
            and (self.snoozed_until is None or self.warned >= self.snoozed_until)
            and self.lasted >= terms.after
        )

    def acts_at(self, terms: Terms) -> datetime | None:
        """When it is stopped unless it is used; None while nothing says so."""
        return self.warned + terms.grace if terms.stops and self.warned and self.is_warned(terms) else None

    def snooze_ends(self, terms: Terms, now: datetime) -> datetime:
        """Until when it may be put off at most, however often that is asked for."""
        told = self.first_told
        first = told if told is not None and self.since is not None and told >= self.since else now
        return first + terms.snooze

    def step(self, terms: Terms, now: datetime) -> Step:
        """What is to be done at `now`."""
        if self.since is None or self.lasted < terms.after or now - self.measured_until > STALE:
            return Step.NOTHING
        if self.snoozed_until is not None and now < self.snoozed_until:
            return Step.NOTHING
        if not self.is_warned(terms):
            return Step.WARN
        acts_at = self.acts_at(terms)
        return Step.STOP if acts_at is not None and now >= acts_at else Step.NOTHING
