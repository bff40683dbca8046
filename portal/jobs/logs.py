"""Reads, splits and searches logs for pages.

A log is split into pieces, each with its byte offset. A piece is a line with its line end, or a part of a long line.
The pieces in the order of their offsets make up the log, without gaps or repetition. Invalid UTF-8 is shown as �.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import re2
from django.db.models import Max

from accounting.core.clock import now_from_database
from scheduling.backends.base import Backend
from scheduling.models import Job, Lease
from scheduling.spec.job_spec import why_no_pattern

READ = 64 * 1024
# The last lines of a job may arrive this long after its end.
STRAGGLERS = timedelta(minutes=5)
LONGEST_PIECE = 8 * 1024  # bytes; a longer line is cut into several pieces
# The limits of one search. Another search continues where this one stopped.
SEARCH_PIECE = 1024 * 1024  # bytes of one read
SEARCH_BYTES = 64 * 1024 * 1024
SEARCH_SECONDS = 5.0

Piece = tuple[int, str]


@dataclass(frozen=True)
class LogEnd:
    """The state of the logs of an ended job.

    `last_attempt` is the number of the last attempt that ran; 0 if none ran. `is_overdue` says that no more output is
    expected, because the job ended more than STRAGGLERS ago. A log can stay incomplete forever, for example if a node
    was lost.
    """

    last_attempt: int
    is_overdue: bool


def log_end(job_id: int) -> LogEnd | None:
    """Returns the state of the logs of an ended job; None if the job has not ended."""
    job = Job.objects.filter(pk=job_id, state__in=Job.ENDED).only("ended_at").first()
    if job is None:
        return None
    ran = Lease.objects.filter(job=job_id, running_from__isnull=False)
    last = ran.aggregate(last=Max("epoch"))["last"] or 0
    is_overdue = job.ended_at is not None and now_from_database() - job.ended_at > STRAGGLERS
    return LogEnd(last, is_overdue)


@dataclass(frozen=True)
class LogFile:
    """The log of one worker of a job."""

    backend: Backend
    job_id: int
    rank: int

    def size(self) -> int:
        return self.backend.log_size(job_id=self.job_id, rank=self.rank)

    def read(self, offset: int, limit: int = READ) -> bytes:
        return self.backend.read_log(job_id=self.job_id, rank=self.rank, offset=offset, limit=limit).data

    def last(self, offset: int, end: LogEnd) -> tuple[bytes, bool]:
        """Reads at most READ bytes of an ended job's log, beginning at `offset`. `end` is the result of `log_end` for
        the job.

        Returns a pair: the bytes, and whether the log ends after them.
        """
        chunk = self.backend.read_log(
            job_id=self.job_id, rank=self.rank, offset=offset, limit=READ, last_attempt=end.last_attempt
        )
        return chunk.data, chunk.complete or (end.is_overdue and not chunk.data)

    def chunks(self, begin: int, end: int) -> Iterator[bytes]:
        """Yields the bytes from offset `begin` to offset `end`, in chunks. Stops earlier if the log ends before
        `end`."""
        while begin < end and (data := self.read(begin, min(READ, end - begin))):
            yield data
            begin += len(data)

    def line_start(self, offset: int) -> int:
        """Returns the offset at which the line that contains `offset` begins.

        If the line begins more than LONGEST_PIECE bytes earlier, returns the start of a character about LONGEST_PIECE
        bytes before `offset`.
        """
        begin = max(0, offset - LONGEST_PIECE)
        before = b"".join(self.chunks(begin, offset))
        newline = before.rfind(b"\n")
        return begin + newline + 1 if newline >= 0 else begin + _partial_head(before)

    def between(self, begin: int, end: int) -> list[Piece]:
        """Returns the pieces from offset `begin` to offset `end`. Both offsets must be starts of lines."""
        pieces, _ = split(b"".join(self.chunks(begin, end)), begin, flush=True)
        return pieces


def split(data: bytes, offset: int, *, flush: bool) -> tuple[list[Piece], int]:
    """Splits `data`, which begins at byte `offset` of the log, into pieces.

    Returns the pieces, and the offset after the last piece. Without `flush`, leaves out an unfinished last line, so
    that the next call can return the whole line.
    """
    pieces: list[Piece] = []
    at = 0
    for line in _lines(data):
        finished = line.endswith(b"\n")
        if not finished and not flush and len(line) < LONGEST_PIECE:
            break
        for part in _parts(line, whole=finished):
            pieces.append((offset + at, part.decode("utf-8", "replace")))
            at += len(part)
    return pieces, offset + at


def _lines(data: bytes) -> list[bytes]:
    """Splits `data` into lines. Each line includes its line feed; the last line has none if `data` ends within the
    line.

    A carriage return does not end a line.
    """
    lines = data.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _parts(line: bytes, *, whole: bool) -> Iterator[bytes]:
    """Yields the line in parts of at most LONGEST_PIECE bytes, split only between characters.

    `whole` is False if more bytes of the line may follow. An incomplete UTF-8 character at the end is then left out.
    """
    while len(line) > LONGEST_PIECE:
        cut = LONGEST_PIECE - _partial_tail(line[:LONGEST_PIECE])
        yield line[:cut]
        line = line[cut:]
    rest = line if whole else line[: len(line) - _partial_tail(line)]
    if rest:
        yield rest


def _partial_tail(data: bytes) -> int:
    """Returns the number of bytes of an incomplete UTF-8 character at the end of `data`; 0 if the last character is
    complete."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue  # a continuation byte
        need = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 1
        return back if need > back else 0
    return 0


def _partial_head(data: bytes) -> int:
    """Returns how many bytes at the start of `data` belong to a UTF-8 character that began before `data`."""
    head = 0
    while head < min(3, len(data)) and data[head] & 0xC0 == 0x80:
        head += 1
    return head


@dataclass(frozen=True)
class Found:
    """The result of a log search: the offsets of the matching lines.

    `next` is the offset at which another search can continue; None if the search reached the end of the log.
    """

    offsets: list[int]
    next: int | None

    @property
    def complete(self) -> bool:
        return self.next is None


class BadPattern(Exception):
    """Raised if the search pattern is not a valid RE2 regular expression."""


class Search:
    """A search for the lines of a log that contain or match `text`. It ignores case, and begins at the byte offset
    `begin`.

    The search stops when it has found `most` lines, read SEARCH_BYTES bytes, or taken SEARCH_SECONDS seconds.
    """

    def __init__(self, log: LogFile, text: str, *, regex: bool, most: int, begin: int = 0) -> None:
        """Prepares the search. Raises BadPattern if `regex` is set and `text` is not a valid regular expression."""
        options = re2.Options()
        options.case_sensitive = False
        options.literal = not regex
        options.log_errors = False
        options.encoding = re2.Options.Encoding.UTF8
        try:
            self._pattern = re2.compile(text, options)
        except re2.error as error:
            raise BadPattern(why_no_pattern(error)) from None
        self._log, self._most = log, most
        self._offsets: list[int] = []
        self._at = begin  # start of the first line that has not been searched
        self._rest = b""  # the part of that line that has been read
        self._end: int | None = None  # length of the log when the search began
        self._until_byte = begin + SEARCH_BYTES
        self._until = time.monotonic() + SEARCH_SECONDS
        self._next: int | None = None

    def look(self) -> bool:
        """Reads and searches the next part of the log, of at most SEARCH_PIECE bytes.

        Returns True if the caller must call `look` again, because the search is not over. Raises LogUnreadable if the
        log cannot be read.
        """
        if self._end is None:
            self._end = self._log.size()
        read = self._at + len(self._rest)
        data = self._log.read(read, min(SEARCH_PIECE, self._end - read)) if read < self._end else b""
        lines = _lines(self._rest + data)
        if data and lines and not lines[-1].endswith(b"\n") and len(lines[-1]) < READ:
            self._rest = lines.pop()
        else:
            self._rest = b""
        for line in lines:
            if self._is_enough():
                self._next = self._at
                return False
            if self._pattern.search(line.rstrip(b"\r\n").decode("utf-8", "replace")):
                self._offsets.append(self._at)
            self._at += len(line)
        return bool(data)

    @property
    def found(self) -> Found:
        return Found(self._offsets, self._next)

    def _is_enough(self) -> bool:
        return (
            len(self._offsets) == self._most or self._at >= self._until_byte or time.monotonic() > self._until
        )


def search(log: LogFile, text: str, *, regex: bool, most: int, begin: int = 0) -> Found:
    """Runs a whole search and returns its result.

    Raises BadPattern for an invalid regular expression, and LogUnreadable if the log cannot be read.
    """
    one = Search(log, text, regex=regex, most=most, begin=begin)
    while one.look():
        continue
    return one.found
