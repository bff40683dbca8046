"""Reads a worker's log and splits it for pages.

A log is split into pieces, each with its byte offset. A piece is a line with its line end, or a part of a long line.
The pieces in the order of their offsets make up the log, without gaps or repetition. Invalid UTF-8 is shown as �.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from django.db.models import Max

from accounting.core.clock import now_from_database
from scheduling.backends.base import Backend
from scheduling.backends.logtimes import Moment, Times
from scheduling.models import Job, Lease

READ = 64 * 1024
# The last lines of a job may arrive this long after its end.
STRAGGLERS = timedelta(minutes=5)
LONGEST_PIECE = 8 * 1024  # bytes; a longer line is cut into several pieces

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

    @property
    def key(self) -> int:
        """Returns what identifies the log in its group: the rank, as the logs of a group are those of one job."""
        return self.rank

    def placed(self, moment: Moment, before: Moment) -> Moment:
        """Returns the moment by which a group orders a line that was written at `moment`. `before` is that of the line
        before it."""
        return moment

    def size(self) -> int:
        return self.backend.log_size(job_id=self.job_id, rank=self.rank)

    def read(self, offset: int, limit: int = READ) -> bytes:
        return self.backend.read_log(job_id=self.job_id, rank=self.rank, offset=offset, limit=limit).data

    def times(self, begin: int, end: int) -> Times:
        return self.backend.log_times(job_id=self.job_id).times(self.rank, begin, end)

    def offset_after(self, moment: Moment) -> int | None:
        """Returns the offset of the first byte that was written later than `moment`; None if no byte was."""
        return self.backend.log_times(job_id=self.job_id).offset_after(self.rank, moment)

    def last(self, offset: int, end: LogEnd, limit: int = READ) -> tuple[bytes, bool]:
        """Reads at most `limit` bytes of an ended job's log, beginning at `offset`. `end` is the result of `log_end`
        for the job.

        Returns a pair: the bytes, and whether the log ends after them.
        """
        chunk = self.backend.read_log(
            job_id=self.job_id, rank=self.rank, offset=offset, limit=limit, last_attempt=end.last_attempt
        )
        return chunk.data, chunk.complete or (end.is_overdue and not chunk.data)

    def further(self, offset: int, end: LogEnd | None, limit: int) -> tuple[bytes, bool]:
        """Reads at most `limit` bytes of a growing log from `offset` on. `end` is None while the job has not ended.

        Returns a pair: the bytes, and whether the log ends after them.
        """
        return self.last(offset, end, limit) if end else (self.read(offset, limit), False)

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
