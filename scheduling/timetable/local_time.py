"""Conversion of local times to moments, also on days when clocks change.

Moments are aware datetimes in UTC, local times are naive ones. PEP 495 defines which fold a local time means.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
# Far from the ends of the calendar, where sums overflow and the database stores dates that Python cannot read.
YEARS = range(2000, 2201)


def wall_at(moment: datetime, zone: tzinfo) -> datetime:
    """Returns the local time at `moment`."""
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def when_shown(wall: datetime, zone: tzinfo) -> list[datetime]:
    """Returns the moments with this local time: none in the skipped hour, two in the repeated one."""
    found = {_reading(wall, zone, fold) for fold in (0, 1)}
    return sorted(moment for moment in found if wall_at(moment, zone) == wall)


def when_reached(wall: datetime, zone: ZoneInfo) -> datetime:
    """Returns the first moment with this local time, or with a later one if this one is skipped."""
    if shown := when_shown(wall, zone):
        return shown[0]
    # With the offset after the change it falls before the change, and the other way round.
    before, after = _reading(wall, zone, 1), _reading(wall, zone, 0)
    while after - before > SECOND:
        middle = before + timedelta(seconds=(after - before) // SECOND // 2)
        before, after = (middle, after) if wall_at(middle, zone) < wall else (before, middle)
    return after


def soon_set_back(moment: datetime, zone: ZoneInfo) -> timedelta:
    """Returns by how much the clocks will be set back within a day; 0 if they will not."""
    local, later = moment.astimezone(zone), (moment + DAY).astimezone(zone)
    return max(timedelta(), (local.utcoffset() or timedelta()) - (later.utcoffset() or timedelta()))


def _reading(wall: datetime, zone: tzinfo, fold: int) -> datetime:
    return wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)
