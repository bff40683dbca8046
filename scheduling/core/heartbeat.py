"""A heartbeat file that a process updates regularly, so that a health check sees from the file's age whether it still
works."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings


def beat() -> None:
    """Updates the modification time of the file FAIRLOT_HEARTBEAT_FILE; does nothing if the setting is empty."""
    if settings.FAIRLOT_HEARTBEAT_FILE:
        Path(settings.FAIRLOT_HEARTBEAT_FILE).touch()
