"""From what a clock on the wall shows to moments, on the days when clocks change, too.

Moments are aware datetimes in UTC, walls are naive ones. Which of both folds a wall means: PEP 495.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
# Far from the ends of the calendar: there nothing can be added, and the database keeps what Python cannot read.
YEARS = range(2000, 2201)


def wall_at(moment: datetime, zone: tzinfo) -> datetime:
    """What the wall shows at `moment`."""
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def when_shown(wall: datetime, zone: tzinfo) -> list[datetime]:
    """The moments at which the wall shows this: none in the hour that is skipped, two in the one that is doubled."""
    found = {_reading(wall, zone, fold) for fold in (0, 1)}
    return sorted(moment for moment in found if wall_at(moment, zone) == wall)


def when_reached(wall: datetime, zone: ZoneInfo) -> datetime:
    """The first moment at which the wall shows this or, where that is skipped, has just passed over it."""
    if shown := when_shown(wall, zone):
        return shown[0]
    # Read with the offset from after the change it lies before it, and the other way round.
    before, after = _reading(wall, zone, 1), _reading(wall, zone, 0)
    while after - before > SECOND:
        middle = before + timedelta(seconds=(after - before) // SECOND // 2)
        before, after = (middle, after) if wall_at(middle, zone) < wall else (before, middle)
    return after


def soon_set_back(moment: datetime, zone: ZoneInfo) -> timedelta:
    """By how much the clocks will have been set back in a day; nothing if they are not."""
    local, later = moment.astimezone(zone), (moment + DAY).astimezone(zone)
    return max(timedelta(), (local.utcoffset() or timedelta()) - (later.utcoffset() or timedelta()))


def _reading(wall: datetime, zone: tzinfo, fold: int) -> datetime:
    return wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)
