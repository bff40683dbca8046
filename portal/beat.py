"""A Celery beat scheduler that keeps its schedule in memory.

Celery's default scheduler stores the schedule in a pickle file, and loading a manipulated pickle file can execute code.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from celery import beat

from scheduling.core import heartbeat


class Scheduler(beat.Scheduler):
    """A Celery beat scheduler that, at its start, also sends the tasks that became due while it was stopped.

    It sends each task that was due in the last `expires` seconds (an option of the task). A task is sometimes sent
    twice, because the scheduler does not know what it sent before it was stopped.
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
