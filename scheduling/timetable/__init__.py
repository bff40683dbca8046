"""Computes the due times of a schedule. Never reads the clock; the present time is always an argument."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from zoneinfo import ZoneInfo, available_timezones

from scheduling.timetable.cron import Cron
from scheduling.timetable.local_time import YEARS
from scheduling.timetable.normal_form import normal_form, rule_of, tidy
from scheduling.timetable.repeats import Repeats

MOST_CHARACTERS = 120
TICK = timedelta(microseconds=1)


class TimetableError(ValueError):
    """Raised for an invalid timetable. `field` is "expression", "time_zone", "begins" or "ends"."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


@dataclass(frozen=True)
class Timetable:
    """The due times of an expression in a time zone, from `begins` to `ends` inclusive. All datetimes are in UTC."""

    expression: str
    zone: ZoneInfo
    begins: datetime | None = None
    ends: datetime | None = None

    @classmethod
    def read(
        cls, expression: str, time_zone: str, begins: datetime | None = None, ends: datetime | None = None
    ) -> Timetable:
        """Returns the timetable for an expression that a user wrote, with the expression in its normal form.

        Raises TimetableError, with the name of the invalid field.
        """
        expression = expression.strip()
        _check_zone(time_zone)
        if not 0 < len(expression) <= MOST_CHARACTERS:
            raise TimetableError(
                "expression",
                f"Enter the times of the schedule in 1 to {MOST_CHARACTERS} characters, such as 30 2 * * MON-FRI"
                " (at 02:30 on Monday to Friday).",
            )
        for name, bound in (("begins", begins), ("ends", ends)):
            if bound and bound.year not in YEARS:
                raise TimetableError(name, f"The year must be from {YEARS[0]} to {YEARS[-1]}.")
        if begins and ends and ends < begins:
            raise TimetableError("ends", "The end must not be before the start.")
        with _refused_expression():
            return cls.stored(normal_form(expression), time_zone, begins, ends)

    @classmethod
    def stored(
        cls, expression: str, time_zone: str, begins: datetime | None, ends: datetime | None
    ) -> Timetable:
        """Returns a timetable that was accepted earlier, without checking rules that may have been added since.

        Raises TimetableError if the expression or the time zone can no longer be read.
        """
        _check_zone(time_zone)
        made = cls(tidy(expression), ZoneInfo(time_zone), begins, ends)
        with _refused_expression():
            _ = made.rule
        return made

    @cached_property
    def rule(self) -> Cron | Repeats:
        return rule_of(self.expression, self.zone)

    def after(self, moment: datetime) -> datetime | None:
        """Returns the first due time after `moment`; None if there are no more due times."""
        if self.begins:
            moment = max(moment, self.begins - TICK)
        due = self.rule.after(moment)
        return None if due is None or (self.ends and due > self.ends) else due

    def next_ones(self, moment: datetime, most: int) -> Iterator[datetime]:
        """Yields up to `most` due times after `moment`, in order."""
        due = self.after(moment)
        while due is not None and most > 0:
            yield due
            most -= 1
            due = self.after(due)

    def latest(self, first: datetime, until: datetime) -> datetime:
        """Returns the last due time at or before `until`. `first` is a due time from which the search begins."""
        # Bisection, so that the cost hardly depends on the distance between `first` and `until`.
        low, high = first, until
        while (following := self.after(low)) is not None and following <= until:
            low = following
            middle = low + (high - low) / 2
            found = self.after(middle)
            if found is None or found > until:
                high = middle
            else:
                low = found
        return low


def _check_zone(name: str) -> None:
    if name not in zone_names():
        raise TimetableError("time_zone", "Choose a time zone from the list, such as Europe/Berlin.")


@contextmanager
def _refused_expression() -> Iterator[None]:
    try:
        yield
    except TimetableError:
        raise
    except ValueError as error:
        message = str(error)
        raise TimetableError("expression", f"{message[:1].upper()}{message[1:]}.") from None


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """Returns the names of the IANA time zones, without names that do not denote a place, such as localtime."""
    return frozenset(name for name in available_timezones() if name not in {"localtime", "Factory"})
