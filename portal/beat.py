"""The schedule of Celery beat, in memory alone: its usual file is a pickle, which executes what it contains."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from celery import beat

from scheduling.core import heartbeat


class Scheduler(beat.Scheduler):
    """At its start sends tasks that fell due so recently that their message would not have expired yet.

    That is each task with an interval, and a nightly one whose night was missed. Tasks may come twice.
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
