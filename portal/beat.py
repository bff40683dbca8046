"""A Celery beat scheduler that keeps its schedule in memory.

Celery's default scheduler keeps it in a pickle file, and loading a pickle file executes code in it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from celery import beat

from scheduling.core import heartbeat


class Scheduler(beat.Scheduler):
    """Sends, when it starts, each task whose last due time is so recent that its message would not have expired yet.

    This applies to each task with an interval, and to a nightly task whose night was missed. A task can be sent
    twice.
    """

    def setup_schedule(self) -> None:
        super().setup_schedule()
        for entry in self.schedule.values():
            entry.last_run_at = entry.default_now() - timedelta(
                seconds=(entry.options or {}).get("expires", 0)
            )

    def apply_async(self, *args: Any, **named: Any) -> Any:
        sent = super().apply_async(*args, **named)
        heartbeat.beat()
        return sent
