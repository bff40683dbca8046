"""Finds the results of a job: the files that it wrote or changed, among everything else in its folders.

Left out are uploaded files that are as they were, hidden files and folders, virtual environments, and folders that
programs make again, such as `__pycache__`. How folders are opened: safe_folder.py.

Uses only the standard library, because it also runs in reader pods (kubernetes/reader_program.py).
"""

from __future__ import annotations

import errno
import heapq
import os
import stat
import time
from collections import deque
from itertools import islice

from scheduling.backends.file_entries import FileEntry, FileKind, ResultList
from scheduling.backends.file_names import MOST_FOLDERS, text_of
from scheduling.backends.safe_folder import PARTS, Place, age_of, entries_of, errors, opened_folder, why_not

MOST_ENTRIES = 50_000  # files and folders that are looked at
MOST_SECONDS = 5.0
# The time of unchanged uploaded files, which archives of code have (scheduling/core/code_archives.py).
UPLOADED_AT = 315_619_200
MADE_AGAIN = {"__pycache__", "node_modules", "site-packages", "lost+found"}
ENVIRONMENT = "pyvenv.cfg"  # is in the folder of each virtual environment
GONE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}  # the job has just replaced it


def find_results(place: Place, limit: int) -> ResultList:
    """Returns the newest results of a job. See Backend.list_results."""
    with errors(), opened_folder(place, []) as folder:
        if folder is None:
            return ResultList((), 0, is_complete=True)
    walk = _Walk(place)
    newest = heapq.nsmallest(limit, walk.found, key=lambda each: (-each[1].st_mtime_ns, each[0]))
    entries = [
        FileEntry("/".join(map(text_of, names)), FileKind.FILE, found.st_size, age_of(found), why_not(found))
        for names, found in newest
    ]
    return ResultList(entries, len(walk.found), walk.is_complete)


class _Walk:
    """Looks through the folders of a job, the outer ones first, so that a large inner folder hides no outer file."""

    def __init__(self, place: Place) -> None:
        self.found: list[tuple[list[str], os.stat_result]] = []
        self.is_complete = True
        self._left = MOST_ENTRIES
        self._todo = deque([part] for part in PARTS)
        until = time.monotonic() + MOST_SECONDS
        while self._todo:
            if self._left <= 0 or time.monotonic() > until:
                self.is_complete = False
                return
            names = self._todo.popleft()
            try:
                with opened_folder(place, names) as folder:
                    if folder is not None:
                        self._look(names, folder)
            except OSError as error:
                self.is_complete &= error.errno in GONE

    def _look(self, names: list[str], folder: int) -> None:
        entries = list(islice(entries_of(folder), self._left + 1))
        if len(entries) > self._left:
            self.is_complete = False
        self._left -= len(entries)
        if any(name == ENVIRONMENT for _, name in entries):
            return
        for is_folder, name in entries:
            if name.startswith("."):
                continue
            if not is_folder:
                self._add([*names, name], folder)
            elif len(names) >= MOST_FOLDERS - 1:
                self.is_complete = False
            elif name not in MADE_AGAIN:
                self._todo.append([*names, name])

    def _add(self, names: list[str], folder: int) -> None:
        try:
            found = os.stat(names[-1], dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        if stat.S_ISREG(found.st_mode) and int(found.st_mtime) != UPLOADED_AT:
            self.found.append((names, found))
