"""Fixtures for the tests of the package `scheduling`."""

from collections.abc import Callable
from datetime import datetime
from functools import partial

import pytest

from tests.clock import set_clock
from tests.scheduling.local_rig import open_folder, rig

__all__ = ["clock", "open_folder", "rig"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[datetime], None]:
    """Returns a function that sets the time of Fairlot's clock. At first it is 13:00 UTC on 3 May 2026, the day before
    `NOON` in scheduled.py."""
    from tests.scheduling.scheduled import DAY, HOUR, NOON  # noqa: PLC0415 - it imports models

    def set_to(moment: datetime) -> None:
        set_clock(monkeypatch, moment)

    set_to(NOON - DAY + HOUR)
    return set_to


@pytest.fixture
def books_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[datetime], None]:
    """Returns a function that sets the time of Fairlot's clock. Tests of closing hours use it."""
    return partial(set_clock, monkeypatch)
