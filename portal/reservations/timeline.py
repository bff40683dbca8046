"""The time line of advance reservations: a row for each day, with the windows as bars."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, time, timedelta, tzinfo

from scheduling.models import AdvanceReservation, AdvanceWindow

DAYS = 14
DAY = timedelta(days=1)


@dataclass(frozen=True)
class Bar:
    """A window on one day. `left` and `width` are parts of the day, in per cent."""

    reservation: AdvanceReservation
    window: AdvanceWindow
    left: float
    width: float


@dataclass(frozen=True)
class Day:
    """A day of the time line, with its windows. Each lane has windows that do not overlap."""

    begins: datetime
    lanes: list[list[Bar]]


def days_from(
    now: datetime, zone: tzinfo, reservations: Iterable[AdvanceReservation], days: int = DAYS
) -> list[Day]:
    """Returns today and the next days in the time zone, each with the windows that are open on it."""
    windows = [(one, window) for one in reservations for window in one.windows.all()]
    today = now.astimezone(zone).date()
    found = []
    for number in range(days):
        begins, ends = (
            datetime.combine(today + number * DAY + more, time(), zone) for more in (timedelta(), DAY)
        )
        length = (ends.astimezone(now.tzinfo) - begins.astimezone(now.tzinfo)) / timedelta(minutes=1)
        bars = []
        for one, window in sorted(windows, key=lambda pair: (pair[1].begins, pair[0].pk)):
            since, until = max(window.begins, begins), min(window.ends, ends)
            if since < until:
                left = (since - begins.astimezone(since.tzinfo)) / timedelta(minutes=1) / length
                width = (until - since) / timedelta(minutes=1) / length
                bars.append(Bar(one, window, round(100 * left, 2), round(100 * width, 2)))
        found.append(Day(begins, _lanes(bars)))
    return found


def _lanes(bars: list[Bar]) -> list[list[Bar]]:
    lanes: list[list[Bar]] = []
    for bar in bars:
        for lane in lanes:
            if lane[-1].left + lane[-1].width <= bar.left:
                lane.append(bar)
                break
        else:
            lanes.append([bar])
    return lanes
