"""Tests which period of a subscribed report is due at a given time, in the reader's time zone."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.notifications.subscriptions import SETTLES, last_period

ZONES = ["UTC", "Asia/Tokyo", "America/New_York", "Pacific/Kiritimati", "Asia/Kathmandu"]


@pytest.mark.parametrize(
    ("rhythm", "zone", "now", "first", "last"),
    [
        ("monthly", "UTC", datetime(2026, 4, 1, 5, 59, tzinfo=UTC), date(2026, 2, 1), date(2026, 2, 28)),
        ("monthly", "UTC", datetime(2026, 4, 1, 6, 0, tzinfo=UTC), date(2026, 3, 1), date(2026, 3, 31)),
        ("monthly", "Asia/Tokyo", datetime(2026, 3, 31, 21, tzinfo=UTC), date(2026, 3, 1), date(2026, 3, 31)),
        ("monthly", "America/Lima", datetime(2027, 1, 1, 10, 59, tzinfo=UTC), date(2026, 11, 1), date(2026, 11, 30)),
        ("weekly", "UTC", datetime(2026, 11, 23, 5, tzinfo=UTC), date(2026, 11, 9), date(2026, 11, 15)),
        ("weekly", "UTC", datetime(2026, 11, 23, 6, tzinfo=UTC), date(2026, 11, 16), date(2026, 11, 22)),
        ("weekly", "UTC", datetime(2026, 11, 29, 23, tzinfo=UTC), date(2026, 11, 16), date(2026, 11, 22)),
    ],
)  # fmt: skip
def test_a_period_is_due_six_hours_after_its_end(
    rhythm: str, zone: str, now: datetime, first: date, last: date
) -> None:
    assert last_period(rhythm, ZoneInfo(zone), now) == (first, last)


@given(
    st.sampled_from(["weekly", "monthly"]),
    st.sampled_from(ZONES),
    st.datetimes(datetime(2024, 1, 1), datetime(2030, 1, 1)),
    st.integers(1, 40 * 24),
)
def test_periods_follow_on_each_other_and_are_over(rhythm: str, zone: str, at: datetime, later: int) -> None:
    now = at.replace(tzinfo=UTC)
    first, last = last_period(rhythm, ZoneInfo(zone), now)
    assert last < (now - SETTLES).astimezone(ZoneInfo(zone)).date()
    if rhythm == "weekly":
        assert (first.weekday(), (last - first).days) == (0, 6)
    else:
        assert (first.day, (last + timedelta(days=1)).day) == (1, 1)
    following, _ = last_period(rhythm, ZoneInfo(zone), now + timedelta(hours=later))
    assert following >= first
    assert following == first or following > last
