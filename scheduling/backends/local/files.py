"""The files through which backend and supervisor talk, and the locks that keep them apart.

    <root>/<job>/checkpoint, home, work, tmp, logs    the job's own; checkpoints and logs survive
    <root>/<job>/gang.json       the newest gang, as it is to be started
    <root>/<job>/desired.json    the newest order; fenced by its epoch
    <root>/<job>/poke            a FIFO: a byte in it says "read the orders now"
    <root>/<job>/orders.lock     held for moments by whoever changes orders
    <root>/<job>/run.lock        held by the supervisor as long as it lives: a gang never runs twice
    <root>/.status/<job>-<epoch>.json    reports; replaced only when something changes
    <root>/.beats/<job>.json             the supervisor's heartbeat, each second
    <root>/.removed/<job>, <job>.<n>     what is being deleted (removal.py)

Files are replaced atomically, so a reader sees the old or the new one, whole.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ORDERS_LOCK_SECONDS = 10.0


class Busy(Exception):
    """Somebody else holds the lock."""


@dataclass(frozen=True)
class JobFiles:
    """Where things of one job are."""

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

    def progress(self, rank: int) -> Path:
        return self.folder / "tmp" / f"progress-{rank}"

    def status(self, epoch: int) -> Path:
        return self.root / ".status" / f"{self.job_id}-{epoch}.json"

    def statuses(self) -> list[dict[str, Any]]:
        """All reports about this job, oldest epoch first."""
        found = (read_json(path) for path in self.status(0).parent.glob(f"{self.job_id}-*.json"))
        return sorted((status for status in found if status), key=lambda status: int(status["epoch"]))

    def last_beat(self, epoch: int) -> dict[str, Any]:
        """The last heartbeat of this epoch; empty when there is none, or a power cut damaged it."""
        try:
            beat = read_json(self.beat)
        except ValueError:
            return {}
        return beat if beat is not None and beat["epoch"] == epoch else {}

    def make(self) -> None:
        """Creates the folders; OSError when the disk refuses."""
        for folder in (self.root, self.folder, self.logs, self.beat.parent, self.status(0).parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self.folder / "poke").exists():
            try:
                os.mkfifo(self.folder / "poke", 0o600)
            except FileExistsError:
                return  # another starter was faster

    def poke(self) -> bool:
        """Tells the supervisor to read its orders; False when there is none."""
        try:
            fifo = os.open(self.folder / "poke", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # no FIFO, or nobody reads it
            return False
        try:
            os.write(fifo, b"!")
        except BlockingIOError:
            return True  # full of pokes that are still unread: as good as one more
        finally:
            os.close(fifo)
        return True

    @contextmanager
    def orders_lock(self, seconds: float = ORDERS_LOCK_SECONDS) -> Iterator[None]:
        """Serialises changes of orders between processes; Busy after `seconds`."""
        lock = os.open(self.folder / "orders.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + seconds
            while not try_lock(lock):
                if time.monotonic() >= deadline:
                    raise Busy(f"the orders of job {self.job_id} are locked by another process")
                time.sleep(0.01)  # flock has no wait with a deadline
            yield
        finally:
            os.close(lock)

    def open_run_lock(self) -> int | None:
        """A file descriptor that holds the run lock, or None when a supervisor holds it."""
        lock = os.open(self.folder / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if try_lock(lock):
            return lock
        os.close(lock)
        return None


def try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_json(path: Path) -> dict[str, Any] | None:
    """The file's content, or None when there is no such file."""
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return content


def write_json(path: Path, content: dict[str, Any], *, durable: bool = True) -> None:
    """Replaces the file atomically; `durable` also survives a power cut. Each file has one writer at a time."""
    temporary = path.with_name(f".{path.name}.new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(content, file)
        file.flush()
        if durable:
            os.fsync(fd)
    temporary.replace(path)
