"""Recognises write errors that are caused by a full disk."""

from __future__ import annotations

import time

from scheduling.core.safe_streams import NO_SPACE

DISK_FULL = "53100"  # PostgreSQL's error code
TOLD_FOR_SECONDS = 60.0

_database_full_at = float("-inf")


def is_disk_full(error: BaseException | None) -> bool:
    """Returns whether `error`, or an error that caused it, reports a full disk: of this machine or of the database
    server."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            return True
        if getattr(error, "pgcode", None) == DISK_FULL:
            note_database_full()
            return True
        error = error.__cause__
    return False


def note_database_full() -> None:
    """Records, for /healthz, that a write has failed because the database's disk is full."""
    global _database_full_at  # noqa: PLW0603 - one moment for the process
    _database_full_at = time.monotonic()


def database_was_full() -> bool:
    """Returns whether a write of this process failed within the last minute because the database's disk was full."""
    return time.monotonic() - _database_full_at < TOLD_FOR_SECONDS
