"""Searches the logs of a group of workers: a text or a regular expression, in the lines as people read them.

Colours and other escape sequences do not count. The engine is RE2, whose time is linear in the text for every pattern.
A part of a log is searched as a whole, because that is many times faster than line by line.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import NamedTuple

import re2

from portal.jobs.log_group import LogGroup, Position
from portal.jobs.logs import LogFile
from scheduling.backends.logtimes import UNKNOWN, Moment
from scheduling.spec.job_spec import why_no_pattern

# The limits of one search. Another search continues where this one stopped.
SEARCH_PIECE = 1024 * 1024  # bytes of one read
SEARCH_BYTES = 1024 * 1024 * 1024
SEARCH_SECONDS = 5.0
FEW = 32  # matches in one read whose times are looked up one by one
# Escape sequences, as static/js/log.js knows them.
ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b\n]*+(?:\x07|\x1b\\)?|[ -~]?)")
RETURNS = re.compile(rb"(?<!\r)\r++(?=\n|\Z)")  # between the end of a line and its line feed
# Patterns that need lines one by one: those that speak of the text's ends, or change how lines count.
BY_LINE = re.compile(r"\\[AzC]|\(\?[a-zA-Z]*[m-]")


class BadPattern(Exception):
    """Raised if the search pattern is not a valid RE2 regular expression."""


class Lines:
    """Finds the lines that contain a text or match a regular expression. Ignores case."""

    def __init__(self, text: str, *, regex: bool) -> None:
        """Raises BadPattern if `regex` is set and `text` is not a valid regular expression."""
        options = re2.Options()
        options.case_sensitive = False
        options.literal = not regex
        options.log_errors = False
        options.never_nl = True  # a match never spans lines
        options.encoding = re2.Options.Encoding.UTF8
        try:
            self._of_line = re2.compile(text, options)
            self._of_text = re2.compile(f"(?m){text}" if regex else text, options)
        except re2.error as error:
            raise BadPattern(why_no_pattern(error)) from None
        self._by_line = regex and BY_LINE.search(text) is not None

    def starts(self, data: bytes) -> Iterator[int]:
        """Yields the positions at which the matching lines of `data` begin, in ascending order."""
        if self._by_line or not _is_utf8(data):
            return self._starts_by_line(data)
        seen = _seen(data)
        return self._starts(data) if seen is data else self._starts_in_seen(data, seen)

    def _starts(self, data: bytes) -> Iterator[int]:
        position = 0
        while position < len(data) and (found := self._of_text.search(data, position)):
            begin = data.rfind(b"\n", position, found.start()) + 1 or position
            if begin == len(data):
                return
            yield begin
            newline = data.find(b"\n", found.start())
            if newline < 0:
                return
            position = newline + 1

    def _starts_in_seen(self, data: bytes, seen: bytes) -> Iterator[int]:
        """Like `_starts`, but searches in `seen`, which has the same lines as `data` without what people do not
        see."""
        of_seen: list[int] = []
        of_data: list[int] = []
        for begin in self._starts(seen):
            if not of_seen:
                of_seen, of_data = _line_starts(seen), _line_starts(data)
            yield of_data[bisect_right(of_seen, begin) - 1]

    def _starts_by_line(self, data: bytes) -> Iterator[int]:
        position = 0
        for line in data.split(b"\n"):
            if position == len(data):
                return
            if self._of_line.search(_seen(line).decode("utf-8", "replace")):
                yield position
            position += len(line) + 1


def _seen(data: bytes) -> bytes:
    """Returns the text as people see it; `data` itself if it has nothing else."""
    if b"\x1b" in data:
        data = ESCAPES.sub(b"", data)
    return RETURNS.sub(b"", data) if b"\r" in data else data


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _line_starts(data: bytes) -> list[int]:
    starts, position = [0], 0
    for line in data.split(b"\n"):
        position += len(line) + 1
        starts.append(position)
    return starts


class Found(NamedTuple):
    """A matching line of a worker's log. In a group of the logs of several jobs, `rank` is the id of the job."""

    rank: int
    offset: int


@dataclass
class _Searched:
    """How far the log of one worker has been searched: up to the offset `at`, of `size` bytes, where `moment` is that
    of the last line. `waiting` has the matching lines before which lines of other workers may come."""

    file: LogFile
    at: int
    size: int
    moment: Moment | None = None  # None before the first read
    waiting: list[tuple[Moment, int]] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return self.at >= self.size

    @property
    def order(self) -> tuple[Moment, int]:
        return (UNKNOWN if self.moment is None else self.moment), self.file.key


class Search:
    """A search for the matching lines of a group of logs, in the group's order, from the position `begin` on.

    The search stops when it has found `most` lines, read SEARCH_BYTES bytes, or taken SEARCH_SECONDS seconds.
    """

    def __init__(
        self, group: LogGroup, text: str, *, regex: bool, most: int, begin: Position | None = None
    ) -> None:
        """Prepares the search. Raises BadPattern if `regex` is set and `text` is not a valid regular expression."""
        self._lines = Lines(text, regex=regex)
        self._group, self._most = group, most
        self._begin = begin or group.start
        self._searched: list[_Searched] | None = None
        self._bytes_left = SEARCH_BYTES
        self._until = time.monotonic() + SEARCH_SECONDS
        self.found: list[Found] = []

    def look(self) -> bool:
        """Reads and searches the next part of a log, of at most SEARCH_PIECE bytes.

        Returns True if the caller must call `look` again, because the search is not over. Raises LogUnreadable if a log
        cannot be read.
        """
        if self._searched is None:
            sizes = self._group.sizes()
            self._searched = [
                _Searched(file, at, size)
                for file, at, size in zip(self._group.files, self._begin, sizes, strict=True)
            ]
        left = [each for each in self._searched if not each.is_done]
        if not left or self._is_enough():
            return False
        self._search_part(min(left, key=lambda each: (each.moment is not None, each.order)))
        self._collect()
        return True

    @property
    def next(self) -> Position | None:
        """Returns the position at which another search can continue; None if this one reached the end of the logs."""
        if self._searched is None:
            return self._begin
        if all(each.is_done and not each.waiting for each in self._searched):
            return None
        return tuple(each.waiting[0][1] if each.waiting else each.at for each in self._searched)

    def _is_enough(self) -> bool:
        return len(self.found) >= self._most or self._bytes_left <= 0 or time.monotonic() > self._until

    def _search_part(self, log: _Searched) -> None:
        limit = min(SEARCH_PIECE, self._bytes_left, log.size - log.at)
        data = log.file.read(log.at, limit)
        if not data:  # the log has become shorter
            log.at = log.size
            return
        self._bytes_left -= len(data)
        if log.at + len(data) < log.size and (end := data.rfind(b"\n") + 1):
            data = data[:end]
        starts = list(islice(self._lines.starts(data), self._most - len(log.waiting) + 1))
        reached = len(data)
        if len(log.waiting) + len(starts) > self._most:
            reached = starts.pop()
        moments = self._moments(log, [log.at + start for start in starts], log.at + reached - 1)
        log.waiting += zip(moments, (log.at + start for start in starts), strict=False)
        log.moment = moments[-1]
        log.at += reached

    def _moments(self, log: _Searched, offsets: list[int], last: int) -> list[Moment]:
        """Returns the moments of some bytes of a log, in ascending order, and that of its byte `last`."""
        before = log.moment or UNKNOWN

        def later(last: Moment, moment: Moment) -> Moment:
            return max(last, log.file.placed(moment, last))

        if len(self._group.files) == 1:  # needs no order
            return [before] * (len(offsets) + 1)
        asked = [*offsets, last]
        if len(offsets) > FEW:
            times = log.file.times(asked[0], last + 1)
            found = [times.of(offset) for offset in asked]
        else:
            found = [log.file.times(offset, offset + 1).of(offset) for offset in asked]
        return list(accumulate(found, later, initial=before))[1:]

    def _collect(self) -> None:
        """Moves the waiting lines that no line can precede any more to `found`."""
        logs: Sequence[_Searched] = self._searched or ()
        until = min(
            (None if each.moment is None else each.order for each in logs if not each.is_done),
            key=lambda order: (order is not None, order),
            default=(Moment(2**63, 0), 0),
        )
        if until is None:
            return
        waiting = sorted(
            (moment, each.file.key, offset)
            for each in logs
            for moment, offset in each.waiting
            if (moment, each.file.key) <= until
        )
        for _, key, offset in waiting[: self._most - len(self.found)]:
            self.found.append(Found(key, offset))
            next(each for each in logs if each.file.key == key).waiting.pop(0)


def search(
    group: LogGroup, text: str, *, regex: bool, most: int, begin: Position | None = None
) -> tuple[list[Found], Position | None]:
    """Runs a whole search. Returns the matching lines, and the position at which another search can continue.

    Raises BadPattern for an invalid regular expression, and LogUnreadable if a log cannot be read.
    """
    one = Search(group, text, regex=regex, most=most, begin=begin)
    while one.look():
        continue
    return one.found, one.next
