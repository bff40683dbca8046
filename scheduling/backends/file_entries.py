"""What a backend says about the files of a job. Uses only the standard library, because it also runs in reader pods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class FileKind(StrEnum):
    """What an entry of a folder is. Only plain files and folders can be opened."""

    FOLDER = "folder"
    FILE = "file"
    LINK = "link"  # a symbolic link, which is never followed
    OTHER = "other"  # a FIFO, a socket or a device


@dataclass(frozen=True, slots=True)
class FileEntry:
    """An entry of a folder that a job can write. `name` is a text (file_names.py)."""

    name: str
    kind: FileKind
    size: int  # bytes; of folders, links and others 0
    age: float  # seconds since the last change, by the time that the file itself names
    why_not: str = ""  # why the entry cannot be opened, in words for users; empty if it can


@dataclass(frozen=True, slots=True)
class FileList:
    """A page of a folder's entries: folders first, each group in the order of names."""

    entries: Sequence[FileEntry]
    after: str  # continues the list, as the `after` of the next call; empty: these are the last entries
    is_cut: bool = False  # the folder has more entries than the backend looks at


@dataclass(frozen=True, slots=True)
class ResultList:
    """The newest files that a job wrote or changed. The `name` of each entry is its path (file_names.py)."""

    entries: Sequence[FileEntry]
    count: int  # of all such files that were found
    is_complete: (
        bool  # False: the search ended at a limit, or a folder could not be read, so there may be more
    )


class BackendError(Exception):
    """Raised when the backend could not carry out an order. The message gives users the reason."""


class NoSuchFile(BackendError):
    """Raised when a path of a job's files leads to nothing."""


class FileUnreadable(BackendError):
    """Raised when a job's file or folder cannot be read. The message gives users the reason."""
