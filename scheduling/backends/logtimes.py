"""When each part of a log was written, and by which attempt: the file `rank-N.times` beside the log of a rank.

The file is a sequence of records of a fixed size. A record says that the bytes from its offset on were written at its
time. It is appended before these bytes. After a crash or a disk error, records may name bytes that never arrived: a
later record with the same or a lower offset replaces them.

Within an attempt times never decrease, even if the machine's clock is set back, and attempts never decrease. So the
pair (attempt, time) orders the lines of a log as the log itself does.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

RECORD = struct.Struct("<QQI")  # offset in bytes, milliseconds of Unix time, attempt
LATEST = 253_402_214_399_999  # a day before the end of the year 9999, so that every time zone has it
MOST_BYTES = 64 * 1024 * 1024  # of the file; later lines then have the time of its last record


class Moment(NamedTuple):
    """The attempt that wrote a line, and the time in milliseconds of Unix time. (0, 0) if neither is known."""

    attempt: int
    at: int


UNKNOWN = Moment(0, 0)


class TimesWriter:
    """Appends records to an open file of times."""

    def __init__(self, fd: int | None, attempt: int) -> None:
        """Takes over the file descriptor `fd`, which must be open for reading and appending. None drops all times."""
        self._fd = fd
        self._attempt = attempt
        self._last = UNKNOWN
        self._is_full = False
        if fd is not None:
            self._continue(fd)

    def note(self, marks: Iterable[tuple[int, int]]) -> None:
        """Records pairs of an offset and a time (milliseconds of Unix time). Never raises an error: a log without times
        is still a log.
        """
        if self._fd is None or self._is_full:
            return
        records = bytearray()
        for offset, at in marks:
            moment = Moment(self._attempt, at)
            if moment > self._last:
                records += RECORD.pack(offset, at, self._attempt)
                self._last = moment
        if not records:
            return
        try:
            written = os.write(self._fd, records)
            self._is_full = written < len(records) or os.fstat(self._fd).st_size >= MOST_BYTES
        except OSError:
            self._is_full = True

    def begin_attempt(self, attempt: int) -> None:
        """Says that the bytes that follow belong to the attempt `attempt`."""
        self._attempt = attempt

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _continue(self, fd: int) -> None:
        """Reads the last record. Removes a record that a crash left incomplete."""
        try:
            size = os.fstat(fd).st_size
            whole = size - size % RECORD.size
            if whole != size:
                os.ftruncate(fd, whole)
            if whole:
                _, at, attempt = RECORD.unpack(os.pread(fd, RECORD.size, whole - RECORD.size))
                # An attempt whose number is higher than ours would hide all of our times.
                self._last = Moment(min(attempt, self._attempt), at if attempt == self._attempt else 0)
            self._is_full = whole >= MOST_BYTES
        except OSError:
            self._is_full = True


@dataclass(frozen=True)
class Times:
    """The times of a part of a log."""

    offsets: Sequence[int]
    moments: Sequence[Moment]

    def of(self, offset: int) -> Moment:
        """Returns when, and by which attempt, the byte at `offset` was written."""
        index = bisect_right(self.offsets, offset) - 1
        return self.moments[index] if index >= 0 else UNKNOWN


NO_TIMES = Times((), ())


class LogTimes(Protocol):
    """Reads the times of a job's logs."""

    def times(self, rank: int, begin: int, end: int) -> Times:
        """Returns when the bytes of a rank's log from offset `begin` to offset `end` were written, as far as known."""

    def offset_after(self, rank: int, moment: Moment) -> int | None:
        """Returns the offset of the first byte that was written later than `moment`; None if no byte was."""

    def attempts(self, rank: int, most: int) -> list[tuple[int, Moment]]:
        """Returns where each of the last `most` attempts begins in a rank's log, oldest first: pairs of an offset and
        its moment."""


class TimesReader:
    """Reads an open file of times. A job may have changed the file, so it is read without trust in its order."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._count = min(os.fstat(fd).st_size, 2 * MOST_BYTES) // RECORD.size

    def between(self, begin: int, end: int) -> Times:
        """Returns the times of the bytes from offset `begin` to offset `end`."""
        first = max(0, self._first(lambda offset, _: offset > begin) - 1)
        after = self._first(lambda offset, _: offset >= end)
        # Each byte has at most one record in a file that Fairlot wrote.
        return _in_order(self._records(first, min(max(after - first, 0), end - begin + 1)))

    def offset_after(self, moment: Moment) -> int | None:
        """Returns the offset of the first byte that was written later than `moment`; None if no byte was."""
        index = self._first(lambda _, found: found > moment)
        records = self._records(index, 1)
        return records[0][0] if records else None

    def attempts(self, most: int) -> list[tuple[int, Moment]]:
        """Returns where each attempt begins, oldest first: pairs of an offset and its moment; at most the last `most`
        attempts."""
        found: list[tuple[int, Moment]] = []
        until = self._count
        while until > 0 and len(found) < most:
            last = self._records(until - 1, 1)
            if not last:
                break
            until = min(until - 1, self._first_of(last[0][1].attempt))
            found += self._records(until, 1)
        found.reverse()
        return found

    def _first_of(self, attempt: int) -> int:
        return self._first(lambda _, moment: moment.attempt >= attempt)

    def _first(self, holds: Callable[[int, Moment], bool]) -> int:
        """Returns the index of the first record for which `holds` is true, by binary search."""
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            records = self._records(middle, 1)
            if not records or holds(*records[0]):
                high = middle
            else:
                low = middle + 1
        return low

    def _records(self, index: int, most: int) -> list[tuple[int, Moment]]:
        data = os.pread(self._fd, min(most, self._count - index) * RECORD.size, index * RECORD.size)
        whole = data[: len(data) - len(data) % RECORD.size]
        return [
            (offset, Moment(attempt, min(at, LATEST))) for offset, at, attempt in RECORD.iter_unpack(whole)
        ]


def _in_order(records: Sequence[tuple[int, Moment]]) -> Times:
    """Removes the records that later ones replace, and makes moments ascend."""
    kept: list[tuple[int, Moment]] = []
    for offset, moment in records:
        while kept and kept[-1][0] >= offset:
            kept.pop()
        kept.append((offset, max(moment, kept[-1][1]) if kept else moment))
    return Times([offset for offset, _ in kept], [moment for _, moment in kept])
