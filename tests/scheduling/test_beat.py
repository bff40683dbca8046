"""What beat sends, a worker knows."""

from __future__ import annotations

from django.conf import settings

from portal.celery import app


def test_every_task_of_beats_schedule_is_there() -> None:
    app.loader.import_default_modules()
    sent = {entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()}
    assert sent <= set(app.tasks)
    assert "scheduling.tasks.check_clusters" in sent
