"""The output of a worker: its log file, which has a size limit, and the progress that it reports."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import re2

from scheduling.backends import opening
from scheduling.backends.logtimes import TimesWriter

LINE_LIMIT = 4096  # bytes of a line that are searched for progress
NOTE_ROOM = 4096  # bytes that Fairlot's own notes may take beyond a log's limit


class Log:
    """Appends a rank's output to an open file, up to `limit` bytes for all attempts together. Counts the dropped
    bytes."""

    def __init__(
        self,
        fd: int | None,
        limit: int,
        *,
        cut: int = 0,
        resumes: bool = False,
        trouble: str = "",
        times: TimesWriter | None = None,
    ) -> None:
        """Takes over the open file `fd`.

        - `fd`: the log's file descriptor; None if the log could not be opened. All output is then dropped.
        - `limit`: the maximum size of the log in bytes.
        - `cut`: the number of bytes that an earlier `Log` of the same file dropped.
        - `resumes`: whether to try again after a disk error. If false, a disk error ends the log.
        - `trouble`: the reason why the log could not be opened; otherwise "".
        - `times`: records when the bytes of the log are written.
        """
        self.times = times or TimesWriter(None, 0)
        self._fd = fd
        self._limit = limit
        self._resumes = resumes
        self._size = os.fstat(fd).st_size if fd is not None else 0
        self._cut = cut
        self._stopped = cut > 0  # whether output is left out now
        self._missing = 0  # part of `_cut`: bytes that the disk refused and no note mentions yet
        self._why = (
            f"the log could not be written ({trouble})"
            if trouble
            else f"this log is limited to {limit:,} bytes"
        )
        self.trouble = trouble  # why the file cannot be written now; empty if it can be written

    def write(self, data: bytes, marks: Sequence[tuple[int, int]] = ()) -> None:
        """Appends the output. Never raises an error. Drops and counts bytes beyond the limit, and bytes that cannot be
        written because of a disk error.

        `marks` are pairs of a position in `data` and the time of the bytes from there on, in milliseconds of Unix time.
        """
        if self._stopped and not self._try_again():
            self._leave_out(len(data))
            return
        room = max(0, self._limit - self._size)
        self.times.note((self._size + position, at) for position, at in marks if position < room)
        written = self._append(data[:room]) if room else 0
        if written < len(data):
            self._leave_out(len(data) - written)
            if not self.trouble:
                self._missing = 0
            self._note(f"output is cut here, because {self._why}; the program continues")

    @property
    def size(self) -> int:
        """Returns the log's size in bytes, including the notes that Fairlot writes."""
        return self._size

    @property
    def cut(self) -> int:
        """Returns the number of bytes of output that have been dropped so far."""
        return self._cut

    def sync(self) -> None:
        """Waits until all written output would survive a power cut."""
        if self._fd is not None:
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Closes the file. If output was dropped, first appends a note that says how much. Called when no more output
        will come."""
        if self._cut:
            self._note(f"{self._cut:,} bytes of output were cut, because {self._why}")
        self.release()

    def release(self) -> None:
        """Closes the file without a note, so that another `Log` can continue it."""
        self.times.close()
        if self._fd is not None:
            os.close(self._fd)

    def _leave_out(self, count: int) -> None:
        self._cut += count
        self._missing += count
        self._stopped = True

    def _try_again(self) -> bool:
        """Tries to continue after a disk error, and first appends a note on the missing bytes.

        Returns whether the log can be written again.
        """
        if not (self._resumes and self.trouble):
            return False
        if self._missing and not self._note(
            f"{self._missing:,} bytes of output are missing here: {self._why}"
        ):
            return False
        self._missing, self.trouble, self._stopped = 0, "", False
        self._why = f"this log is limited to {self._limit:,} bytes"
        return True

    def _append(self, data: bytes) -> int:
        """Appends the data and returns the number of bytes written. After a disk error, this is less than the length of
        the data."""
        done = 0
        while self._fd is not None and done < len(data):
            try:
                done += os.write(self._fd, data[done:])
            except OSError as error:
                self.trouble = error.strerror or str(error)
                self._why = f"the log could not be written ({self.trouble})"
                break
        self._size += done
        return done

    def _note(self, text: str) -> bool:
        """Appends a line that Fairlot itself writes. Returns whether the whole line was written."""
        line = f"\n[fairlot] {text}\n".encode()
        return self._size < self._limit + NOTE_ROOM and self._append(line) == len(line)


class Progress:
    """The number of steps that a worker last reported, either in a line of its output or in its progress file."""

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
        """Takes the next piece of output and searches all complete lines for progress. Returns whether a line reported
        progress.

        A carriage return also ends a line.
        """
        text = self._rest + data.replace(b"\r", b"\n")
        end = text.rfind(b"\n") + 1
        self._rest = text[end:][:LINE_LIMIT]
        # Only the last match counts. Searching the end first keeps the cost low when a program prints very many lines.
        tail = text.rfind(b"\n", 0, max(0, end - LINE_LIMIT)) + 1
        return self._search(text[tail:end]) or (tail > 0 and self._search(text[:tail]))

    def finish(self) -> bool:
        """Searches the last line of the output if it has no line break. Returns whether this line reported progress.

        Called when no more output will come.
        """
        rest, self._rest = self._rest, b""
        return self._search(rest)

    def read_file(self) -> bool:
        """Reads the progress file if it has changed since the last call. Returns whether the file reported progress."""
        if self._file is None:
            return False
        try:
            with opening.opened(opening.open_path(self._file, os.O_RDONLY)) as file:
                now = os.fstat(file)
                was, self._file_was = self._file_was, (now.st_mtime_ns, now.st_size)
                if was == self._file_was:
                    return False
                words = os.pread(file, 256, max(0, now.st_size - 256)).split()
        except OSError:  # the file does not exist yet or is no plain file, so it reports no progress
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
