"""Decides when to warn the user of a session and when to stop the session.

The decision depends only on the session's idle time and limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

LONGEST_WARNING = timedelta(minutes=10)


class Step(Enum):
    NOTHING = "nothing"
    WARN_IDLE = "warn_idle"
    WARN_END = "warn_end"
    STOP_IDLE = "stop_idle"
    STOP_END = "stop_end"


@dataclass(frozen=True, slots=True)
class Clocks:
    """The idle time, time limits and warnings of one session, as read at the time `now`.

    - `first_started`: the time at which the session first started; None before that.
    - `idle_warned`: how long the session has run unused since the idle warning. None if the user was not warned, or has
      used the session since.
    - `end_warned`: the time at which the user was warned of the time limit; None if the user was not warned.
    """

    now: datetime
    idle_limit: timedelta
    longest: timedelta
    runs: bool
    idle_for: timedelta  # time that the session ran since its last use, over all attempts
    idle_warned: timedelta | None  # unused run time since the idle warning; None without a standing warning
    first_started: datetime | None
    end_warned: datetime | None = None

    @property
    def is_warned(self) -> bool:
        """Returns whether the user was warned of the session's idle timeout and the session has not been used since."""
        return self.idle_warned is not None

    @property
    def idle_left(self) -> timedelta:
        """Returns how much longer the session may run unused; at least 0.

        After the idle warning, the session may always run unused for the full notice time (see `notice`), even if the
        warning came late.
        """
        left = self.idle_limit - self.idle_for
        if self.idle_warned is not None:
            left = max(left, notice(self.idle_limit) - self.idle_warned)
        return max(left, timedelta(0))

    @property
    def idle_ends(self) -> datetime | None:
        """Returns the time at which the session will be stopped if it stays unused.

        Returns None while the session does not run, because idle time does not count then.
        """
        return self.now + self.idle_left if self.runs else None

    @property
    def ends(self) -> datetime | None:
        """Returns the time at which the session reaches its time limit and is stopped, even if it is in use.

        Returns None before the session's first start.
        """
        if self.first_started is None:
            return None
        ends = self.first_started + self.longest
        return max(ends, self.end_warned + notice(self.longest)) if self.end_warned else ends

    def step(self) -> Step:
        """Returns the warning or stop that is due at `now`; Step.NOTHING if neither is due."""
        if self.ends is not None:
            if self.end_warned and self.now >= self.ends:
                return Step.STOP_END
            if not self.end_warned and self.now >= self.ends - notice(self.longest):
                return Step.WARN_END
        if self.runs:
            if self.is_warned and not self.idle_left:
                return Step.STOP_IDLE
            if not self.is_warned and self.idle_left <= notice(self.idle_limit):
                return Step.WARN_IDLE
        return Step.NOTHING


def notice(limit: timedelta) -> timedelta:
    """Returns how long before the end of `limit` the user is warned: half of `limit`, but at most LONGEST_WARNING."""
    return min(LONGEST_WARNING, limit / 2)
