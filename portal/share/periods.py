"""The periods that the share page and the trade book (the list of trades) can show. A period is read from the URL
query."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from django.utils import timezone

from accounting.core.clock import now_from_database
from accounting.core.wording import unknown_choice
from portal.reports.periods import LABELS, TODAY, Query, ReportPeriod, WrongQuestion, asked_period, read_zone

PERIODS: dict[str, tuple[str, timedelta | None]] = {
    TODAY: ("Today", None),  # since midnight in the reader's time zone
    "1h": ("1 hour", timedelta(hours=1)),
    "24h": ("24 hours", timedelta(hours=24)),
    "7d": ("7 days", timedelta(days=7)),
    "30d": ("30 days", timedelta(days=30)),
}
DEFAULT_PERIOD = "24h"
SHORTEST_DAY = timedelta(hours=1)  # of a day that is shown by default
UTC = ZoneInfo("UTC")


@dataclass(frozen=True)
class Period:
    """The period from `begins` (included) to `ends` (excluded).

    If it consists of whole days, `days` has these days. Otherwise `days` is None, and the period ends now.
    """

    key: str
    label: str
    begins: datetime
    ends: datetime
    days: ReportPeriod | None = None

    @property
    def in_words(self) -> str:
        """Returns when it is, within a sentence: "today" or "in the last 24 hours"."""
        return "today" if self.key == TODAY else f"in the last {self.label}"

    @property
    def seconds(self) -> float:
        return (self.ends - self.begins).total_seconds()


def read_period(key: str | None, usual: str = DEFAULT_PERIOD) -> Period:
    """Returns the period with the name `key`, which ends now. If `key` is unknown, returns the period with the name
    `usual`."""
    return named_period(key if key in PERIODS else usual, now_from_database())


def named_period(key: str, ends: datetime) -> Period:
    label, length = PERIODS[key]
    return Period(key, label, midnight_before(ends) if length is None else ends - length, ends)


def midnight_before(moment: datetime) -> datetime:
    """Returns when the day of `moment` began in the reader's time zone; at midnight, when the day before began."""
    within = timezone.localtime(moment - timedelta(microseconds=1))
    return datetime.combine(within.date(), time(), within.tzinfo)


def usual_period(now: datetime, *, is_young: bool) -> str:
    """Returns the name of the period with which charts and trades begin: the current day.

    `is_young`: whether there is nothing from before the last hour. Then it is 1 hour. In the first hour of a day it is
    24 hours, because the day has nothing to show yet.
    """
    if is_young:
        return "1h"
    return TODAY if now - midnight_before(now) >= SHORTEST_DAY else DEFAULT_PERIOD


def period_of_days(days: ReportPeriod) -> Period:
    label = f"{days.first:%-d %B %Y} to {days.last:%-d %B %Y} ({days.zone.key})"
    return Period(days.key, label, days.begins, days.ends, days)


def asked_stretch(query: Query, usual: str = DEFAULT_PERIOD, *, is_page: bool = False) -> Period:
    """Returns the period that the URL query names.

    - `?period=` with a key of `PERIODS`, such as "24h": this period, up to now.
    - `?period=` with a key of `LABELS` (the periods of reports), or `?from=` or `?to=`: a period of whole days.
    - None of these: the period `usual`, a key of `PERIODS`.

    Raises WrongQuestion for an invalid query. With `is_page`, uses defaults for invalid values instead.
    """
    key = query.get("period", "")
    if key in LABELS or (not key and (query.get("from") or query.get("to"))):
        return period_of_days(asked_period(query, is_page=is_page))
    problems: dict[str, str] = {}
    read_zone(query.get("zone", ""), UTC, problems)
    if key and key not in PERIODS:
        problems["period"] = unknown_choice("period", key, [*PERIODS, *LABELS])
    if problems and not is_page:
        raise WrongQuestion(problems)
    return read_period(key, usual)
