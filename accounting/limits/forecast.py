"""What will have been spent at the end of a period, if it goes on as it went."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from accounting.core.calendar import MICROSECOND
from accounting.core.numbers import MICRO

# Of less nothing can be said.
LEAST = timedelta(days=2)


def forecast(spent: Decimal, *, begins: datetime, now: datetime, ends: datetime) -> Decimal | None:
    """Spent so far, and for the rest of the period as much an hour as until now; None in its first two days.

    Simple on purpose: who reads the warning can do the sum. It knows nothing of weekends or of jobs that wait.
    """
    # Two moments of one zone are as far apart as its clocks say, which is an hour off when these change.
    begins, now, ends = (moment.astimezone(UTC) for moment in (begins, now, ends))
    elapsed = now - begins
    if elapsed < LEAST:
        return None
    return (spent * ((ends - begins) // MICROSECOND) / (elapsed // MICROSECOND)).quantize(MICRO)
