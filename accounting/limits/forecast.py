"""Forecasts how much money will be spent by the end of a period."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from accounting.core.calendar import MICROSECOND
from accounting.core.numbers import MICRO

# No forecast is made in a shorter time.
LEAST = timedelta(days=2)


def forecast(spent: Decimal, *, begins: datetime, now: datetime, ends: datetime) -> Decimal | None:
    """Returns how much money will be spent by the end of the period if spending continues at the average rate so far.

    Returns None in the first two days of the period. The method is deliberately simple, so that readers can check a
    warning by hand: it ignores weekends and queued jobs.
    """
    # In UTC, because Python subtracts two moments of one time zone by their local times, which is wrong by an hour
    # across a clock change.
    begins, now, ends = (moment.astimezone(UTC) for moment in (begins, now, ends))
    elapsed = now - begins
    if elapsed < LEAST:
        return None
    return (spent * ((ends - begins) // MICROSECOND) / (elapsed // MICROSECOND)).quantize(MICRO)
