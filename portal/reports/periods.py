"""The period of a report: whole days, read from a URL query.

The days are in the time zone that the query names, or else in the reader's time zone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import TypeVar
from zoneinfo import ZoneInfo

from django.core.exceptions import BadRequest
from django.utils import timezone

from accounting.core.clock import now_from_database
from accounting.core.wording import unknown_choice
from scheduling.timetable import zone_names

Query = Mapping[str, str]  # the query parameters of a URL by name
TODAY, THIS_MONTH, LAST_MONTH, GIVEN = "today", "this-month", "last-month", "dates"
LABELS = {TODAY: "Today", THIS_MONTH: "This month", LAST_MONTH: "Last month", GIVEN: "From – to"}
Day = TypeVar("Day", date, None)


class WrongQuestion(BadRequest):
    """Raised if the URL query of a report is invalid. `problems` maps the name of each invalid parameter to its
    problem."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__(" ".join(problems.values()))
        self.problems = problems


@dataclass(frozen=True)
class ReportPeriod:
    """Whole days from `first` to `last`, both included. The period begins and ends at midnight in `zone`."""

    key: str
    first: date
    last: date
    zone: ZoneInfo
    problems: dict[str, str]

    @property
    def begins(self) -> datetime:
        return datetime.combine(self.first, time(), self.zone)

    @property
    def ends(self) -> datetime:
        return datetime.combine(self.last + timedelta(days=1), time(), self.zone)

    @property
    def in_words(self) -> str:
        """Returns the period as text for report headers and mails, such as "2026-11-01 to 2026-11-26 (UTC)"."""
        return f"{self.first} to {self.last} ({self.zone.key})"

    @property
    def in_a_name(self) -> str:
        """Returns the period as text for file names, such as "2026-11-01-2026-11-26"."""
        return f"{self.first}-{self.last}"


def asked_period(query: Query, *, is_page: bool = False) -> ReportPeriod:
    """Returns the period in a URL query. Its days are in the query's time zone or, without one, in the reader's (UTC in
    the API).

    Raises `WrongQuestion` for an invalid query. For a page (`is_page`), replaces each invalid value by a default
    instead, and the page shows the problems.
    """
    zone = timezone.get_current_timezone()
    period = read_report_period(query, now=now_from_database(), zone=zone)
    if period.problems and not is_page:
        # A program would mistake the figures of a default period for those of the requested days.
        raise WrongQuestion(period.problems)
    return period


def read_report_period(query: Query, *, now: datetime, zone: ZoneInfo) -> ReportPeriod:
    """Returns the period in a URL query. An invalid parameter is replaced by its default, and added to the period's
    `problems`.

    The parameter `period` has one of these values:

    - "today": the current day.
    - "this-month": the current month until today.
    - "last-month": the whole previous month.
    - "dates": the days from `from` to `to`. For the other values, `from` and `to` are ignored, because forms always
      send them.

    If `period` is missing, its value is "dates" if `from` or `to` is given, and otherwise "this-month".
    """
    problems: dict[str, str] = {}
    zone = read_zone(query.get("zone", ""), zone, problems)
    today = now.astimezone(zone).date()
    month = today.replace(day=1)
    key = query.get("period", "") or (GIVEN if query.get("from") or query.get("to") else THIS_MONTH)
    if key not in LABELS:
        problems["period"] = unknown_choice("period", key, LABELS)
    if key == TODAY:
        return ReportPeriod(key, today, today, zone, problems)
    if key == LAST_MONTH:
        end = month - timedelta(days=1)
        return ReportPeriod(key, end.replace(day=1), end, zone, problems)
    if key != GIVEN:
        return ReportPeriod(THIS_MONTH, month, today, zone, problems)
    first = read_date(query.get("from", ""), "from", month, problems)
    last = read_date(query.get("to", ""), "to", today, problems)
    if last < first:
        if not {"from", "to"} & problems.keys():
            problems["to"] = (
                f"The last day, {last}, is before the first day, {first}. Choose a later last day."
            )
        first, last = month, today
    return ReportPeriod(GIVEN, first, last, zone, problems)


def read_zone(text: str, otherwise: ZoneInfo, problems: dict[str, str]) -> ZoneInfo:
    """Returns the time zone named `text`, or `otherwise` if the text is empty or unknown.

    Adds a problem to `problems` for an unknown name.
    """
    if not text:
        return otherwise
    if text not in zone_names():
        problems["zone"] = f"“{text[:40]}” is not a time zone. Use an IANA name such as Europe/Berlin."
        return otherwise
    return ZoneInfo(text)


def read_date(text: str, name: str, otherwise: Day, problems: dict[str, str]) -> date | Day:
    """Returns the day that `text` names, or `otherwise` if the text is empty or no such day.

    Adds a problem to `problems` under `name` for a text that is no day of the years 2000 to 2200.
    """
    if not text:
        return otherwise
    try:
        day = date.fromisoformat(text)
    except ValueError:
        problems[name] = f"“{text[:20]}” is not a date. Write it like 2026-11-21."
        return otherwise
    if not 2000 <= day.year <= 2200:
        problems[name] = f"“{text[:20]}” is not in the years 2000 to 2200. Choose another day."
        return otherwise
    return day
