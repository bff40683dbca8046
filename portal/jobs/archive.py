"""Writes a folder of a job as a zip archive, piece by piece, while the job may go on writing.

Little of it is in memory at a time. Files are stored without compression. What is left out, and why, is said in a file
at the end of the archive.
"""

from __future__ import annotations

import zipfile
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from posixpath import commonpath

from accounting.core.wording import fixed
from scheduling.backends.base import Backend, BackendError, FileEntry, FileKind, OpenFile

READ = 256 * 1024
LIST_AT_ONCE = 5000
MOST_FILES = 20_000  # the directory at the end of a zip archive is kept in memory until then
MOST_BYTES = 1 << 40
MOST_ENTRIES = 200_000  # files and folders that are looked at
SPARSE = 64 * 1024 * 1024  # a longer file is left out if less than half of it is on the disk
LONGEST_NAME = 1024  # characters; a name in a zip archive has less than 64 KiB
LEFT_OUT = "NOT IN THIS ARCHIVE.txt"
MOST_LEFT_OUT = 1000  # lines in that file
FIRST_YEAR, LAST_YEAR = 1980, 2107  # of the times in a zip archive


@dataclass
class _Pieces:
    """A file that only takes writes, and gives them back. Zip archives are then written without seeking."""

    parts: list[bytes] = field(default_factory=list)
    size: int = 0

    def write(self, data: bytes) -> int:
        self.parts.append(bytes(data))
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        """Does nothing, because nothing is buffered."""

    def taken(self) -> bytes:
        """Returns what was written since the last call."""
        taken, self.parts, self.size = b"".join(self.parts), [], 0
        return taken


@dataclass(eq=False)
class Archive:
    """A zip archive of the folder `path` of a job, or of the results in it. In the archive, all is in a folder `top`.

    `now` is the time from which the ages of files count.
    """

    backend: Backend
    job_id: int
    path: str
    top: str
    now: datetime
    # Of the newest results, so many at most; None: all in the folder.
    results: int | None = None
    _files: int = 0
    _bytes: int = 0
    _left_out: list[str] = field(default_factory=list)
    _more_left_out: int = 0

    def first_page(self) -> None:
        """Raises NoSuchFile or FileUnreadable if the folder itself cannot be read, before anything is sent."""
        self.backend.list_files(job_id=self.job_id, path=self.path, limit=1)

    def pieces(self) -> Generator[bytes]:
        """Yields the bytes of the archive. Also yields nothing, b"", so that its reader can stop it at any entry."""
        out = _Pieces()
        with zipfile.ZipFile(out, "w", allowZip64=True) as archive:  # type: ignore[call-overload]
            walk = self._walk(self.path) if self.results is None else self._results(self.results)
            for count, (path, entry) in enumerate(walk):
                if count >= MOST_ENTRIES:
                    self._leave_out(path, "This and all that follows is left out, because there is too much.")
                    break
                yield b""
                if entry.kind is not FileKind.FOLDER:
                    yield from self._file(archive, out, path, entry)
            if self._left_out:
                archive.writestr(_info(LEFT_OUT, self.now), self._note())
        yield out.taken()

    def _results(self, limit: int) -> Iterator[tuple[str, FileEntry]]:
        """Yields the results of the job, the newest first."""
        try:
            found = self.backend.list_results(job_id=self.job_id, limit=limit)
        except BackendError as error:
            self._leave_out("", str(error))
            return
        # The folders around all results say nothing.
        self.path = (
            commonpath(entry.name.rpartition("/")[0] for entry in found.entries) if found.entries else ""
        )
        yield from ((entry.name, entry) for entry in found.entries)
        if (here := len(found.entries)) < found.count:
            self._leave_out("", f"Only the newest {fixed(here)} of {fixed(found.count)} files are here.")
        if not found.is_complete:
            self._leave_out("", "The job has more files than Fairlot looks at, so some may be missing.")

    def _walk(self, path: str) -> Iterator[tuple[str, FileEntry]]:
        """Yields all that is below a folder, each entry with its path. Keeps a page of each folder on the way in
        memory."""
        todo = [self._entries(path, 1)]
        while todo:
            found = next(todo[-1], None)
            if found is None:
                todo.pop()
            else:
                yield found
                if found[1].kind is FileKind.FOLDER:
                    todo.append(self._entries(found[0], len(todo) + 1))

    def _entries(self, path: str, depth: int) -> Iterator[tuple[str, FileEntry]]:
        after, limit = "", max(50, LIST_AT_ONCE // depth)  # pages of all folders on the way are in memory
        while True:
            try:
                page = self.backend.list_files(job_id=self.job_id, path=path, after=after, limit=limit)
            except BackendError as error:
                self._leave_out(path, str(error))
                return
            for entry in page.entries:
                yield f"{path}/{entry.name}".lstrip("/"), entry
            if page.is_cut and not page.after:
                self._leave_out(path, "The folder has more entries than Fairlot reads.")
            if not (after := page.after):
                return

    def _file(self, archive: zipfile.ZipFile, out: _Pieces, path: str, entry: FileEntry) -> Generator[bytes]:
        name = self._name_of(path)
        if why := self._why_not(archive, name, entry):
            self._leave_out(path, why)
            return
        try:
            opened = self.backend.open_file(job_id=self.job_id, path=path)
        except BackendError as error:
            self._leave_out(path, str(error))
            return
        with closing(opened):
            if opened.size > SPARSE and opened.stored < opened.size / 2:
                self._leave_out(path, "The file is sparse: most of it is not on the disk. Download it alone.")
                return
            if self._bytes + opened.size > MOST_BYTES:
                self._leave_out(path, "The archive would become too large.")
                return
            self._files += 1
            info = _info(name, self.now - timedelta(seconds=opened.age))
            with archive.open(info, "w", force_zip64=True) as inside:
                for data in self._content(opened, path):
                    self._bytes += len(data)
                    inside.write(data)
                    if out.size >= READ:
                        yield out.taken()

    def _content(self, opened: OpenFile, path: str) -> Iterator[bytes]:
        """Yields the bytes of a file, but not what the job appends meanwhile, so that each file has an end."""
        left = opened.size
        try:
            while left > 0 and (data := opened.read(min(READ, left))):
                yield data
                left -= len(data)
        except BackendError as error:
            self._leave_out(path, f"Only its first {fixed(opened.size - left)} bytes are here. {error}")
            return
        if left > 0:
            self._leave_out(path, "The job has made the file shorter while it was read.")

    def _name_of(self, path: str) -> str:
        # Some programs take a backslash as a separator of folders.
        inner = path.removeprefix(self.path).lstrip("/")
        return f"{self.top}/{inner}".replace("\\", "%")

    def _why_not(self, archive: zipfile.ZipFile, name: str, entry: FileEntry) -> str:
        if entry.why_not:
            return f"It is left out, as {entry.why_not}."
        if self._files >= MOST_FILES:
            return f"The archive has {fixed(MOST_FILES)} files, which is the most."
        if len(name) > LONGEST_NAME:
            return "Its path is too long."
        return "Another file has the same name in the archive." if name in archive.NameToInfo else ""

    def _leave_out(self, path: str, why: str) -> None:
        if len(self._left_out) < MOST_LEFT_OUT:
            self._left_out.append(f"{path or '/'}: {why}")
        else:
            self._more_left_out += 1

    def _note(self) -> str:
        more = [f"… and {self._more_left_out} more"] if self._more_left_out else []
        return "\n".join((*self._left_out, *more, ""))


def _info(name: str, at: datetime) -> zipfile.ZipInfo:
    moment = at.astimezone(UTC)
    year = min(max(moment.year, FIRST_YEAR), LAST_YEAR)
    info = zipfile.ZipInfo(name, (year, *moment.timetuple()[1:6]))
    info.external_attr = 0o644 << 16
    return info
