"""Forecasts what will have been spent at the end of a period."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from accounting.core.calendar import MICROSECOND
from accounting.core.numbers import MICRO

# A shorter time allows no forecast.
LEAST = timedelta(days=2)


def forecast(spent: Decimal, *, begins: datetime, now: datetime, ends: datetime) -> Decimal | None:
    """Returns what is spent so far plus the same rate for the rest of the period; None in its first two days.

    It is simple on purpose, so that a reader can check a warning by hand: it ignores weekends and queued jobs.
    """
    # In UTC, because Python subtracts two moments of one zone by their wall clocks, an hour off across a clock change.
    begins, now, ends = (moment.astimezone(UTC) for moment in (begins, now, ends))
    elapsed = now - begins
    if elapsed < LEAST:
        return None
    return (spent * ((ends - begins) // MICROSECOND) / (elapsed // MICROSECOND)).quantize(MICRO)
