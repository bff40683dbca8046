"""Reads and measures the folder of a job on this machine. How its files are opened: safe_folder.py."""

from __future__ import annotations

import os
import stat
import time

from scheduling.backends import safe_folder
from scheduling.backends.base import FileList, FileSizes
from scheduling.backends.file_names import text_of
from scheduling.backends.local.files import JobFiles
from scheduling.backends.opening import FOLDER
from scheduling.backends.safe_folder import BLOCK, Place, PlainFile, entries_of, errors, opened_folder

MEASURED_ENTRIES = 1_000_000
MEASURE_SECONDS = 30.0
MEASURED_DEPTH = 200  # folders that are open at the same time


def place_of(files: JobFiles) -> Place:
    return Place(files.root, (str(files.job_id),))


def list_folder(files: JobFiles, path: str, *, after: str, limit: int) -> FileList:
    """Returns a page of the entries of a folder. See Backend.list_files."""
    return safe_folder.list_folder(place_of(files), path, after=after, limit=limit)


def open_file(files: JobFiles, path: str, offset: int) -> PlainFile:
    """Opens a plain file of the job. See Backend.open_file."""
    return safe_folder.open_file(place_of(files), path, offset)


def measure(files: JobFiles) -> FileSizes:
    """Returns how much disk space the job's files take. See Backend.measure_files.

    A file with several names counts once. The walk ends after MEASURED_ENTRIES entries or MEASURE_SECONDS.
    """
    sizes: dict[str, int] = {}
    walk = _Walk()
    with errors(), opened_folder(place_of(files), []) as folder:
        if folder is None:
            return FileSizes({}, 0, is_complete=True)
        for is_folder, name in entries_of(folder):
            if is_folder:
                sizes[text_of(name)] = walk.size_of(name, folder)
    return FileSizes(sizes, walk.files, walk.is_complete)


class _Walk:
    """Walks through folders, and counts what is in them."""

    def __init__(self) -> None:
        self.files = 0
        self.is_complete = True
        self._left = MEASURED_ENTRIES
        self._until = time.monotonic() + MEASURE_SECONDS
        self._seen: set[tuple[int, int]] = set()  # files that have several names

    def size_of(self, name: str, parent: int) -> int:
        """Returns the bytes that the folder `name` in the open folder `parent` takes on the disk."""
        total, fds = 0, [os.dup(parent)]
        try:
            todo = [iter([(True, name)])]  # for each open folder, the entries that are left
            while todo:
                each = next(todo[-1], None)
                if each is None or not self._may_go_on():
                    todo.pop()
                    os.close(fds.pop())
                    continue
                is_folder, entry = each
                total += self._own_size(entry, fds[-1])
                if is_folder and (inner := self._open(entry, fds)) is not None:
                    fds.append(inner)
                    todo.append(entries_of(inner))
        finally:
            for fd in fds:
                os.close(fd)
        return total

    def _may_go_on(self) -> bool:
        self._left -= 1
        if self._left < 0 or (self._left % 256 == 0 and time.monotonic() > self._until):
            self._left = -1
            self.is_complete = False
        return self._left >= 0

    def _own_size(self, name: str, folder: int) -> int:
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:  # the job has just removed it
            return 0
        if not stat.S_ISDIR(found.st_mode):
            self.files += 1
            if found.st_nlink > 1:
                identity = (found.st_dev, found.st_ino)
                if identity in self._seen:
                    return 0
                self._seen.add(identity)
        return found.st_blocks * BLOCK

    def _open(self, name: str, fds: list[int]) -> int | None:
        if len(fds) > MEASURED_DEPTH:
            self.is_complete = False
            return None
        try:
            return os.open(name, FOLDER, dir_fd=fds[-1])
        except (FileNotFoundError, NotADirectoryError):  # the job has just replaced it
            return None
        except OSError:  # the portal may not read it, or the job has replaced it by a link
            self.is_complete = False
            return None
