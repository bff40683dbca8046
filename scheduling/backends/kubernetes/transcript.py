"""Appends a worker's output, as the kubelet sends it, to the log of the worker's rank. Each line is written exactly
once, even if the connection breaks.

A request asks the kubelet for the lines since a given second. The kubelet answers with all those lines that it still
has, each with its time of writing in nanoseconds. After an interruption, the answer therefore repeats lines that the
log already has.

The file `rank-N.json` beside the log records where to continue (see `Mark`): the second from which lines are requested,
and the position in the log at which the lines of that second begin. The file is written only after the log is safe on
disk. From the recorded position on, each line of the answer is compared with the log. Lines that the log already has
are skipped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from scheduling.backends.local.files import read_json, try_lock, write_json
from scheduling.backends.logfiles import LogFiles
from scheduling.backends.output import Log

STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
LONGEST_STAMP = 40  # bytes of a time stamp, including the blank after it
BILLION = 10**9
MILLION = 10**6


class KubeletMessage(Exception):
    """Raised when the kubelet sends a message of its own instead of the program's output."""


class LogLocked(Exception):
    """Raised when another process holds the lock of a log because it writes the log."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A record of how to continue a rank's log after an interruption.

    The next request asks for the pod's lines since second `since`. Lines of that second and later begin at byte
    `offset` of the log. The answer is compared with the log from this byte on.
    """

    pod: str  # UID of the pod
    epoch: int
    since: int  # seconds of Unix time; 0: since the pod's start
    offset: int
    last: int  # nanoseconds of Unix time of the latest line in the first `size` bytes
    size: int
    cut: int  # number of bytes left out because the log was full
    done: bool  # whether the pod's output is complete


def mark_path(files: LogFiles, rank: int) -> Path:
    return files.folder / f"rank-{rank}.json"


def read_mark(files: LogFiles, rank: int) -> Mark | None:
    """Returns the record of how to continue a rank's log, from the file `rank-N.json`; None if the file does not exist.
    Raises ValueError if the file is damaged."""
    found = read_json(mark_path(files, rank))
    try:
        return Mark(**found) if found is not None else None
    except TypeError:
        raise ValueError(
            f"{mark_path(files, rank).name} is damaged: the file does not contain a position in the log"
        ) from None


def nanoseconds(stamp: bytes) -> int | None:
    """Parses a time in the kubelet's format (RFC 3339). Returns nanoseconds of Unix time; None if `stamp` is not a
    time."""
    if not (found := STAMP.fullmatch(stamp)):
        return None
    try:
        second = datetime.fromisoformat((found[1] + found[3].replace(b"Z", b"+00:00")).decode())
    except ValueError:
        return None
    return round(second.timestamp()) * BILLION + int((found[2] or b"").ljust(9, b"0"))


class Transcript:
    """A writer that appends the output of one pod to the log of its rank. `pod` is the pod's UID."""

    def __init__(
        self,
        files: LogFiles,
        rank: int,
        *,
        pod: str,
        epoch: int,
        limit: int,
        new: Callable[[bytes, int], None] = lambda data, moment: None,
    ) -> None:
        """Locks and opens the log of rank `rank`. Raises LogLocked if another process writes the log, and OSError if it
        cannot be opened.

        - `pod`: the pod's UID.
        - `epoch`: the pod's attempt.
        - `limit`: the maximum size of the log in bytes.
        - `new`: a function that is called with each new piece of output, and with the time of the piece's last line
          (nanoseconds of Unix time). Output that the log already has is not new.
        """
        self._rest, self._at_start = b"", True
        files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = mark_path(files, rank)
        self._files, self._rank = files, rank
        self._new = new
        self._lock = files.open(rank, os.O_RDONLY | os.O_CREAT)
        if not try_lock(self._lock):
            os.close(self._lock)
            raise LogLocked(f"{files.log(rank)} is being written by another process")
        known = read_mark(files, rank)
        goes_on = known is not None and known.pod == pod
        writing = files.open(rank, os.O_WRONLY | os.O_APPEND)
        times = files.times_writer(rank, epoch)
        self._log = Log(writing, limit, cut=known.cut if known and goes_on else 0, times=times)
        size = self._log.size
        self._mark = known if known and goes_on else Mark(pod, epoch, 0, size, 0, size, 0, done=False)
        self._stored = self._mark if goes_on else None
        self._fresh = self._mark.size  # bytes after this offset were written after the position was recorded
        self._is_torn = not goes_on and not self._ends_whole(size)
        self._is_counted = False
        self._advances = False  # whether the next bytes begin a line
        self._reset()
        self.save()  # the position where the pod's lines begin must be recorded before any line

    @property
    def done(self) -> bool:
        return self._mark.done

    @property
    def is_full(self) -> bool:
        """Returns whether the log has reached its size limit, so that further output is dropped."""
        return self._log.cut > 0

    @property
    def since(self) -> str:
        """Returns the time from which to request lines, in RFC 3339 with whole seconds; "" to request all lines."""
        if not self._mark.since:
            return ""
        return datetime.fromtimestamp(self._mark.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def begin(self) -> None:
        """Prepares for a new response: reads the end of the log, which the response may repeat."""
        self._reset()
        self._base, self._last = self._mark.offset, self._mark.last
        with open(self._files.open(self._rank, os.O_RDONLY), "rb") as log:
            log.seek(self._base)
            self._tail = log.read()
        self._later = max(0, self._fresh - self._base)
        self._matching = bool(self._tail)

    def feed(self, data: bytes) -> None:
        """Processes the next bytes of the response.

        Raises KubeletMessage if the bytes contain a message of the kubelet itself. Keeps the lines before the message.
        """
        data, self._rest = self._rest + data, b""
        try:
            while data:
                if self._at_start:
                    space = data.find(b" ", 0, LONGEST_STAMP)
                    moment = nanoseconds(data[:space]) if space > 0 else None
                    if moment is None:
                        if space < 0 and len(data) < LONGEST_STAMP and b"\n" not in data:
                            self._rest = data
                            return
                        raise KubeletMessage(data[:300].decode("utf-8", "replace").strip())
                    self._begin_line(moment)
                    data = data[space + 1 :]
                end = data.find(b"\n") + 1
                piece, data = (data[:end], data[end:]) if end else (data, b"")
                self._take(piece, whole=bool(end))
                self._at_start = bool(end)
        finally:
            self._flush()

    def save(self, *, done: bool = False) -> None:
        """Records the current position in `rank-N.json` if it has changed. First makes the log up to that position
        durable on disk.

        With `done`, also records that the pod's output is complete.
        """
        mark = replace(self._mark, cut=self._log.cut, done=self._mark.done or done)
        if mark != self._stored:
            self._log.sync()
            write_json(self._path, asdict(mark))
            self._mark = self._stored = mark

    def finish(self, *, is_complete: bool = True) -> None:
        """Records that no more of the pod's output will be read.

        `is_complete` is false if reading stopped early because the log is full. The number of dropped bytes is then
        unknown.
        """
        self._is_counted = is_complete
        if self._held:  # a last line without a newline
            self._match(bytes(self._held))
            self._held.clear()
            self._flush()
        self.save(done=True)

    def close(self) -> None:
        """Closes the log and releases its lock. If the log is not finished, another instance may continue it."""
        (self._log.close if self.done and self._is_counted else self._log.release)()
        os.close(self._lock)

    # --- implementation ------------------------------------------------------------------------

    def _ends_whole(self, size: int) -> bool:
        return not size or os.pread(self._lock, 1, size - 1) == b"\n"

    def _reset(self) -> None:
        self._rest = b""  # the beginning of a time stamp
        self._at_start = True
        self._moment = 0
        self._out = bytearray()
        self._marks: list[tuple[int, int]] = []  # the time of each line in `_out`
        self._held = bytearray()  # the beginning of a line that the log may already have
        self._tail, self._base, self._position, self._later, self._last = b"", 0, 0, 0, 0
        self._matching = False

    def _begin_line(self, moment: int) -> None:
        self._moment, self._at_start, self._advances = moment, False, True
        if self._matching and (self._position >= len(self._tail) or self._is_later()):
            self._stop_matching()

    def _is_later(self) -> bool:
        """Returns whether the current line of the response is newer than every line in the log."""
        return self._moment > self._last and self._later >= len(self._tail)

    def _stop_matching(self) -> None:
        """Makes the writer treat all further lines as new, without comparing them with the log."""
        self._matching = False
        if self._position < len(self._tail) and not self._tail.endswith(b"\n"):
            # The rest of the unfinished line is lost; a newline separates it from the next line.
            self._out += b"\n"

    def _take(self, piece: bytes, *, whole: bool) -> None:
        if self.is_full:
            if self._moment > self._last:  # earlier lines were counted before
                self._write(piece)
        elif not self._matching:
            self._write(piece)
        else:
            self._held += piece
            if whole or self._begun():
                line = bytes(self._held)
                self._held.clear()
                self._match(line)

    def _begun(self) -> bytes:
        """Returns the incomplete last line of the log if the response's current line continues it; otherwise b"".

        The last line of the log is incomplete if writing was interrupted.
        """
        last = self._tail.rfind(b"\n") + 1
        begun = self._tail[last:]
        goes_on = self._position <= last and not self._is_later() and len(self._held) > len(begun)
        return begun if begun and goes_on and self._held.startswith(begun) else b""

    def _match(self, line: bytes) -> None:
        """Compares a line of the response with the log. Skips the line if the log has it.

        Otherwise writes the line, or only its rest if the log ends with the beginning of the line.
        """
        tail = self._tail
        start = self._position if self._moment <= self._last else max(self._position, self._boundary())
        found = start if tail.startswith(line, start) else tail.find(b"\n" + line, max(0, start - 1)) + 1
        if found or tail.startswith(line, start):
            self._position = found + len(line)
            self._advance(self._base + found)
            return
        self._held += line
        begun = self._begun()
        self._held.clear()
        if begun:
            self._advance(self._base + len(tail) - len(begun))
            self._position, self._matching, self._advances = len(tail), False, False
        else:
            self._stop_matching()
        self._write(line[len(begun) :])

    def _boundary(self) -> int:
        """Returns the end of the last complete line that was in the log when the mark was recorded, in bytes after the
        mark's `offset`."""
        return self._tail.rfind(b"\n", 0, self._later) + 1

    def _write(self, data: bytes) -> None:
        if self._is_torn:  # the previous pod left a line without an end
            self._out += b"\n"
            self._is_torn = False
        if self._advances:
            self._advance(self._log.size + len(self._out))
            self._marks.append((len(self._out), self._moment // MILLION))
        self._advances = False
        self._out += data

    def _advance(self, offset: int) -> None:
        """Moves the mark to the response's current line, if this line is the first one of a later second.

        The mark is always at the first line of a second, because requests can ask only for lines since a whole second.
        `offset` is the byte at which the current line begins in the log.
        """
        second = self._moment // BILLION
        if second > self._mark.since:
            self._mark = replace(self._mark, since=second, offset=offset)
        if self._moment > self._mark.last:
            self._mark = replace(self._mark, last=self._moment)

    def _flush(self) -> None:
        if self._out:
            data = bytes(self._out)
            self._out.clear()
            self._log.write(data, self._marks)
            self._marks = []
            self._mark = replace(self._mark, size=self._log.size)
            self._fresh = self._log.size
            self._new(data, self._moment)
