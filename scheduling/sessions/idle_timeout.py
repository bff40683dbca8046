"""When a session is warned and when it is stopped: a pure function of its clocks."""

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
    """The clocks of one session at `now`. None marks a clock that has not started."""

    now: datetime
    idle_limit: timedelta
    longest: timedelta
    runs: bool
    idle_for: timedelta  # how long it ran since its last use, over all attempts
    idle_warned: timedelta | None  # the part of `idle_for` after the warning; None: no warning stands
    first_started: datetime | None
    end_warned: datetime | None = None

    @property
    def is_warned(self) -> bool:
        """Returns whether an idle warning stands: the session was warned and not used since."""
        return self.idle_warned is not None

    @property
    def idle_left(self) -> timedelta:
        """Returns for how long it may still run unused: after a warning never less than the warning said."""
        left = self.idle_limit - self.idle_for
        if self.idle_warned is not None:
            left = max(left, notice(self.idle_limit) - self.idle_warned)
        return max(left, timedelta(0))

    @property
    def idle_ends(self) -> datetime | None:
        """Returns when it is stopped if nobody uses it; None while it does not run, since nobody can use it then."""
        return self.now + self.idle_left if self.runs else None

    @property
    def ends(self) -> datetime | None:
        """Returns when it reaches its time limit and is stopped even if it is in use."""
        if self.first_started is None:
            return None
        ends = self.first_started + self.longest
        return max(ends, self.end_warned + notice(self.longest)) if self.end_warned else ends

    def step(self) -> Step:
        """Returns the step that is due now."""
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
    """Returns how long before the end of `limit` people are warned."""
    return min(LONGEST_WARNING, limit / 2)
