"""A file whose age tells a health check that a program still does its work."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings


def beat() -> None:
    """Makes the file of FAIRLOT_HEARTBEAT_FILE new; does nothing where none is set."""
    if settings.FAIRLOT_HEARTBEAT_FILE:
        Path(settings.FAIRLOT_HEARTBEAT_FILE).touch()
