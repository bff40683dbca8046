"""Deletes what is kept of an ended job.

What jobs leave behind may be anything: links to elsewhere, folders that they closed, trees of any depth.
Everything is reached from the open root folder, name by name; a link is deleted and never followed.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count

from scheduling.backends import opening
from scheduling.backends.local.files import Busy, JobFiles, try_lock
from scheduling.backends.opening import FOLDER, opened

REMOVED = ".removed"
AT_ONCE = 1000  # names of a folder that are read before they are deleted
CLEAR_SECONDS = 15.0  # for what is in the way of a start, and for temporary files while the next turn waits
REMOVE_SECONDS = 300.0  # for all of a job


def remove(files: JobFiles) -> None:
    """Deletes the job's folder and its reports; Busy while it runs, OSError when the disk refuses.

    The folder is moved aside at first, so that the job has its files or none. Doing it twice has no effect
    but to delete what was left aside when the first time was cut short, as by TimeoutError after REMOVE_SECONDS.
    """
    if not files.root.is_dir():
        return
    name = str(files.job_id)
    with opening.folder(files.root) as root, _aside(root) as aside:
        clear(name, aside, seconds=REMOVE_SECONDS)
        with _not_running(files, root), suppress(FileNotFoundError):
            os.rename(name, name, src_dir_fd=root, dst_dir_fd=aside)
        _remove_reports(files, aside)
        clear(name, aside, seconds=REMOVE_SECONDS)


def _remove_reports(files: JobFiles, aside: int) -> None:
    name = files.job_id
    for place, ours in ((".beats", (f"{name}.", f".{name}.")), (".status", (f"{name}-", f".{name}-"))):
        with suppress(FileNotFoundError), files.opened(files.root / place) as folder:
            for report in opening.names_in(folder):
                if report.startswith(ours) and not _unlinked(report, folder):
                    free = f"{name}.{secrets.token_hex(8)}"
                    os.rename(report, free, src_dir_fd=folder, dst_dir_fd=aside)


@contextmanager
def _aside(root: int) -> Iterator[int]:
    """The folder of what is being deleted, for one process at a time."""
    with suppress(FileExistsError):
        os.mkdir(REMOVED, 0o700, dir_fd=root)
    with opened(os.open(REMOVED, FOLDER, dir_fd=root)) as aside:
        if not try_lock(aside):
            raise Busy("another process is deleting folders of jobs")
        yield aside


@contextmanager
def _not_running(files: JobFiles, root: int) -> Iterator[None]:
    """Holds the job's run lock, if there is one, with its folder opened up; Busy when a supervisor holds it."""
    name = str(files.job_id)
    try:
        is_folder = stat.S_ISDIR(os.lstat(name, dir_fd=root).st_mode)
    except FileNotFoundError:
        is_folder = False
    if not is_folder:
        yield
        return
    with opened(_open(name, root)) as folder, _run_lock(folder) as run_lock:
        if run_lock is not None and not try_lock(run_lock):
            raise Busy(f"processes of job {name} still run")
        os.close(_open_up(name, root))  # who moves a folder must be allowed to write into it
        yield


@contextmanager
def _run_lock(folder: int) -> Iterator[int | None]:
    """The open file of the run lock; None for a job that was never started or spoilt it."""
    try:
        run_lock = opening.open_file("run.lock", os.O_RDWR, folder=folder)
    except (FileNotFoundError, IsADirectoryError, opening.NotPlain):
        yield None
        return
    except OSError as error:
        if error.errno not in {errno.ELOOP, errno.ENXIO}:
            raise
        yield None
        return
    with opened(run_lock):
        yield run_lock


def _open(name: str, parent: int) -> int:
    """Opens the folder `name` as it is, since its job may still run; opened up only if it is closed to us."""
    try:
        return os.open(name, FOLDER, dir_fd=parent)
    except PermissionError:
        return _open_up(name, parent)


def _open_up(name: str, parent: int) -> int:
    """Opens the folder `name`, which its job may have closed even to its owner."""
    path_only = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with opened(os.open(name, path_only, dir_fd=parent)) as place:
        os.chmod(f"/proc/self/fd/{place}", 0o700)
        return os.open(".", FOLDER, dir_fd=place)


def clear(name: str, aside: int, *, seconds: float = CLEAR_SECONDS) -> None:
    """Deletes `name` from the folder `aside`, and the parts of it that are there already.

    Folders are moved out of their parents and emptied one by one: however deep they were, one is open. Raises
    TimeoutError after `seconds`; the rest stays, to be deleted by the next call.
    """
    until = time.monotonic() + seconds
    todo = deque(found for found in os.listdir(aside) if found == name or found.startswith(f"{name}."))
    taken = set(todo)
    free = (part for part in map(f"{name}.{{}}".format, count()) if part not in taken)
    while todo:
        part = todo.popleft()
        _check(until)
        if _unlinked(part, aside):
            continue
        with opened(_open_up(part, aside)) as folder:
            while entries := opening.names_in(folder, AT_ONCE):
                for entry in entries:
                    _check(until)
                    if _unlinked(entry, folder):
                        continue
                    os.close(_open_up(entry, folder))  # who moves a folder must be allowed to write into it
                    part_of_it = next(free)
                    os.rename(entry, part_of_it, src_dir_fd=folder, dst_dir_fd=aside)
                    todo.append(part_of_it)
        os.rmdir(part, dir_fd=aside)


def _check(until: float) -> None:
    if time.monotonic() > until:
        raise TimeoutError("there is more to delete than fits in one go; the rest is deleted the next time")


def _unlinked(name: str, folder: int) -> bool:
    """Deletes what is no folder; whether it was none."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    return True
