"""Workers know every task that beat sends, and beat stores no state in a file that other users could write."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
from celery.apps.beat import Beat
from django.conf import LazySettings, settings

from portal.beat import Scheduler
from portal.celery import app


def test_every_task_of_beats_schedule_is_there() -> None:
    app.loader.import_default_modules()
    sent = {entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()}
    assert sent <= set(app.tasks)
    assert "scheduling.tasks.check_clusters" in sent


def test_beat_reads_and_writes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beat neither reads nor writes a file. Celery's default scheduler keeps its state in a file as a pickle, and a
    pickle that another user planted there would execute code."""
    monkeypatch.chdir(tmp_path)
    service = Beat(app=app, pidfile="")
    scheduler = service.Service(app=app, scheduler_cls=service.scheduler_cls).get_scheduler()
    assert type(scheduler) is Scheduler
    scheduler.sync()
    scheduler.close()
    assert list(tmp_path.iterdir()) == []


def due_at_start(now: datetime) -> set[str]:
    """Returns the names of the schedule entries that beat sends immediately if it starts at the time `now`."""
    with patch("celery.schedules.BaseSchedule.now", lambda _: now):
        scheduler = Scheduler(app)
        return {name for name, entry in scheduler.schedule.items() if entry.is_due().is_due}


def test_beat_sends_overdue_tasks_when_it_starts() -> None:
    intervals = set(settings.CELERY_BEAT_SCHEDULE) - {"anomalies"}
    night = datetime(2026, 11, 25, 0, 30, tzinfo=UTC)
    assert due_at_start(night - timedelta(minutes=1)) == intervals
    for missed_for in (timedelta(minutes=1), timedelta(hours=11)):
        assert due_at_start(night + missed_for) == intervals | {"anomalies"}
    assert due_at_start(night + timedelta(hours=13)) == intervals


def test_each_entry_says_when_its_message_expires_and_not_before_the_next_one() -> None:
    for name, entry in settings.CELERY_BEAT_SCHEDULE.items():
        if isinstance(entry["schedule"], float):
            assert entry["options"]["expires"] >= entry["schedule"], name


def test_the_heartbeat_reports_sent_orders(tmp_path: Path, settings: LazySettings) -> None:
    settings.FAIRLOT_HEARTBEAT_FILE = str(tmp_path / "beat")
    scheduler = Scheduler(app)
    scheduler.producer = Mock()  # a real producer would wait for a broker
    with patch("celery.beat.Scheduler.apply_async", side_effect=OSError("the broker is away")):
        scheduler.tick()
    assert list(tmp_path.iterdir()) == []
    with patch("celery.beat.Scheduler.apply_async"):
        scheduler.tick()
        os.utime(tmp_path / "beat", (0, 0))
        scheduler.tick()
    assert (tmp_path / "beat").stat().st_mtime > 0
