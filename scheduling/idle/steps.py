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
    """How long the GPUs of an unfinished job have been idle, and the times of warnings and snoozes. To snooze a warning
    means to postpone it.

    - `since`: the time of the last use of the GPUs. If they were never used, the time at which the workers began to
      run. None while the GPUs are in use.
    - `first_told`: the time of the first warning or the first snooze, whichever came first; None if there was neither.
    - `warned`: the time of the last warning; None if there was none.
    - `snoozed_until`: the time to which the warning was postponed; None without a snooze.
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
        """Returns whether the owner was warned of the present idle time, so that the step after the warning may follow.

        Returns False in these cases:

        - The owner was not warned, or the GPUs were used after the warning.
        - The warning was snoozed.
        - The idle time is shorter than `terms.after`, for example because the rule has changed.
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
        """Returns the time at which the step after the warning becomes due if the GPUs stay idle; None if no step is
        pending.

        For a job without GPUs, this is the earliest possible time, because time without GPUs does not count.
        """
        left = self.grace_left(terms)
        if left is None or self.warned is None:
            return None
        goes_on = self.measured_until if self.is_of_this_attempt else now
        return max(now, self.warned + terms.grace, goes_on + left)

    def snooze_ends(self, terms: Terms, now: datetime) -> datetime:
        """Returns the latest time to which the warning can be snoozed.

        This is the duration `terms.snooze` after the first warning or snooze since the GPUs became idle. If there was
        neither, it is `terms.snooze` after `now`.
        """
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
