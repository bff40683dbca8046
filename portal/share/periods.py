"""The periods that share and trades are shown for; the URL names one of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from accounting.clock import now_from_database

PERIODS = {
    "1h": ("1 hour", timedelta(hours=1)),
    "24h": ("24 hours", timedelta(hours=24)),
    "7d": ("7 days", timedelta(days=7)),
    "30d": ("30 days", timedelta(days=30)),
}
DEFAULT_PERIOD = "24h"


@dataclass(frozen=True)
class Period:
    """From `begins` (included) to `ends` (excluded), which is now."""

    key: str
    label: str
    begins: datetime
    ends: datetime

    @property
    def seconds(self) -> float:
        return (self.ends - self.begins).total_seconds()


def read_period(key: str | None, usual: str = DEFAULT_PERIOD) -> Period:
    """The period of this name; the usual one for any other name."""
    known = key if key in PERIODS else usual
    label, length = PERIODS[known]
    ends = now_from_database()
    return Period(known, label, ends - length, ends)
