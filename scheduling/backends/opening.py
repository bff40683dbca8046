"""Opens files that a job may have replaced: follows no links, never blocks, and accepts only plain files.

A job may put anything in the place of a file that Fairlot expects: a FIFO that blocks its reader, a symbolic link to a
file that only the portal may read, a hard link to another user's file, a folder, or a sparse file of many terabytes.
Fairlot therefore uses these functions for all files in a job's folder. They open each file and folder relative to its
open parent folder. Every function raises OSError if it refuses a file, so that one `except OSError` handles all cases.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK avoids waiting for a FIFO without a writer and for a file with a lease (fcntl F_SETLEASE).
CAREFULLY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
MOST_NAMES = 100_000  # most names that are read from one folder
LONGEST_JSON = 64 * 1024 * 1024  # bytes of a JSON file


class NotPlain(OSError):
    """Raised when a name refers to something other than a plain file, or to a file with several hard links."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(errno.EINVAL, what, name)


@contextmanager
def opened(fd: int) -> Iterator[int]:
    """Yields the file descriptor `fd` for the `with` block and closes it at the end."""
    try:
        yield fd
    finally:
        os.close(fd)


def open_folder(base: Path, *names: str, make: bool = False) -> int:
    """Opens the folder `base`/`names[0]`/`names[1]`… and returns its file descriptor. The caller must close the
    descriptor.

    `base` may contain symbolic links, because the operator of the portal chose it. Raises OSError if one of `names` is
    a link. With `make`, creates missing folders with mode 0700.
    """
    fd = os.open(base, FOLDER & ~os.O_NOFOLLOW)
    for name in names:
        with opened(fd) as parent:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(_checked(name), 0o700, dir_fd=parent)
            fd = os.open(_checked(name), FOLDER, dir_fd=parent)
    return fd


@contextmanager
def folder(base: Path, *names: str, make: bool = False) -> Iterator[int]:
    """Opens a folder, like `open_folder`, for the `with` block, and yields its file descriptor."""
    with opened(open_folder(base, *names, make=make)) as fd:
        yield fd


def open_file(name: str, flags: int, *, folder: int, mode: int = 0o600) -> int:
    """Opens the plain file `name` in the open `folder` and returns its file descriptor.

    Raises NotPlain for anything other than a plain file. Also raises NotPlain for a file with several hard links,
    because the job may have linked a file that it must not use. Raises ValueError for O_TRUNC, because it would empty
    the file before the check.
    """
    if flags & os.O_TRUNC:
        raise ValueError("open_file does not accept O_TRUNC, which would empty a file before the check")
    fd = os.open(_checked(name), flags | CAREFULLY, mode, dir_fd=folder)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise NotPlain(name, f"a plain file is expected here, not {_kind(found.st_mode)}")
        if found.st_nlink > 1:
            raise NotPlain(name, f"the file has {found.st_nlink} hard links, but only one is allowed")
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_path(path: Path, flags: int, *, folders: int = 2) -> int:
    """Opens a plain file by its path and returns its file descriptor.

    Raises OSError if the file or one of the last `folders` folders of its path is a symbolic link.
    """
    parts = path.parts[-1 - folders : -1]
    with folder(Path(*path.parts[: -1 - folders]), *parts) as fd:
        return open_file(path.name, flags, folder=fd)


def read_file(name: str, *, folder: int, limit: int) -> bytes:
    """Returns the content of the plain file `name` in the open folder `folder`.

    Raises OSError if `name` is not a plain file or has more than `limit` bytes.
    """
    with opened(open_file(name, os.O_RDONLY, folder=folder)) as fd, open(fd, "rb", closefd=False) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"the file is longer than {limit:,} bytes", name)
    return content


def replace_file(name: str, content: bytes, *, folder: int, durable: bool = False) -> None:
    """Atomically replaces the file `name` in the open folder `folder` with a new file that has this content.

    A link or other special file with this name is replaced too; a folder with this name is renamed. With `durable`, the
    new content also survives a power cut. Only one process at a time may write the same name.
    """
    temporary = f".{_checked(name)}.new"
    remove_file(temporary, folder=folder)
    with opened(
        os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | CAREFULLY, 0o600, dir_fd=folder)
    ) as fd:
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        if durable:
            os.fsync(fd)
    try:
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except IsADirectoryError:
        put_aside(name, folder=folder)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def remove_file(name: str, *, folder: int) -> None:
    """Removes the entry `name` of the open folder `folder`, if it exists. Removes a link and not the link's target.

    If the entry is itself a folder, renames it instead of deleting it.
    """
    try:
        os.unlink(_checked(name), dir_fd=folder)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        put_aside(name, folder=folder)


def put_aside(name: str, *, folder: int) -> str:
    """Renames the entry `name` to a random name, so that `name` becomes free. Returns the random name."""
    aside = f"{name}.{secrets.token_hex(8)}"
    os.rename(_checked(name), aside, src_dir_fd=folder, dst_dir_fd=folder)
    return aside


def names_in(folder: int, most: int = MOST_NAMES) -> list[str]:
    """Returns the names of the entries in the open folder, at most `most` of them."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in islice(entries, most)]


def read_json(path: Path) -> dict[str, Any] | None:
    """Returns the JSON object in a file; None if the file does not exist. Raises ValueError if the content is damaged.

    Raises OSError if the file or its folder is a symbolic link.
    """
    try:
        with folder(path.parent.parent, path.parent.name) as fd:
            content = json.loads(read_file(path.name, folder=fd, limit=LONGEST_JSON))
    except FileNotFoundError:
        return None
    except RecursionError:
        raise ValueError(f"{path.name} is damaged: the JSON in it is nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is damaged: the file does not contain a JSON object")
    return content


def write_json(path: Path, content: dict[str, Any], *, durable: bool = True) -> None:
    """Atomically replaces the file with `content` as JSON, like `replace_file`.

    The file's folder must exist and must not be a symbolic link.
    """
    with folder(path.parent.parent, path.parent.name) as fd:
        replace_file(path.name, json.dumps(content).encode(), folder=fd, durable=durable)


def why(error: OSError | ValueError) -> str:
    """Describes an error in a few words for users, without paths of this machine."""
    if isinstance(error, OSError) and error.errno == errno.ELOOP:
        return "the file is a symbolic link"
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _checked(name: str) -> str:
    if not name or "/" in name or name in {".", ".."}:
        raise ValueError(f"{name!r} is not a file name: it must not be empty, . or .. and must not contain /")
    return name


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")
