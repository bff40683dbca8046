"""Sets the time of the whole program, in one place."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest

from accounting.core import clock

real_now = clock.read_database


def set_clock(patch: pytest.MonkeyPatch, now: datetime | Callable[[], datetime]) -> None:
    """Has `now_from_database()` return `now`, or what that returns, wherever it is called.

    `Now()` in SQL is the database's own and goes on.
    """
    patch.setattr(clock, "provider", now if callable(now) else lambda: now)
