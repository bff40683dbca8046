"""What a worker says: its log, capped, and its progress."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path

import re2

LINE_LIMIT = 4096  # bytes; what stands further right in a line is not searched for progress
NOTE_ROOM = 4096  # bytes that notes of ours may take beyond the cap


class Log:
    """Appends a rank's output to its file, up to `limit` bytes over all epochs; counts what is cut."""

    def __init__(self, path: Path, limit: int, *, cut: int = 0) -> None:
        """`cut`: bytes that were cut before, where somebody goes on with what another `Log` began."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._limit = limit
        self._size = os.fstat(self._fd).st_size
        self._cut = cut
        self._why = f"this log may have {limit:,} bytes"

    def write(self, data: bytes) -> None:
        room = max(0, self._limit - self._size) if not self._cut else 0
        written = self._append(data[:room]) if room else 0
        if written < len(data):
            if not self._cut:
                self._note(f"output is cut here: {self._why}; the program goes on")
            self._cut += len(data) - written

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
        os.fdatasync(self._fd)

    def close(self) -> None:
        """When nothing more will come."""
        if self._cut:
            self._note(f"{self._cut:,} bytes of output were cut: {self._why}")
        self.release()

    def release(self) -> None:
        """When another may go on."""
        os.close(self._fd)

    def _append(self, data: bytes) -> int:
        """How many bytes were written: fewer than given when the disk is full."""
        done = 0
        while done < len(data):
            try:
                done += os.write(self._fd, data[done:])
            except OSError as error:
                if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}:
                    raise
                self._why = f"it could not be written ({error.strerror})"
                break
        self._size += done
        return done

    def _note(self, text: str) -> None:
        if self._size < self._limit + NOTE_ROOM:
            self._append(f"\n[fairlot] {text}\n".encode())


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
            with self._file.open("rb") as file:
                now = os.fstat(file.fileno())
                was, self._file_was = self._file_was, (now.st_mtime_ns, now.st_size)
                if was == self._file_was:
                    return False
                file.seek(max(0, now.st_size - 256))
                words = file.read(256).split()
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
