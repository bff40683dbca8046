"""Fixtures of the scheduling room."""

from collections.abc import Callable
from datetime import datetime

import pytest

from tests.scheduling.local_rig import open_folder, rig

__all__ = ["clock", "open_folder", "rig"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[datetime], None]:
    """Returns a function that sets the time for schedules; it starts a day before noon."""
    from scheduling.schedules import actions as schedules  # noqa: PLC0415
    from scheduling.schedules import schedule_runs  # noqa: PLC0415 - they import models
    from tests.scheduling.scheduled import DAY, HOUR, NOON  # noqa: PLC0415

    def set_to(moment: datetime) -> None:
        for module in (schedules, schedule_runs):
            monkeypatch.setattr(module, "now_from_database", lambda: moment)

    set_to(NOON - DAY + HOUR)
    return set_to


@pytest.fixture
def books_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[datetime], None]:
    """Returns a function that sets the time for the closing of hours."""
    from scheduling.books import closing  # noqa: PLC0415 - it imports models

    def set_to(moment: datetime) -> None:
        monkeypatch.setattr(closing, "now_from_database", lambda: moment)

    return set_to
