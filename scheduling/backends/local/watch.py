"""Waits for files to be replaced. Uses inotify, which misses no change and needs no polling."""

from __future__ import annotations

import ctypes
import os
import select
import time
from collections.abc import Iterator
from pathlib import Path

IN_MOVED_TO = 0x80  # from <sys/inotify.h>
# Many gangs start and end at the same time, so changes that follow each other closely are reported together.
SOON, LATEST = 0.05, 0.2  # seconds
_libc = ctypes.CDLL(None, use_errno=True)


def renames_in(folder: Path, timeout: float) -> Iterator[None]:
    """Yields None immediately, then whenever a file is renamed into `folder`, and at least every `timeout` seconds.

    Several changes in quick succession are reported together.
    """
    watch = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if watch < 0 or _libc.inotify_add_watch(watch, os.fsencode(folder), IN_MOVED_TO) < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"cannot watch {folder}: {os.strerror(number)}")
        yield
        while True:
            if select.select([watch], [], [], timeout)[0]:
                _read_all(watch)
            yield
    finally:
        if watch >= 0:
            os.close(watch)


def _read_all(watch: int) -> None:
    until = time.monotonic() + LATEST
    os.read(watch, 65536)
    while (left := until - time.monotonic()) > 0 and select.select([watch], [], [], min(SOON, left))[0]:
        os.read(watch, 65536)
