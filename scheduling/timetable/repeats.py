"""ISO 8601 repeating intervals with a start and a duration (2019 edition, 8.2.3.2): `R[n]/<start>/<period>`.

- R3 means three runs.
- Years, months, weeks and days are counted on the local calendar, always from the start. So a monthly run on the 31st
  moves to the last day in shorter months, and back to the 31st in longer ones.
- Hours, minutes and seconds are elapsed time.
- If a clock change skips the time of day of a run, the run starts right after the change. If a clock change repeats it,
  the run starts only once.
"""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from zoneinfo import ZoneInfo

from scheduling.timetable.cron_words import joined
from scheduling.timetable.local_time import YEARS, wall_at, when_reached

SHAPE = re.compile(r"R(?P<times>\d{0,6})/(?P<start>[^/]+)/(?P<period>P[^/]+)", re.ASCII)
PERIOD = re.compile(
    r"P(?=.)(?:(?P<years>\d{1,3})Y)?(?:(?P<months>\d{1,4})M)?(?:(?P<weeks>\d{1,5})W)?(?:(?P<days>\d{1,5})D)?"
    r"(?:T(?=.)(?:(?P<hours>\d{1,6})H)?(?:(?P<minutes>\d{1,8})M)?(?:(?P<seconds>\d{1,9})S)?)?",
    re.ASCII,
)
SHORTEST = timedelta(minutes=1)
MONTH = timedelta(days=31)


@dataclass(frozen=True)
class Period:
    months: int
    days: int
    passing: timedelta
    parts: tuple[tuple[str, int], ...] = ()  # units and numbers as written, such as ("months", 1)

    @classmethod
    def read(cls, text: str) -> Period:
        match = PERIOD.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{text[:40]} is not a period. Write PT6H for 6 hours, P1D for a day or P1M for a month"
            )
        part = {name: int(number or 0) for name, number in match.groupdict().items()}
        period = cls(
            months=12 * part["years"] + part["months"],
            days=7 * part["weeks"] + part["days"],
            passing=timedelta(hours=part["hours"], minutes=part["minutes"], seconds=part["seconds"]),
            parts=tuple((unit, number) for unit, number in part.items() if number),
        )
        if not (period.months or period.days) and period.passing < SHORTEST:
            raise ValueError("the period must be at least one minute")
        return period

    def in_words(self) -> str:
        """Returns the period in words, such as "month" or "2 weeks and 3 days"."""
        if len(self.parts) == 1 and self.parts[0][1] == 1:
            return self.parts[0][0].removesuffix("s")
        return joined(
            [f"{number} {unit if number > 1 else unit.removesuffix('s')}" for unit, number in self.parts]
        )


@dataclass(frozen=True)
class Repeats:
    """A repeating interval in a time zone. Raises ValueError for an invalid expression, with a message for users."""

    expression: str
    zone: ZoneInfo

    def __post_init__(self) -> None:
        if self._parts["times"] and int(self._parts["times"]) == 0:
            raise ValueError("R0 never runs; R without a number repeats without an end")
        if self.start.year not in YEARS:
            raise ValueError("the start must be in the years 2000 to 2200")
        _ = self.period

    @cached_property
    def _parts(self) -> dict[str, str]:
        match = SHAPE.fullmatch(self.expression)
        if match is None:
            raise ValueError("a repeating interval is R[n]/start/period, such as R/2026-01-31T09:00/P1M")
        return match.groupdict()

    @cached_property
    def times(self) -> int | None:
        """Returns the number of runs; None if the number is unlimited."""
        return int(self._parts["times"]) if self._parts["times"] else None

    @cached_property
    def period(self) -> Period:
        return Period.read(self._parts["period"])

    @cached_property
    def start(self) -> datetime:
        text = self._parts["start"]
        try:
            given = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{text[:40]} is not a date and time such as 2026-01-31T09:00") from None
        given = given.replace(microsecond=0)
        if given.tzinfo is None:
            return when_reached(given, self.zone)
        try:
            return given.astimezone(UTC)
        except OverflowError:
            raise ValueError("the start must be in the years 2000 to 2200") from None

    def after(self, moment: datetime) -> datetime | None:
        """Returns the first due time after `moment`; None if there are no more due times."""
        high = 1
        while not self._is_later(high - 1, moment):
            high *= 2
        low = 0  # bisection: runs before `low` are at or before `moment`, runs from `high` on are after it
        high -= 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._is_later(middle, moment) else (middle + 1, high)
        return self._at(low)

    def in_words(self) -> str:
        start = wall_at(self.start, self.zone)
        since = f"{start.day} {start:%B %Y, %H:%M}{f':{start:%S}' if start.second else ''}"
        if self.times == 1:
            return f"Once, on {since}"
        return f"Every {self.period.in_words()} from {since}, {f'{self.times} times' if self.times else 'without end'}"

    def notes(self) -> list[str]:
        return []

    def _is_later(self, number: int, moment: datetime) -> bool:
        due = self._at(number)
        return due is None or due > moment

    def _at(self, number: int) -> datetime | None:
        """Returns the due time of run `number`, counted from 0; None after the last run, or if the time is beyond
        Python's latest datetime."""
        if self.times is not None and number >= self.times:
            return None
        period = self.period
        try:
            begin = self.start
            if number and (period.months or period.days):
                wall = _months_later(wall_at(begin, self.zone), number * period.months)
                begin = when_reached(wall + timedelta(days=number * period.days), self.zone)
            return begin + number * period.passing
        except OverflowError:
            return None


def _months_later(wall: datetime, months: int) -> datetime:
    """Returns the same local time `months` months later. If that month is too short for the day, uses its last day."""
    year, month = divmod(12 * wall.year + wall.month - 1 + months, 12)
    if year > 9990:
        raise OverflowError
    return wall.replace(
        year=year, month=month + 1, day=min(wall.day, calendar.monthrange(year, month + 1)[1])
    )
