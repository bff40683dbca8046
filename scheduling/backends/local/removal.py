"""Deletes the files of an ended job.

A job may leave anything in its folder: links to other places, folders without permissions, trees of any depth. Each
folder is therefore opened relative to its open parent, never by a long path. A link is deleted and never followed.
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
AT_ONCE = 1000  # entries of a folder that are read before they are deleted
CLEAR_SECONDS = 15.0  # to delete files that block a start, or temporary files while the next attempt waits
REMOVE_SECONDS = 300.0  # to delete all files of a job


def remove(files: JobFiles) -> None:
    """Deletes the job's folder and its reports. Raises Busy while the job runs, and OSError if a file cannot be
    deleted.

    First moves the whole folder away, so that a job never starts in a half-deleted folder. If a call is interrupted,
    for example by TimeoutError after REMOVE_SECONDS, the next call deletes the remaining files.
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
    """Opens and locks the folder to which files are moved before they are deleted. Yields its file descriptor for the
    `with` block.

    `root` is the file descriptor of the folder of all jobs. Raises Busy if another process holds the folder's lock.
    """
    with suppress(FileExistsError):
        os.mkdir(REMOVED, 0o700, dir_fd=root)
    with opened(os.open(REMOVED, FOLDER, dir_fd=root)) as aside:
        if not try_lock(aside):
            raise Busy("another process is deleting folders of jobs")
        yield aside


@contextmanager
def _not_running(files: JobFiles, root: int) -> Iterator[None]:
    """Keeps the job from running inside the `with` block: holds its run lock, if the lock file exists.

    Also makes the job's folder writable. `root` is the file descriptor of the folder of all jobs. Raises Busy if a
    supervisor holds the lock.
    """
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
            raise Busy(f"processes of job {name} are still running")
        os.close(_open_up(name, root))  # moving a folder needs write permission for the folder itself
        yield


@contextmanager
def _run_lock(folder: int) -> Iterator[int | None]:
    """Opens the file run.lock in `folder` for the `with` block and yields its file descriptor.

    Yields None if the job never started, or if the job has replaced the file by something else.
    """
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
    """Opens the folder `name` in the open folder `parent`, and returns its file descriptor.

    Changes the folder's mode only if opening fails for lack of permission. A running job may still use the folder, so
    its mode must not change without need.
    """
    try:
        return os.open(name, FOLDER, dir_fd=parent)
    except PermissionError:
        return _open_up(name, parent)


def _open_up(name: str, parent: int) -> int:
    """Sets the mode of the folder `name` in the open folder `parent` to 0700, opens it, and returns its file
    descriptor.

    The mode must be set because the job may have removed even the owner's permissions.
    """
    path_only = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with opened(os.open(name, path_only, dir_fd=parent)) as place:
        os.chmod(f"/proc/self/fd/{place}", 0o700)
        return os.open(".", FOLDER, dir_fd=place)


def clear(name: str, aside: int, *, seconds: float = CLEAR_SECONDS) -> None:
    """Deletes the entry `name`, with all its content, from the open folder `aside` (a file descriptor).

    Raises TimeoutError after `seconds`; the next call deletes the remaining entries.
    """
    until = time.monotonic() + seconds
    # Includes subfolders that an interrupted call moved here.
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
                    # The subfolder is emptied in `aside`, so that few folders are open even in a deep tree.
                    # Moving a folder needs write permission for the folder itself.
                    os.close(_open_up(entry, folder))
                    part_of_it = next(free)
                    os.rename(entry, part_of_it, src_dir_fd=folder, dst_dir_fd=aside)
                    todo.append(part_of_it)
        os.rmdir(part, dir_fd=aside)


def _check(until: float) -> None:
    if time.monotonic() > until:
        raise TimeoutError(
            "deleting the folders takes too long for one run; the rest is deleted in the next run"
        )


def _unlinked(name: str, folder: int) -> bool:
    """Deletes the entry `name` of the open folder `folder`, unless the entry is itself a folder. Returns whether it was
    deleted."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    return True
