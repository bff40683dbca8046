"""When a job whose GPUs nobody uses is warned and when it is stopped: what follows from a rule, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

# What was measured longer ago says nothing about the present.
STALE = timedelta(minutes=3)
NOTHING = timedelta(0)


class Step(Enum):
    NOTHING = "nothing"
    WARN = "warn"
    PREEMPTIBLE = "preemptible"  # from now on it runs only where nobody else wants the GPUs
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Terms:
    """A rule as it holds for one job."""

    after: timedelta
    grace: timedelta
    snooze: timedelta  # the longest
    then: Step = Step.NOTHING  # what follows the warning


@dataclass(frozen=True, slots=True)
class Idleness:
    """Of one job in play. None is what was not, or is not any more."""

    since: datetime | None  # when its GPUs were last used, or it began; None: they are used
    lasted: timedelta  # held without use since then, as measured
    measured_until: datetime
    is_of_this_turn: bool  # whether it still holds the GPUs of which that was measured
    first_told: datetime | None = None  # when it was first warned, or put that off
    warned: datetime | None = None
    lasted_warned: timedelta = NOTHING  # of `lasted`, what came after the warning
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

    def grace_left(self, terms: Terms) -> timedelta | None:
        """For how long it has to hold its GPUs without use until that is done; None while nothing says so.

        Time in which it holds none, or nobody measures, is nobody's chance to use them, and does not count.
        """
        if terms.then is Step.NOTHING or not self.is_warned(terms):
            return None
        return max(NOTHING, terms.grace - self.lasted_warned)

    def acts_at(self, terms: Terms, now: datetime) -> datetime | None:
        """Before when that is surely not done, as told at `now`; None while nothing says so."""
        left = self.grace_left(terms)
        if left is None or self.warned is None:
            return None
        goes_on = self.measured_until if self.is_of_this_turn else now
        return max(now, self.warned + terms.grace, goes_on + left)

    def snooze_ends(self, terms: Terms, now: datetime) -> datetime:
        """Until when it may be put off at most, however often that is asked for."""
        told = self.first_told
        first = told if told is not None and self.since is not None and told >= self.since else now
        return first + terms.snooze

    def step(self, terms: Terms, now: datetime) -> Step:
        """What is to be done at `now`."""
        if self.since is None or self.lasted < terms.after:
            return Step.NOTHING
        if not self.is_of_this_turn or now - self.measured_until > STALE:
            return Step.NOTHING
        if self.snoozed_until is not None and now < self.snoozed_until:
            return Step.NOTHING
        if not self.is_warned(terms):
            return Step.WARN
        is_due = self.grace_left(terms) == NOTHING and self.acts_at(terms, now) == now
        return terms.then if is_due else Step.NOTHING
