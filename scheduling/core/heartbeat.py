"""A heartbeat file: its age tells a health check whether a program still works."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings


def beat() -> None:
    """Touches the file named by FAIRLOT_HEARTBEAT_FILE; does nothing if that is not set."""
    if settings.FAIRLOT_HEARTBEAT_FILE:
        Path(settings.FAIRLOT_HEARTBEAT_FILE).touch()
