"""The windows of advance reservations, and how many GPUs others leave in them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from scheduling.timetable.local_time import when_reached

WEEK = timedelta(weeks=1)


@dataclass(frozen=True, slots=True)
class Window:
    """A span of time, from `begins` until shortly before `ends`."""

    begins: datetime
    ends: datetime

    def overlaps(self, other: Window) -> bool:
        return self.begins < other.ends and other.begins < self.ends


def windows_of(
    begins: datetime, ends: datetime, *, weekly_until: datetime | None, zone: ZoneInfo
) -> list[Window]:
    """Returns the windows of a reservation: one, or one each week that begins before `weekly_until`.

    Weekly windows begin and end at the same hours of the clocks in `zone`, also after a change of these clocks.
    """
    found = [Window(begins, ends)]
    if weekly_until is None:
        return found
    first, last = (at.astimezone(zone).replace(tzinfo=None) for at in (begins, ends))
    for week in range(1, 1000):
        since = when_reached(first + week * WEEK, zone).astimezone(UTC)
        until = when_reached(last + week * WEEK, zone).astimezone(UTC)
        if since >= weekly_until:
            break
        if until > since:
            found.append(Window(since, until))
    return found


def most_reserved(
    windows: Sequence[Window], others: Iterable[tuple[Window, Mapping[int, int]]]
) -> dict[int, int]:
    """Returns, by node, the most GPUs that other reservations have there at any moment of `windows`.

    `others`: the windows of other reservations, with the GPUs that each has by node.
    """
    most: dict[int, int] = {}
    there = [(other, gpus) for other, gpus in others if any(one.overlaps(other) for one in windows)]
    # Sums only grow where a window begins.
    for moment in {one.begins for one in windows} | {other.begins for other, _ in there}:
        if not any(one.begins <= moment < one.ends for one in windows):
            continue
        now: dict[int, int] = {}
        for other, gpus in there:
            if other.begins <= moment < other.ends:
                for node, count in gpus.items():
                    now[node] = now.get(node, 0) + count
        for node, count in now.items():
            most[node] = max(most.get(node, 0), count)
    return most
