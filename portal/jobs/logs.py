"""Logs for pages: bytes cut into pieces of lines, each with its offset.

A piece is a line with its end, or a part of a line. The pieces in order of their offsets are the log: nothing is
missing or repeated. Invalid UTF-8 is shown as �.
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
# The last lines of an ended job may come this much later.
STRAGGLERS = timedelta(minutes=5)
LONGEST_PIECE = 8 * 1024  # bytes; longer lines come in several pieces
# Of one search. What is further down the log is searched by the next one, which begins where this one ended.
SEARCH_PIECE = 1024 * 1024  # bytes that are read at once
SEARCH_BYTES = 64 * 1024 * 1024
SEARCH_SECONDS = 5.0

Piece = tuple[int, str]


@dataclass(frozen=True)
class LogEnd:
    """The end of an ended job's logs: they are complete with the last attempt that ran, 0 if none did.

    If a machine was lost, or nobody followed it, they never are: after a while nothing more is expected.
    """

    last_attempt: int
    is_overdue: bool


def log_end(job_id: int) -> LogEnd | None:
    """Returns the end; None while more attempts may come."""
    job = Job.objects.filter(pk=job_id, state__in=Job.ENDED).only("ended_at").first()
    if job is None:
        return None
    ran = Lease.objects.filter(job=job_id, running_from__isnull=False)
    last = ran.aggregate(last=Max("epoch"))["last"] or 0
    is_overdue = job.ended_at is not None and now_from_database() - job.ended_at > STRAGGLERS
    return LogEnd(last, is_overdue)


@dataclass(frozen=True)
class LogFile:
    """One rank's log."""

    backend: Backend
    job_id: int
    rank: int

    def size(self) -> int:
        return self.backend.log_size(job_id=self.job_id, rank=self.rank)

    def read(self, offset: int, limit: int = READ) -> bytes:
        return self.backend.read_log(job_id=self.job_id, rank=self.rank, offset=offset, limit=limit).data

    def last(self, offset: int, end: LogEnd) -> tuple[bytes, bool]:
        """Returns the rest of an ended job's log from `offset` on, and whether it is complete."""
        chunk = self.backend.read_log(
            job_id=self.job_id, rank=self.rank, offset=offset, limit=READ, last_attempt=end.last_attempt
        )
        return chunk.data, chunk.complete or (end.is_overdue and not chunk.data)

    def chunks(self, begin: int, end: int) -> Iterator[bytes]:
        """Yields the bytes from `begin` to `end`, or to the end of the log."""
        while begin < end and (data := self.read(begin, min(READ, end - begin))):
            yield data
            begin += len(data)

    def line_start(self, offset: int) -> int:
        """Returns the start of the line that contains `offset`; searches back at most LONGEST_PIECE."""
        begin = max(0, offset - LONGEST_PIECE)
        before = b"".join(self.chunks(begin, offset))
        newline = before.rfind(b"\n")
        return begin + newline + 1 if newline >= 0 else begin + _partial_head(before)

    def between(self, begin: int, end: int) -> list[Piece]:
        """Returns the pieces from `begin` to `end`, which are both line starts."""
        pieces, _ = split(b"".join(self.chunks(begin, end)), begin, flush=True)
        return pieces


def split(data: bytes, offset: int, *, flush: bool) -> tuple[list[Piece], int]:
    """Cuts `data`, which begins at `offset`, into pieces; also returns the offset that they reach.

    Without `flush` an unfinished last line is left for later, when more of it is there.
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
    """Returns lines that end with a line feed; a carriage return alone overwrites its line."""
    lines = data.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _parts(line: bytes, *, whole: bool) -> Iterator[bytes]:
    """Yields pieces of a line of at most LONGEST_PIECE, never cut inside a character.

    If the line is unfinished, the first bytes of an incomplete character are left for later.
    """
    while len(line) > LONGEST_PIECE:
        cut = LONGEST_PIECE - _partial_tail(line[:LONGEST_PIECE])
        yield line[:cut]
        line = line[cut:]
    rest = line if whole else line[: len(line) - _partial_tail(line)]
    if rest:
        yield rest


def _partial_tail(data: bytes) -> int:
    """Returns how many bytes at the end begin an incomplete UTF-8 character."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue  # a later byte of a character
        need = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 1
        return back if need > back else 0
    return 0


def _partial_head(data: bytes) -> int:
    """Returns how many bytes at the start belong to a character that begins before."""
    head = 0
    while head < min(3, len(data)) and data[head] & 0xC0 == 0x80:
        head += 1
    return head


@dataclass(frozen=True)
class Found:
    """Matching lines by their offsets; `next` is where a further search continues, None at the end."""

    offsets: list[int]
    next: int | None

    @property
    def complete(self) -> bool:
        return self.next is None


class BadPattern(Exception):
    """The pattern is not a valid RE2 regular expression."""


class Search:
    """Finds the lines of a log that contain `text`, ignoring case, from byte `begin` on.

    It ends after `most` lines, SEARCH_BYTES, or SEARCH_SECONDS, whichever comes first.
    """

    def __init__(self, log: LogFile, text: str, *, regex: bool, most: int, begin: int = 0) -> None:
        """Prepares the search. Raises BadPattern."""
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
        self._at = begin  # start of the first line that is not searched yet
        self._rest = b""  # the part of it that was read
        self._end: int | None = None  # of the log at the first read
        self._until_byte = begin + SEARCH_BYTES
        self._until = time.monotonic() + SEARCH_SECONDS
        self._next: int | None = None

    def look(self) -> bool:
        """Searches the next piece; returns whether there is more to search. Raises LogUnreadable."""
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
    """Returns everything that one search finds. Raises BadPattern, LogUnreadable."""
    one = Search(log, text, regex=regex, most=most, begin=begin)
    while one.look():
        continue
    return one.found
