"""Finds supervisors that hang: stopped by a signal, blocked on a file, or in an endless loop.

A supervisor writes a heartbeat each second. The watchdog runs in another process, which checks the heartbeats
repeatedly. For each supervisor, the watchdog adds up the seconds without a sign of life, measured with the monotonic
clock of its own process.

One check adds at most LONGEST_GAP seconds, even if much more time has passed since the previous check. The machine may
have slept or swapped in between, which is not the supervisor's fault. Silence does not count while the disk refuses
writes, because no supervisor can write a heartbeat then.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduling.backends import opening
from scheduling.backends.local import processes
from scheduling.backends.local.files import JobFiles

logger = logging.getLogger(__name__)

PATIENCE = 30.0  # seconds of silence after which a supervisor is killed
LONGEST_GAP = 5.0  # most seconds of silence that one check adds
USUAL_GAP = 5.0  # seconds of silence that are normal on a busy machine


@dataclass(slots=True)
class _Silence:
    """A supervisor's last sign of life, and how many seconds it has been silent since then."""

    sign: object
    seconds: float = 0.0


class Watchdog:
    """Measures how long each supervisor has given no sign of life, such as a heartbeat.

    `root`: the folder below which the supervisors write their files. The same instance must make all checks, because it
    adds up the silence of a supervisor from check to check.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._checked_at = _now()
        self._passed = 0.0  # seconds of silence that the present check adds
        self._silences: dict[str, _Silence] = {}
        self._disk_takes: bool | None = None  # tried at most once per check; None: not tried yet

    def begin_check(self) -> None:
        """Begins a check of all supervisors. After the last supervisor, the caller must call `end_check`."""
        now = _now()
        self._passed, self._checked_at = min(now - self._checked_at, LONGEST_GAP), now
        self._disk_takes = None

    def is_overdue(self, files: JobFiles, status: dict[str, Any]) -> bool:
        """Returns whether the supervisor has given no sign of life for PATIENCE seconds.

        `status` is the supervisor's report. Must be called only for gangs that have not ended according to this report.
        """
        token, sign = status["token"], _sign(files, status)
        known = self._silences.get(token)
        if known is None or (sign is not None and sign != known.sign):
            self._silences[token] = _Silence(sign)
            return False
        known.seconds += self._passed
        if known.seconds > USUAL_GAP and not self._does_disk_take():
            known.seconds = 0.0
        return known.seconds >= PATIENCE

    def end_check(self, tokens: Iterable[str]) -> None:
        """Ends a check. Forgets the supervisor of each gang whose token is not in `tokens`."""
        self._silences = {token: self._silences[token] for token in tokens if token in self._silences}

    def _does_disk_take(self) -> bool:
        if self._disk_takes is None:
            self._disk_takes = _takes_writes(self._root)
        return self._disk_takes


def _sign(files: JobFiles, status: dict[str, Any]) -> object:
    """Returns a value that changes whenever the supervisor gives a sign of life, such as a heartbeat.

    `status` is the supervisor's report. Returns None if the supervisor gives no sign, for example because a signal has
    stopped it.
    """
    if not status["supervisor"]:
        # The gang waits for its previous attempt, whose supervisor has its own heartbeat, or no supervisor claimed the
        # gang.
        before = (older for older in files.statuses() if older["epoch"] < status["epoch"])
        return _now() if any(map(_is_supervised, before)) else None
    supervisor = processes.look(status["supervisor"][0])
    if supervisor is not None and supervisor.state in "Tt":
        return None
    return files.last_beat(status["epoch"]).get("at")


def _is_supervised(status: dict[str, Any]) -> bool:
    return (
        status["phase"] != "ended"
        and bool(status["supervisor"])
        and processes.is_alive(*status["supervisor"])
    )


def _now() -> float:
    return time.monotonic()  # does not count the time while the machine sleeps


def _takes_writes(root: Path) -> bool:
    """Returns whether the disk accepts a heartbeat. To find out, writes a file below `root` and waits until it is safe
    on disk."""
    name = f".probe-{os.getpid()}-{threading.get_ident()}"
    try:
        with opening.folder(root, ".beats") as folder:
            opening.replace_file(name, b"x" * 4096, folder=folder, durable=True)
            os.unlink(name, dir_fd=folder)
    except OSError as error:
        logger.warning("no heartbeat could be written: %s", opening.why(error))
        # Other errors have other causes and must not keep a silent supervisor alive.
        return error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
    return True
