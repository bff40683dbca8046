"""Helpers for tests of schedules; by default a schedule is Bob's, in Astro, and due each day at noon UTC."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from scheduling import tasks
from scheduling.models import Schedule
from scheduling.schedules.actions import Terms, create_schedule
from scheduling.spec.job_spec import JobSpec
from tests.scheduling.world import World

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
DAILY = Terms(expression="0 12 * * *", time_zone="UTC")
Clock = Callable[[datetime], None]


def spec(**fields: object) -> JobSpec:
    return JobSpec.parse({"name": "nightly", "command": "python train.py", **fields})


def make(lab: World, terms: Terms = DAILY, **changes: Any) -> Schedule:
    """Creates a schedule, by default Bob's in Astro; `changes` replace arguments of `create_schedule`."""
    asked: dict[str, Any] = {
        "actor": lab.people.bob,
        "tenant": lab.people.astro,
        "cluster": lab.cluster,
        "spec": spec(),
    }
    return create_schedule(**asked | {"terms": terms} | changes)


def tick() -> None:
    tasks.run_due_schedules()


def told(schedule: Schedule) -> list[tuple[str, str, str]]:
    """Returns (first due time, last due time, outcome) of each recorded run of the schedule, the oldest first."""
    runs = schedule.runs.order_by("id")
    return [(f"{run.due_from:%d.%m. %H:%M}", f"{run.due_at:%d.%m. %H:%M}", run.outcome) for run in runs]


def terms(**changes: Any) -> Terms:
    return Terms(**{"expression": "0 12 * * *", "time_zone": "UTC", "overlap": "allow"} | changes)
