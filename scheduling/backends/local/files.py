"""The files through which the local backend and the supervisors communicate, and the locks on them.

    <root>/<job>/checkpoint, home, work, tmp    the only folders that the job may write
    <root>/<job>/logs            the workers' output
    <root>/<job>/secrets, volumes    what the job may read (secret_files.py, volumes.py)
    <root>/<job>/code.tar.gz     the job's code (code_files.py)
    <root>/<job>/passwd, group   what the job sees in place of the machine's accounts (accounts.py)
    <root>/<job>/gang.json       the gang that was ordered last: its workers, GPUs and settings
    <root>/<job>/desired.json    the last order, with its epoch
    <root>/<job>/poke            a FIFO; a byte in it makes the supervisor read its orders
    <root>/<job>/terminals       a socket, through which the supervisor opens terminals (shells.py)
    <root>/<job>/orders.lock     held for moments while orders are changed
    <root>/<job>/run.lock        held by the supervisor while it lives, so that a gang never runs twice
    <root>/.status/<job>-<epoch>.json    reports, replaced only when something changes
    <root>/.beats/<job>.json             the supervisor's heartbeat, written each second
    <root>/.removed/<job>, <job>.<n>     files that are being deleted (removal.py)

The folders checkpoint, home and work stay when an attempt ends. Except for the four folders in the first line,
everything belongs to the portal, including the folder <root>/<job> itself. A job that runs as the portal's user could
nevertheless change these files. Every file is therefore opened through opening.py. Files are replaced atomically, so
that a reader sees either the old or the new file.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduling.backends import opening
from scheduling.backends.opening import read_json, write_json

__all__ = ["Busy", "JobFiles", "read_json", "reports_in", "try_lock", "write_json"]

ORDERS_LOCK_SECONDS = 10.0
OWN = ("checkpoint", "home", "work", "tmp")  # folders that the job may write
REPORT = re.compile(r"([1-9]\d{0,18})-(\d{1,18})\.json", re.ASCII)


class Busy(Exception):
    """Raised when another process holds a lock that an operation on a job's files needs."""


@dataclass(frozen=True)
class JobFiles:
    """The paths of one job's files, and the operations on these files that backend and supervisor share."""

    root: Path
    job_id: int

    @property
    def folder(self) -> Path:
        return self.root / str(self.job_id)

    @property
    def gang(self) -> Path:
        return self.folder / "gang.json"

    @property
    def desired(self) -> Path:
        return self.folder / "desired.json"

    @property
    def forgotten(self) -> Path:
        return self.folder / "forgotten.json"

    @property
    def beat(self) -> Path:
        return self.root / ".beats" / f"{self.job_id}.json"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank}.log"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoint"

    def progress(self, rank: int) -> Path:
        return self.folder / "tmp" / f"progress-{rank}"

    def status(self, epoch: int) -> Path:
        return self.root / ".status" / f"{self.job_id}-{epoch}.json"

    def statuses(self) -> list[dict[str, Any]]:
        """Returns all reports about this job, the oldest epoch first."""
        found = (read_json(path) for path in self._reports())
        return sorted((status for status in found if status), key=lambda status: int(status["epoch"]))

    def _reports(self) -> list[Path]:
        return [path for path in reports_in(self.root) if path.name.startswith(f"{self.job_id}-")]

    def last_beat(self, epoch: int) -> dict[str, Any]:
        """Returns the last heartbeat of the supervisor, if the heartbeat names the attempt `epoch`.

        Returns an empty dictionary if there is no such heartbeat or it cannot be read.
        """
        try:
            beat = read_json(self.beat)
        except (OSError, ValueError):  # damaged by a power cut, or not a plain file
            return {}
        return beat if beat is not None and beat.get("epoch") == epoch else {}

    def make(self) -> None:
        """Creates the job's folders and its FIFO `poke`. Replaces `poke` if it is not a FIFO.

        Raises OSError if the disk is full or read-only, or if something other than a folder has the name of a folder.
        """
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (self.logs, self.beat.parent, self.status(0).parent):
            with self.opened(path, make=True):
                pass
        with self.opened(self.folder) as folder:
            if not _is_fifo("poke", folder):
                opening.remove_file("poke", folder=folder)
                with suppress(FileExistsError):  # another process has just created it
                    os.mkfifo("poke", 0o600, dir_fd=folder)

    @contextmanager
    def opened(self, folder: Path, *, make: bool = False) -> Iterator[int]:
        """Opens a folder below `root` for use in a `with` statement, and yields its file descriptor.

        Raises OSError if a part of the path below `root` is a symbolic link. With `make`, creates a missing folder.
        """
        with opening.folder(self.root, *folder.relative_to(self.root).parts, make=make) as fd:
            yield fd

    def open_poke(self, flags: int) -> int:
        """Opens the job's FIFO `poke` with the flags `flags`, without blocking, and returns its file descriptor.

        Raises OSError if `poke` is not a FIFO. Also raises OSError if `flags` ask for writing and no process reads the
        FIFO.
        """
        with self.opened(self.folder) as folder:
            fifo = os.open("poke", flags | opening.CAREFULLY, dir_fd=folder)
        if not stat.S_ISFIFO(os.fstat(fifo).st_mode):
            os.close(fifo)
            raise opening.NotPlain("poke", "the file is not a FIFO")
        return fifo

    def poke(self) -> bool:
        """Makes the supervisor read its orders immediately. Returns False if no supervisor reads the FIFO."""
        try:
            fifo = self.open_poke(os.O_WRONLY)
        except OSError:  # no FIFO, or no reader
            return False
        try:
            os.write(fifo, b"!")
        except BlockingIOError:
            return True  # the FIFO is full of unread bytes, and one byte would be enough
        except BrokenPipeError:
            return False
        finally:
            os.close(fifo)
        return True

    @contextmanager
    def orders_lock(self, seconds: float = ORDERS_LOCK_SECONDS) -> Iterator[None]:
        """Holds the lock on the job's orders inside the `with` block.

        Raises Busy if another process keeps holding the lock for `seconds`.
        """
        lock = self._open_lock("orders.lock")
        try:
            deadline = time.monotonic() + seconds
            while not try_lock(lock):
                if time.monotonic() >= deadline:
                    raise Busy(f"another process is starting, suspending or stopping job {self.job_id}")
                time.sleep(0.01)  # flock cannot wait with a deadline
            yield
        finally:
            os.close(lock)

    def open_run_lock(self) -> int | None:
        """Takes the job's run lock and returns its file descriptor; None if a supervisor holds the lock."""
        lock = self._open_lock("run.lock")
        if try_lock(lock):
            return lock
        os.close(lock)
        return None

    def _open_lock(self, name: str) -> int:
        with self.opened(self.folder) as folder:
            return opening.open_file(name, os.O_RDWR | os.O_CREAT, folder=folder)


def try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def reports_in(root: Path) -> list[Path]:
    """Returns the paths of all jobs' reports below `root`, ordered by name. Ignores other files in their folder."""
    try:
        with opening.folder(root, ".status") as folder:
            names = sorted(filter(REPORT.fullmatch, opening.names_in(folder)))
    except FileNotFoundError:
        return []
    return [root / ".status" / name for name in names]


def _is_fifo(name: str, folder: int) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False
