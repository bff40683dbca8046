"""What a worker says: its log, capped, and its progress."""

from __future__ import annotations

import math
import os
from pathlib import Path

import re2

from scheduling.backends import opening

LINE_LIMIT = 4096  # bytes; what stands further right in a line is not searched for progress
NOTE_ROOM = 4096  # bytes that notes of ours may take beyond the cap


class Log:
    """Appends a rank's output to its open file, up to `limit` bytes over all epochs; counts what is left out."""

    def __init__(
        self, fd: int | None, limit: int, *, cut: int = 0, resumes: bool = False, trouble: str = ""
    ) -> None:
        """`cut`: bytes that were cut before, where somebody goes on with what another `Log` began.

        `fd` is None when the file could not be opened, as `trouble` says: then all output is left out. With
        `resumes`, a disk that refused is tried again; else the log ends there.
        """
        self._fd = fd
        self._limit = limit
        self._resumes = resumes
        self._size = os.fstat(fd).st_size if fd is not None else 0
        self._cut = cut
        self._stopped = cut > 0  # nothing is written any more, unless it resumes
        self._missing = 0  # of `_cut`: bytes that the disk refused and nothing tells of yet
        self._why = (
            f"it could not be written ({trouble})" if trouble else f"this log may have {limit:,} bytes"
        )
        self.trouble = trouble  # why the file cannot be written now; empty while it can

    def write(self, data: bytes) -> None:
        """Never raises: what the limit or the disk refuses is counted instead."""
        if self._stopped and not self._try_again():
            self._leave_out(len(data))
            return
        room = max(0, self._limit - self._size)
        written = self._append(data[:room]) if room else 0
        if written < len(data):
            self._leave_out(len(data) - written)
            if not self.trouble:
                self._missing = 0
            self._note(f"output is cut here: {self._why}; the program goes on")

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._size

    @property
    def cut(self) -> int:
        """Bytes that were left out."""
        return self._cut

    def sync(self) -> None:
        """Until what was written would survive a power cut."""
        if self._fd is not None:
            os.fdatasync(self._fd)

    def close(self) -> None:
        """When nothing more will come."""
        if self._cut:
            self._note(f"{self._cut:,} bytes of output were cut: {self._why}")
        self.release()

    def release(self) -> None:
        """When another may go on."""
        if self._fd is not None:
            os.close(self._fd)

    def _leave_out(self, count: int) -> None:
        self._cut += count
        self._missing += count
        self._stopped = True

    def _try_again(self) -> bool:
        """Whether a disk that refused takes the log again; what is missing is said at that place."""
        if not (self._resumes and self.trouble):
            return False
        if self._missing and not self._note(f"{self._missing:,} bytes are missing here: {self._why}"):
            return False
        self._missing, self.trouble, self._stopped = 0, "", False
        self._why = f"this log may have {self._limit:,} bytes"
        return True

    def _append(self, data: bytes) -> int:
        """How many bytes were written: fewer than given when the disk refuses."""
        done = 0
        while self._fd is not None and done < len(data):
            try:
                done += os.write(self._fd, data[done:])
            except OSError as error:
                self.trouble = error.strerror or str(error)
                self._why = f"it could not be written ({self.trouble})"
                break
        self._size += done
        return done

    def _note(self, text: str) -> bool:
        """Whether a line of ours was written whole."""
        line = f"\n[fairlot] {text}\n".encode()
        return self._size < self._limit + NOTE_ROOM and self._append(line) == len(line)


class Progress:
    """The last number of steps that a worker told, by a line of its output or by its progress file."""

    def __init__(self, pattern: str, file: Path | None = None) -> None:
        options = re2.Options()
        options.never_nl = True  # a match never spans lines
        options.log_errors = False
        self._pattern = re2.compile(f"(?m){pattern}".encode(), options)
        self._file = file
        self._file_was: tuple[int, int] | None = None
        self._rest = b""
        self.steps: float | None = None

    def feed(self, data: bytes) -> bool:
        """Searches the complete lines; True when they told a number. Carriage returns end lines, too."""
        text = self._rest + data.replace(b"\r", b"\n")
        end = text.rfind(b"\n") + 1
        self._rest = text[end:][:LINE_LIMIT]
        # Only the last match counts: look at the end first, so that a flood of lines costs little.
        tail = text.rfind(b"\n", 0, max(0, end - LINE_LIMIT)) + 1
        return self._search(text[tail:end]) or (tail > 0 and self._search(text[:tail]))

    def finish(self) -> bool:
        """Searches what came after the last end of line."""
        rest, self._rest = self._rest, b""
        return self._search(rest)

    def read_file(self) -> bool:
        """Reads the progress file if it changed; True when it told a number."""
        if self._file is None:
            return False
        try:
            with opening.opened(opening.open_path(self._file, os.O_RDONLY)) as file:
                now = os.fstat(file)
                was, self._file_was = self._file_was, (now.st_mtime_ns, now.st_size)
                if was == self._file_was:
                    return False
                words = os.pread(file, 256, max(0, now.st_size - 256)).split()
        except OSError:  # not written yet, or something else than a file: no progress by this way
            return False
        return bool(words) and self._take(words[-1])

    def _search(self, lines: bytes) -> bool:
        last = None
        for last in self._pattern.finditer(lines):  # noqa: B007 - the last one is wanted
            continue
        return last is not None and last.group(1) is not None and self._take(last.group(1))

    def _take(self, number: bytes) -> bool:
        try:
            steps = float(number)
        except ValueError:
            return False
        if not math.isfinite(steps) or steps < 0:
            return False
        self.steps = steps
        return True
