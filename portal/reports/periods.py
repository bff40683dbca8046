"""The period of a report, from the URL, in the reader's time zone or one that the URL names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from django.core.exceptions import BadRequest
from django.utils import timezone

from accounting.core.clock import now_from_database
from accounting.core.wording import unknown_choice
from scheduling.timetable import zone_names

Query = Mapping[str, str]  # the parameters of a URL by name
THIS_MONTH, LAST_MONTH, GIVEN = "this-month", "last-month", "dates"
LABELS = {THIS_MONTH: "This month", LAST_MONTH: "Last month", GIVEN: "From – to"}


class WrongQuestion(BadRequest):
    """The query of a report is invalid; `problems` are by the name of the parameter."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__(" ".join(problems.values()))
        self.problems = problems


@dataclass(frozen=True)
class ReportPeriod:
    """Whole days from `first` to `last`, both included; the bounds are their midnights in `zone`."""

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
        """Returns the period in the form of report headers and mails."""
        return f"{self.first} to {self.last} ({self.zone.key})"

    @property
    def in_a_name(self) -> str:
        """Returns the period in the form of file names."""
        return f"{self.first}-{self.last}"


def asked_period(query: Query, *, is_page: bool = False) -> ReportPeriod:
    """Returns the period that a query asks for, in the time zone that it names, else the reader's (in the API: UTC).

    A page shows what is wrong with the query above the figures of this month. Files and the API raise
    `WrongQuestion`, because programs would take the figures for those of the days that they asked for.
    """
    zone = timezone.get_current_timezone()
    period = read_report_period(query, now=now_from_database(), zone=zone)
    if period.problems and not is_page:
        raise WrongQuestion(period.problems)
    return period


def read_report_period(query: Query, *, now: datetime, zone: ZoneInfo) -> ReportPeriod:
    """Returns the requested period; invalid parameters are named and replaced by this month, or by `zone`.

    Without `period`, a day in `from` or `to` selects these days; forms of pages send them with other periods, too.
    """
    problems: dict[str, str] = {}
    zone = read_zone(query.get("zone", ""), zone, problems)
    today = now.astimezone(zone).date()
    month = today.replace(day=1)
    key = query.get("period", "") or (GIVEN if query.get("from") or query.get("to") else THIS_MONTH)
    if key not in LABELS:
        problems["period"] = unknown_choice("period", key, LABELS)
    if key == LAST_MONTH:
        end = month - timedelta(days=1)
        return ReportPeriod(key, end.replace(day=1), end, zone, problems)
    if key != GIVEN:
        return ReportPeriod(THIS_MONTH, month, today, zone, problems)
    first = _read_date(query.get("from", ""), "from", month, problems)
    last = _read_date(query.get("to", ""), "to", today, problems)
    if last < first:
        if not {"from", "to"} & problems.keys():
            problems["to"] = f"The last day, {last}, is before the first, {first}. Choose a later one."
        first, last = month, today
    return ReportPeriod(GIVEN, first, last, zone, problems)


def read_zone(text: str, otherwise: ZoneInfo, problems: dict[str, str]) -> ZoneInfo:
    """Returns the zone with that name, else `otherwise`, and puts what is wrong into `problems`."""
    if not text:
        return otherwise
    if text not in zone_names():
        problems["zone"] = f"“{text[:40]}” is not a time zone. Use an IANA name such as Europe/Berlin."
        return otherwise
    return ZoneInfo(text)


def _read_date(text: str, name: str, otherwise: date, problems: dict[str, str]) -> date:
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
