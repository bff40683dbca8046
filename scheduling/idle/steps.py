"""Decides when to warn about a job with idle GPUs, and when to stop the job or make it preemptible.

The decision depends only on the idle rule and on measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

# Measurements older than this say nothing about the present.
STALE = timedelta(minutes=3)
NOTHING = timedelta(0)


class Step(Enum):
    NOTHING = "nothing"
    WARN = "warn"
    PREEMPTIBLE = "preemptible"  # the job then runs only on GPUs that nobody else wants
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Terms:
    """The values of the idle rule that apply to one job: the times, and the step after the warning."""

    after: timedelta
    grace: timedelta
    snooze: timedelta  # the longest that the warning can be snoozed
    then: Step = Step.NOTHING  # the step after the warning


@dataclass(frozen=True, slots=True)
class Idleness:
    """How long the GPUs of an unfinished job have been idle, and when its owner was warned.

    `since` is when the GPUs were last used, or else when the workers began to run; None while the GPUs are in use. The
    other times are None if the event has not happened.
    """

    since: (
        datetime | None
    )  # when its GPUs were last used, or else when its workers ran; None: they are in use
    lasted: timedelta  # the measured time since `since` in which the job held idle GPUs
    measured_until: datetime
    is_of_this_attempt: bool  # whether the measured lease still runs
    first_told: datetime | None = None  # when its owner was first warned, or first snoozed the warning
    warned: datetime | None = None
    lasted_warned: timedelta = NOTHING  # the part of `lasted` since the warning
    snoozed_until: datetime | None = None

    def is_warned(self, terms: Terms) -> bool:
        """Returns whether the last warning still counts.

        Since the warning, the GPUs must not have been used and the warning must not have been snoozed. The GPUs must
        have been idle for at least `terms.after`.
        """
        return (
            self.since is not None
            and self.warned is not None
            and self.warned >= self.since
            and (self.snoozed_until is None or self.warned >= self.snoozed_until)
            and self.lasted >= terms.after
        )

    def grace_left(self, terms: Terms) -> timedelta | None:
        """Returns how much more idle time must pass until the step after the warning is due; None if no step is
        pending.

        Time without GPUs or without measurements does not count, because the job had no chance to use GPUs.
        """
        if terms.then is Step.NOTHING or not self.is_warned(terms):
            return None
        return max(NOTHING, terms.grace - self.lasted_warned)

    def acts_at(self, terms: Terms, now: datetime) -> datetime | None:
        """Returns the earliest time at which the step after the warning can be due, as known at `now`.

        Returns None if no step is pending.
        """
        left = self.grace_left(terms)
        if left is None or self.warned is None:
            return None
        goes_on = self.measured_until if self.is_of_this_attempt else now
        return max(now, self.warned + terms.grace, goes_on + left)

    def snooze_ends(self, terms: Terms, now: datetime) -> datetime:
        """Returns the latest time to which the warning can be snoozed. Further snoozes cannot extend this limit."""
        told = self.first_told
        first = told if told is not None and self.since is not None and told >= self.since else now
        return first + terms.snooze

    def step(self, terms: Terms, now: datetime) -> Step:
        """Returns the step that is due at `now`: NOTHING, WARN, or the step after the warning."""
        if self.since is None or self.lasted < terms.after:
            return Step.NOTHING
        if not self.is_of_this_attempt or now - self.measured_until > STALE:
            return Step.NOTHING
        if self.snoozed_until is not None and now < self.snoozed_until:
            return Step.NOTHING
        if not self.is_warned(terms):
            return Step.WARN
        is_due = self.grace_left(terms) == NOTHING and self.acts_at(terms, now) == now
        return terms.then if is_due else Step.NOTHING
