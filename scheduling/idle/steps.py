"""When a job with idle GPUs is warned and when it is stopped, derived from a rule and measurements alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

# Older measurements say nothing about the present.
STALE = timedelta(minutes=3)
NOTHING = timedelta(0)


class Step(Enum):
    NOTHING = "nothing"
    WARN = "warn"
    PREEMPTIBLE = "preemptible"  # from now on it runs only on GPUs that nobody else wants
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Terms:
    """A rule as it applies to one job."""

    after: timedelta
    grace: timedelta
    snooze: timedelta  # the longest allowed
    then: Step = Step.NOTHING  # the step after the warning


@dataclass(frozen=True, slots=True)
class Idleness:
    """How one job that has not ended uses its GPUs. None marks events that have not happened or no longer count."""

    since: datetime | None  # when its GPUs were last used, or when it started; None: they are in use
    lasted: timedelta  # measured time since then in which it held GPUs without using them
    measured_until: datetime
    is_of_this_turn: bool  # whether it still holds the GPUs that were measured
    first_told: datetime | None = None  # when it was first warned or snoozed
    warned: datetime | None = None
    lasted_warned: timedelta = NOTHING  # the part of `lasted` after the warning
    snoozed_until: datetime | None = None

    def is_warned(self, terms: Terms) -> bool:
        """Returns whether a warning stands: no use and no snooze since, and idle long enough by the current rule."""
        return (
            self.since is not None
            and self.warned is not None
            and self.warned >= self.since
            and (self.snoozed_until is None or self.warned >= self.snoozed_until)
            and self.lasted >= terms.after
        )

    def grace_left(self, terms: Terms) -> timedelta | None:
        """Returns how much more idle time leads to the step after the warning; None if no step is pending.

        Time without GPUs or without measurements does not count, because the job had no chance to use them.
        """
        if terms.then is Step.NOTHING or not self.is_warned(terms):
            return None
        return max(NOTHING, terms.grace - self.lasted_warned)

    def acts_at(self, terms: Terms, now: datetime) -> datetime | None:
        """Returns the earliest time of the step after the warning, as known at `now`; None if no step is pending."""
        left = self.grace_left(terms)
        if left is None or self.warned is None:
            return None
        goes_on = self.measured_until if self.is_of_this_turn else now
        return max(now, self.warned + terms.grace, goes_on + left)

    def snooze_ends(self, terms: Terms, now: datetime) -> datetime:
        """Returns the latest time until which the job can be snoozed, however often somebody asks."""
        told = self.first_told
        first = told if told is not None and self.since is not None and told >= self.since else now
        return first + terms.snooze

    def step(self, terms: Terms, now: datetime) -> Step:
        """Returns the step that is due at `now`."""
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
