"""Converts local times to UTC and back, also on days when the clocks change.

A moment is an aware datetime in UTC; a local time (`wall`) is a naive datetime. `fold` has the meaning of PEP 495.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
# Far from the ends of the calendar: there sums overflow, and PostgreSQL stores dates that Python cannot read.
YEARS = range(2000, 2201)


def wall_at(moment: datetime, zone: tzinfo) -> datetime:
    """Returns the local time in `zone` at `moment`, as a naive datetime."""
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def when_shown(wall: datetime, zone: tzinfo) -> list[datetime]:
    """Returns the moments at which clocks show this local time, in order.

    There are none in a skipped hour, and two in a repeated hour.
    """
    found = {_reading(wall, zone, fold) for fold in (0, 1)}
    return sorted(moment for moment in found if wall_at(moment, zone) == wall)


def when_reached(wall: datetime, zone: ZoneInfo) -> datetime:
    """Returns the first moment at which clocks show this local time.

    If a clock change skips the local time, returns the moment of that change.
    """
    if shown := when_shown(wall, zone):
        return shown[0]
    # A skipped local time has two readings, one with each offset; the change lies between them and is found by
    # bisection.
    before, after = _reading(wall, zone, 1), _reading(wall, zone, 0)
    while after - before > SECOND:
        middle = before + timedelta(seconds=(after - before) // SECOND // 2)
        before, after = (middle, after) if wall_at(middle, zone) < wall else (before, middle)
    return after


def soon_set_back(moment: datetime, zone: ZoneInfo) -> timedelta:
    """Returns by how much the clocks will be set back within one day after `moment`; 0 if they will not."""
    local, later = moment.astimezone(zone), (moment + DAY).astimezone(zone)
    return max(timedelta(), (local.utcoffset() or timedelta()) - (later.utcoffset() or timedelta()))


def _reading(wall: datetime, zone: tzinfo, fold: int) -> datetime:
    return wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)
