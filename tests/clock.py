"""Sets, for tests, the time that Fairlot's code reads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest

from accounting.core import clock

real_now = clock.read_database


def set_clock(patch: pytest.MonkeyPatch, now: datetime | Callable[[], datetime]) -> None:
    """Makes `now_from_database()` return `now`, or the result of calling `now`, for all callers.

    SQL's `Now()` still returns the real time of the database.
    """
    patch.setattr(clock, "provider", now if callable(now) else lambda: now)
