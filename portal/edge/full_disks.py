"""Knows when a write failed because a disk was full."""

from __future__ import annotations

import time

from scheduling.core.safe_streams import NO_SPACE

DISK_FULL = "53100"  # PostgreSQL's code
TOLD_FOR_SECONDS = 60.0

_database_full_at = float("-inf")


def is_disk_full(error: BaseException | None) -> bool:
    """Whether `error`, or what it comes from, is a full disk, of this machine's or the database's."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            return True
        if getattr(error, "pgcode", None) == DISK_FULL:
            note_database_full()
            return True
        error = error.__cause__
    return False


def note_database_full() -> None:
    """Remembers it for /healthz: only a write that fails shows that the database's disk is full."""
    global _database_full_at  # noqa: PLW0603 - one moment for the process
    _database_full_at = time.monotonic()


def database_was_full() -> bool:
    """Whether the database refused a write of this process for want of space within the last minute."""
    return time.monotonic() - _database_full_at < TOLD_FOR_SECONDS
