"""The code of a job on this machine: the archive that the backend stores, and the copies in which workers start.

    <root>/<job>/code.tar.gz       the archive; belongs to the portal
    <root>/<job>/work/rank-N/code  a worker's copy, which the job may change

The supervisor reads the archive, and each worker's process unpacks it after it has become the job's user. So nothing
that a job puts into its own folders can make the portal write elsewhere.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import tarfile
from contextlib import ExitStack
from pathlib import Path

from scheduling.backends import opening
from scheduling.backends.local.files import JobFiles

NAME = "code.tar.gz"
LARGEST = 2**31  # bytes; far above the limits on uploads
TEMPORARY = ".fairlot-unpacking"
FOLDER = "code"  # in the working folder of each worker


def write(files: JobFiles, content: bytes) -> None:
    """Stores the archive of a job, unless the same is stored already. Raises OSError if the disk refuses."""
    with files.opened(files.folder) as folder:
        if not _holds(folder, content):
            opening.replace_file(NAME, content, folder=folder)


def _holds(folder: int, content: bytes) -> bool:
    try:
        return opening.read_file(NAME, folder=folder, limit=len(content)) == content
    except OSError:
        return False


def read(files: JobFiles, digest: str) -> bytes:
    """Returns the job's code as a tar file. Raises OSError if it cannot be read, or if its digest is another one."""
    with files.opened(files.folder) as folder:
        content = opening.read_file(NAME, folder=folder, limit=LARGEST)
    try:
        tar = gzip.decompress(content)
    except (EOFError, ValueError) as error:
        raise OSError(f"the archive with the job's code is damaged: {error}") from None
    if f"sha256:{hashlib.sha256(tar).hexdigest()}" != digest:
        raise OSError("the archive with the job's code was changed on this machine")
    return tar


def unpack(tar: bytes, into: Path) -> None:
    """Writes the files of `tar` into the folder `into`, which is created if it is missing.

    They get the time that they have in `tar`, so that results.py recognises them until the job changes them.
    Files of the same names are replaced, and links and files in place of folders, too; other files stay. Follows no
    links below `into`. Each file is replaced atomically, so an interrupted call can be repeated. Runs as the job's
    user. Raises OSError.
    """
    with ExitStack() as stack:
        base = stack.enter_context(opening.folder(into.parent))
        root = stack.enter_context(opening.opened(_enter(into.name, base)))
        with tarfile.open(fileobj=io.BytesIO(tar), mode="r:", encoding="utf-8") as archive:
            for about in archive:
                file = archive.extractfile(about)
                _put(
                    root, about.name.split("/"), file.read() if file else b"", about.mode & 0o755, about.mtime
                )


def _put(root: int, parts: list[str], content: bytes, mode: int, time: float) -> None:
    opening.remove_file(TEMPORARY, folder=root)  # an interrupted call left it
    fd = os.open(TEMPORARY, os.O_WRONLY | os.O_CREAT | os.O_EXCL | opening.CAREFULLY, 0o600, dir_fd=root)
    with open(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(fd, mode)
        os.utime(fd, (time, time))
    folder = os.dup(root)
    try:
        for name in parts[:-1]:
            inner = _enter(name, folder)
            os.close(folder)
            folder = inner
        try:
            os.rename(TEMPORARY, parts[-1], src_dir_fd=root, dst_dir_fd=folder)
        except IsADirectoryError:
            opening.put_aside(parts[-1], folder=folder)
            os.rename(TEMPORARY, parts[-1], src_dir_fd=root, dst_dir_fd=folder)
    finally:
        os.close(folder)


def _enter(name: str, parent: int) -> int:
    """Opens the folder `name` in the open folder `parent` and returns its file descriptor. Creates it if it is missing,
    in place of a link or file of that name."""
    try:
        is_folder = stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        is_folder = False
    else:
        if not is_folder:
            os.unlink(name, dir_fd=parent)
    if not is_folder:
        os.mkdir(name, 0o755, dir_fd=parent)
    return os.open(name, opening.FOLDER, dir_fd=parent)
