"""Reads the files that a job writes, for its users, also while a hostile job replaces them.

Each folder of a path is opened relative to its open parent, and no link is followed. A file is looked at before it is
opened (O_PATH), so that a FIFO or a device is never opened.

Uses only the standard library, because it also runs in reader pods (kubernetes/reader_program.py).
"""

from __future__ import annotations

import errno
import heapq
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scheduling.backends import opening
from scheduling.backends.file_entries import FileEntry, FileKind, FileList, FileUnreadable, NoSuchFile
from scheduling.backends.file_names import BadPath, names_of, text_of
from scheduling.backends.opening import opened

PARTS = ("checkpoint", "work")  # the folders of a job that its users see
MOST_ENTRIES = 200_000  # names that are read from one folder
LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
LONGEST_AGE = 100 * 366 * 86_400.0  # a job can give its files any time
BLOCK = 512  # the unit of st_blocks

Key = tuple[bool, str, str]  # orders the entries of a folder: no folder, name without case, name


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of a job. Its operator chose `root`, which may have links; `names` lead from there to the folder."""

    root: Path
    names: tuple[str, ...] = ()


class PlainFile:
    """A plain file of a job, open for reading. See OpenFile in base.py."""

    def __init__(self, fd: int, found: os.stat_result, offset: int) -> None:
        self.size, self.stored = found.st_size, found.st_blocks * BLOCK
        self.age = age_of(found)
        self.identity = f"{found.st_dev:x}-{found.st_ino:x}"
        self.version = f"{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}"
        self._file = open(fd, "rb", buffering=0)  # noqa: SIM115 - closed by `close`
        self._file.seek(offset)

    def read(self, limit: int) -> bytes:
        try:
            return self._file.read(limit) or b""
        except OSError as error:
            raise _unreadable(error) from error

    def close(self) -> None:
        self._file.close()


def list_folder(place: Place, path: str, *, after: str, limit: int) -> FileList:
    """Returns a page of the entries of a folder. See Backend.list_files."""
    names = _names(path)
    begin = _key_after(after)
    with errors(), opened_folder(place, names) as folder:
        if folder is None:
            return FileList((), "")
        found = _Found(only=() if names else PARTS)
        page = heapq.nsmallest(limit + 1, found.after(begin, folder))
        entries = [seen for key in page[:limit] if (seen := _entry(key[2], folder)) is not None]
    last = page[limit - 1] if len(page) > limit else None
    return FileList(entries, _after(last) if last else "", is_cut=found.count > MOST_ENTRIES)


def open_file(place: Place, path: str, offset: int) -> PlainFile:
    """Opens a plain file of the job. See Backend.open_file."""
    names = _names(path)
    if not names:
        raise FileUnreadable("This is a folder, not a file.")
    with errors(), opened_folder(place, names[:-1]) as folder:
        if folder is None or (len(names) == 1 and names[0] not in PARTS):
            raise NoSuchFile("There is no such file.")
        with opened(os.open(names[-1], LOOK, dir_fd=folder)) as there:
            found = os.fstat(there)
            if why := why_not(found):
                raise FileUnreadable(f"This cannot be opened: {why}.")
            if stat.S_ISDIR(found.st_mode):
                raise FileUnreadable("This is a folder, not a file.")
            # The same file, whatever the job has put in its place meanwhile. O_NONBLOCK: a lease makes nobody wait.
            fd = os.open(f"/proc/self/fd/{there}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        return PlainFile(fd, os.fstat(fd), offset)


# --- folders and entries -----------------------------------------------------------------------------


@contextmanager
def opened_folder(place: Place, names: list[str]) -> Iterator[int | None]:
    """Opens a folder of the job for the `with` block and yields its file descriptor; None if the job has no folder at
    all."""
    if names and names[0] not in PARTS:
        raise NoSuchFile("There is no such folder.")
    try:
        fd = opening.open_folder(place.root, *place.names, *names)
    except FileNotFoundError:
        if names:
            raise
        yield None
        return
    with opened(fd):
        yield fd


def entries_of(folder: int) -> Iterator[tuple[bool, str]]:
    """Yields for each entry of an open folder whether it is itself a folder, and its name."""
    with os.scandir(folder) as found:
        for each in found:
            yield each.is_dir(follow_symlinks=False), each.name


class _Found:
    """The entries of a folder, one after the other. Keeps none of them in memory."""

    def __init__(self, *, only: Sequence[str]) -> None:
        """`only`: the names that count; empty: all."""
        self.count = 0
        self._only = only

    def after(self, begin: Key | None, folder: int) -> Iterator[Key]:
        """Yields the keys of the first MOST_ENTRIES entries, in any order, but none up to `begin`."""
        for is_folder, name in entries_of(folder):
            self.count += 1
            if self.count > MOST_ENTRIES:
                return
            key = _key(is_folder, name)
            if (not self._only or name in self._only) and (begin is None or key > begin):
                yield key


def _key(is_folder: bool, name: str) -> Key:
    return not is_folder, name.casefold(), name


def _after(key: Key) -> str:
    return text_of(key[2]) + ("" if key[0] else "/")


def _key_after(after: str) -> Key | None:
    if not after:
        return None
    names = _names(after.removesuffix("/"))
    if len(names) != 1:
        raise NoSuchFile("There is no such place in the list.")
    return _key(after.endswith("/"), names[0])


def _entry(name: str, folder: int) -> FileEntry | None:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:  # the job has just removed it
        return None
    kinds = {stat.S_IFDIR: FileKind.FOLDER, stat.S_IFREG: FileKind.FILE, stat.S_IFLNK: FileKind.LINK}
    kind = kinds.get(stat.S_IFMT(found.st_mode), FileKind.OTHER)
    size = found.st_size if kind is FileKind.FILE else 0
    return FileEntry(text_of(name), kind, size, age_of(found), why_not(found))


def why_not(found: os.stat_result) -> str:
    """Returns why a file cannot be opened; "" for folders, and for plain files with one name."""
    if stat.S_ISDIR(found.st_mode):
        return ""
    if stat.S_ISLNK(found.st_mode):
        return "it is a symbolic link"
    if not stat.S_ISREG(found.st_mode):
        return "it is not a plain file"
    # The other name may be of a file that the job must not read.
    return f"it has {found.st_nlink} names (hard links)" if found.st_nlink > 1 else ""


def age_of(found: os.stat_result) -> float:
    return min(max(0.0, time.time() - found.st_mtime), LONGEST_AGE)


def _names(path: str) -> list[str]:
    try:
        return names_of(path)
    except BadPath as error:
        raise NoSuchFile(str(error)) from None


@contextmanager
def errors() -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchFile("There is no such file or folder.") from None
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENAMETOOLONG}:
            raise NoSuchFile("There is no such file or folder.") from None
        raise _unreadable(error) from error


def _unreadable(error: OSError) -> FileUnreadable:
    return FileUnreadable(f"This cannot be read: {opening.why(error)}.")
