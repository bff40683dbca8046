"""Merges the logs of several workers by time. A group of one worker is that worker's log.

The lines of a group have one order: by attempt, then by time, then by rank. Lines of a worker stay in the order of its
log. A position in a group has an offset for each worker, so that no line is lost or repeated if a worker's lines arrive
late: while a job runs, such lines come after those that were there before. All reading is bounded, and continues at the
position where it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import merge
from typing import NamedTuple

from portal.jobs import logs
from portal.jobs.logs import LONGEST_PIECE, LogEnd, LogFile, split
from scheduling.backends.logtimes import UNKNOWN, Moment
from scheduling.clusters.backend_factory import backend_for
from scheduling.models import Job

MOST_RANKS = 64
LEAST_READ = 2 * LONGEST_PIECE  # bytes of one worker that are read at once, however many there are

Position = tuple[int, ...]  # an offset for each file of a group


class Line(NamedTuple):
    """A piece of the log of the worker `rank`: a line with its line end, or a part of a long line. `at` is the time in
    milliseconds of Unix time. `at` and `attempt` are 0 if they are not known. In a group of the logs of several jobs,
    `rank` is the id of the job."""

    offset: int
    text: str
    rank: int
    at: int
    attempt: int

    @property
    def order(self) -> tuple[Moment, int]:
        """Returns what the lines of a group are ordered by."""
        return Moment(self.attempt, self.at), self.rank


@dataclass(frozen=True)
class Part:
    """A part of one worker's log, from offset `begin` to offset `end`. `is_cut` says whether the log goes on beyond the
    part, in the direction of reading."""

    lines: Sequence[Line]
    begin: int
    end: int
    is_cut: bool


@dataclass(frozen=True)
class Look:
    """What was added to a growing group of logs since the last look.

    `unfinished` has, for each worker, the bytes of a last line that is not finished yet. `is_complete` says that no
    more will come.
    """

    lines: list[Line]
    position: Position
    unfinished: Sequence[int] = field(repr=False)
    is_complete: bool


@dataclass(frozen=True)
class LogGroup:
    """The logs of some workers of a job, at most MOST_RANKS, in the order of their ranks; or those of the replicas of a
    service (portal/services/replica_logs.py)."""

    files: Sequence[LogFile]

    @property
    def start(self) -> Position:
        return (0,) * len(self.files)

    def sizes(self) -> Position:
        return tuple(file.size() for file in self.files)

    def forward(self, begin: Position, want: int) -> tuple[list[Line], Position]:
        """Returns the lines from the position `begin` on, about `want` bytes, and the position after them."""
        limit = self._share(want)
        parts = []
        for file, offset in zip(self.files, begin, strict=True):
            data = b"".join(file.chunks(offset, offset + limit))
            parts.append(_part(file, offset, data, flush=len(data) < limit, is_cut=len(data) == limit))
        return _merge_forward(parts)

    def backward(self, end: Position, want: int) -> tuple[list[Line], Position]:
        """Returns the lines before the position `end`, about `want` bytes, and the position at which they begin."""
        limit = self._share(want)
        parts = []
        for file, offset in zip(self.files, end, strict=True):
            begin = file.line_start(offset - limit) if offset > limit else 0
            data = b"".join(file.chunks(begin, offset))
            parts.append(_part(file, begin, data, flush=True, is_cut=begin > 0))
        return _merge_backward(parts)

    def around(self, rank: int, offset: int, want: int) -> tuple[list[Line], Position, Position]:
        """Returns the lines around a line of one worker, about `want` bytes, with the positions where they begin and
        end."""
        middle = self.position_of(rank, offset)
        before, begin = self.backward(middle, want // 2)
        after, end = self.forward(middle, want // 2)
        return before + after, begin, end

    def position_of(self, rank: int, offset: int) -> Position:
        """Returns the position before the line of the worker `rank` that contains the byte `offset`."""
        own = next(file for file in self.files if file.rank == rank)
        offset = own.line_start(min(offset, own.size()))
        moment = own.times(offset, offset + 1).of(offset)
        before = Moment(moment.attempt, moment.at - 1)

        def offset_in(file: LogFile) -> int:
            if file.rank <= rank:  # lines of the same time are ordered by rank
                return offset if file is own else _first_line_after(file, moment)
            return _first_line_after(file, before) if moment > UNKNOWN else 0

        return tuple(map(offset_in, self.files))

    def look(self, position: Position, unfinished: Sequence[int], end: LogEnd | None) -> Look:
        """Returns the lines that were added since the look that ended at `position` and left `unfinished`.

        `end` is the state of the logs of an ended job; None while the job has not ended. An unfinished line, such as a
        progress bar or a prompt, is returned once two looks have found it unchanged.
        """
        limit = self._share(logs.READ)
        parts, read, is_complete = [], [], True
        for file, offset, rested in zip(self.files, position, unfinished, strict=True):
            data, is_last = file.further(offset, end, limit)
            flush = is_last or 0 < len(data) == rested
            parts.append(_part(file, offset, data, flush=flush, is_cut=len(data) == limit, is_last=is_last))
            read.append(len(data))
            is_complete = is_complete and is_last
        lines, reached = _merge_forward(parts)
        rests = [
            size if offset == begin else 0
            for size, offset, begin in zip(read, reached, position, strict=True)
        ]
        return Look(lines, reached, rests, is_complete and not lines)

    def _share(self, want: int) -> int:
        return max(LEAST_READ, want // max(len(self.files), 1))


def group_of(job: Job, ranks: range) -> LogGroup | None:
    """Returns the logs of some workers of a job; None if the job lacks one of them, and if they are too many."""
    if not 0 < len(ranks) <= MOST_RANKS or ranks[-1] >= len(job.worker_names):
        return None
    backend = backend_for(job.cluster)
    return LogGroup([LogFile(backend, job.pk, rank) for rank in ranks])


def position_from(text: str, group: LogGroup) -> Position | None:
    """Reads a position that `text_of_position` wrote; None if `text` is not a position in this group."""
    offsets = [offset_from(part) for part in text.split(".")]
    known = tuple(offset for offset in offsets if offset is not None)
    return known if len(known) == len(offsets) == len(group.files) else None


def text_of_position(position: Position) -> str:
    """Writes a position: the offset of each worker, separated by dots."""
    return ".".join(map(str, position))


def offset_from(text: str) -> int | None:
    """Reads the offset of a byte; None if `text` is no such number."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 18 else None


def _part(
    file: LogFile, begin: int, data: bytes, *, flush: bool, is_cut: bool, is_last: bool = False
) -> Part:
    """Splits `data`, which begins at offset `begin`, into lines with their times.

    With `is_last`, the log ends after `data`, perhaps within a character.
    """
    pieces, end = split(data, begin, flush=flush)
    if is_last and end < begin + len(data):
        pieces.append((end, data[end - begin :].decode("utf-8", "replace")))
        end = begin + len(data)
    times = file.times(begin, end) if pieces else None
    lines, moment = [], UNKNOWN
    for offset, text in pieces:
        moment = file.placed(times.of(offset) if times else UNKNOWN, moment)
        lines.append(Line(offset, text, file.key, moment.at, moment.attempt))
    return Part(lines, begin, end, is_cut)


def _merge_forward(parts: Sequence[Part]) -> tuple[list[Line], Position]:
    """Merges parts that begin at one position. Returns the lines up to the first that may have lines before it which
    were not read, and the position after them."""
    last = min((part.lines[-1].order for part in parts if part.is_cut and part.lines), default=None)
    kept = [[line for line in part.lines if last is None or line.order <= last] for part in parts]
    ends = tuple(
        part.end if len(lines) == len(part.lines) else part.lines[len(lines)].offset
        for part, lines in zip(parts, kept, strict=True)
    )
    return list(merge(*kept, key=_order)), ends


def _merge_backward(parts: Sequence[Part]) -> tuple[list[Line], Position]:
    """Merges parts that end at one position. Returns the lines after the last that may have lines after it which were
    not read, and the position where they begin."""
    first = max((part.lines[0].order for part in parts if part.is_cut and part.lines), default=None)
    kept = [[line for line in part.lines if first is None or line.order >= first] for part in parts]
    begins = tuple(
        (lines[0].offset if lines else part.end) if part.lines else part.begin
        for part, lines in zip(parts, kept, strict=True)
    )
    return list(merge(*kept, key=_order)), begins


def _order(line: Line) -> tuple[Moment, int]:
    return line.order


def _first_line_after(file: LogFile, moment: Moment) -> int:
    """Returns the offset of a worker's first line that was begun later than `moment`; the log's size if there is
    none."""
    size = file.size()
    found = file.offset_after(moment)
    if found is None or found >= size:
        return size
    if found == 0:
        return 0
    data = file.read(found - 1, LONGEST_PIECE)
    newline = data.find(b"\n")
    if newline < 0 and len(data) < LONGEST_PIECE:  # the log ends with a line that was begun earlier
        return size
    return found + newline if newline >= 0 else found
