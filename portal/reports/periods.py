"""The period of a usage report, as the URL names it, in the reader's time zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from django.http import QueryDict

THIS_MONTH, LAST_MONTH, GIVEN = "this-month", "last-month", "dates"
LABELS = {THIS_MONTH: "This month", LAST_MONTH: "Last month", GIVEN: "From – to"}


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


def read_report_period(query: QueryDict, *, now: datetime, zone: ZoneInfo) -> ReportPeriod:
    """The period that is asked for; dates that cannot be read are named and replaced by this month's."""
    today = now.astimezone(zone).date()
    month = today.replace(day=1)
    key = query.get("period", THIS_MONTH)
    if key == LAST_MONTH:
        end = month - timedelta(days=1)
        return ReportPeriod(key, end.replace(day=1), end, zone, {})
    if key != GIVEN:
        return ReportPeriod(THIS_MONTH, month, today, zone, {})
    problems: dict[str, str] = {}
    first = _read_date(query.get("from", ""), "from", month, problems)
    last = _read_date(query.get("to", ""), "to", today, problems)
    if last < first:
        problems["to"] = "The last day must not be before the first."
        first, last = month, today
    return ReportPeriod(GIVEN, first, last, zone, problems)


def _read_date(text: str, name: str, otherwise: date, problems: dict[str, str]) -> date:
    if not text:
        return otherwise
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = date.max
    if not 2000 <= day.year <= 2200:
        problems[name] = f"“{text[:20]}” is no date (accepted: 2026-11-21)."
        return otherwise
    return day
