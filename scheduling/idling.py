"""When a session is warned and when it is stopped: what follows from its clocks, and nothing else."""

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
    """Of one session. None is what has not begun or was not said."""

    idle_limit: timedelta
    longest: timedelta
    idle_since: datetime | None  # None: it does not run, so nobody could use it
    first_started: datetime | None
    warned: datetime | None = None
    end_warned: datetime | None = None

    @property
    def is_warned(self) -> bool:
        """Whether it was warned that it is idle, and not used since."""
        return self.warned is not None and self.idle_since is not None and self.warned > self.idle_since

    @property
    def idle_ends(self) -> datetime | None:
        """When it is stopped if nobody uses it: never sooner after the warning than was promised."""
        if self.idle_since is None:
            return None
        ends = self.idle_since + self.idle_limit
        return max(ends, self.warned + notice(self.idle_limit)) if self.warned and self.is_warned else ends

    @property
    def ends(self) -> datetime | None:
        """When it is stopped whatever anybody does."""
        if self.first_started is None:
            return None
        ends = self.first_started + self.longest
        return max(ends, self.end_warned + notice(self.longest)) if self.end_warned else ends

    def step(self, now: datetime) -> Step:
        """What is to be done at `now`."""
        if self.ends is not None:
            if self.end_warned and now >= self.ends:
                return Step.STOP_END
            if not self.end_warned and now >= self.ends - notice(self.longest):
                return Step.WARN_END
        if self.idle_ends is not None:
            if self.is_warned and now >= self.idle_ends:
                return Step.STOP_IDLE
            if not self.is_warned and now >= self.idle_ends - notice(self.idle_limit):
                return Step.WARN_IDLE
        return Step.NOTHING


def notice(limit: timedelta) -> timedelta:
    """How long before the end of `limit` people are warned."""
    return min(LONGEST_WARNING, limit / 2)
