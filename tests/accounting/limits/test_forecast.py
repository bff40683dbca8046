"""Tests of the forecast of a budget's spending at the end of its period."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest

from accounting.limits.forecast import forecast


@pytest.mark.parametrize("month", [3, 10])
def test_a_forecast_counts_real_hours_where_clocks_change(month: int) -> None:
    """Proves that forecasts are right in months with a clock change.

    In Berlin, March has one hour less and October one hour more. The allowed error is smaller than one hour of
    spending.
    """
    zone = ZoneInfo("Europe/Berlin")
    begins, ends = datetime(2026, month, 1, tzinfo=zone), datetime(2026, month + 1, 1, tzinfo=zone)
    now = ends.astimezone(UTC) - timedelta(minutes=1)
    told = forecast(Decimal(100_000), begins=begins, now=now, ends=ends)
    assert told is not None
    assert 0 <= told - 100_000 < 3
