"""Logs are cut into pieces of whole lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.jobs.logs import LONGEST_PIECE, LogFile, split
from scheduling.backends.base import LogChunk

TEXTS = st.text(alphabet="aé日🙂\r\n\x1b", max_size=60)


@dataclass
class Held:
    """A log in memory that stands in for a Backend: it has the methods of Backend that LogFile calls."""

    data: bytes
    reads: list[int] = field(default_factory=list)

    def log_size(self, *, job_id: int, rank: int) -> int:
        return len(self.data)

    def read_log(self, *, job_id: int, rank: int, offset: int, limit: int, last_attempt: int = 0) -> LogChunk:
        self.reads.append(limit)
        piece = self.data[offset : offset + limit]
        return LogChunk(rank, offset, offset + len(piece), piece, complete=False)


def log(data: bytes) -> LogFile:
    return LogFile(Held(data), job_id=1, rank=0)


@given(TEXTS, st.lists(st.integers(0, 200), max_size=6), st.booleans())
def test_pieces_are_the_log_whatever_the_cuts(text: str, cuts: list[int], flush: bool) -> None:
    """A reader of a growing log gets each byte once and in order, and no character is cut in two.

    - `cuts`: the sizes of the log at which it is read.
    - `flush`: whether the reader also gets an unfinished last line.
    """
    data, pieces, at = text.encode(), [], 0
    for end in [*sorted(cut for cut in cuts if cut < len(data)), len(data)]:
        got, reached = split(data[at:end], at, flush=flush)
        assert at <= reached <= end
        pieces, at = pieces + got, reached
    got, at = split(data[at:], at, flush=True)
    pieces += got
    assert at == len(data)
    assert "".join(text for _, text in pieces) == text
    assert all(
        offset + len(text.encode()) == following for (offset, text), (following, _) in pairwise(pieces)
    )


@given(st.binary(max_size=200))
def test_binary_never_stops_the_log(data: bytes) -> None:
    pieces, reached = split(data, 0, flush=True)
    assert len(data) - reached <= 3  # at most an incomplete UTF-8 character is left
    assert all(offset < reached for offset, _ in pieces)


def test_without_a_line_end_a_line_waits_until_it_rests_or_is_long() -> None:
    assert split(b"50%", 7, flush=False) == ([], 7)
    assert split(b"50%", 7, flush=True) == ([(7, "50%")], 10)
    pieces, reached = split(b"x" * (LONGEST_PIECE + 5), 0, flush=False)
    assert [len(text) for _, text in pieces] == [LONGEST_PIECE, 5]
    assert reached == LONGEST_PIECE + 5


def test_a_long_line_is_cut_between_characters() -> None:
    pieces, _ = split(("é" * LONGEST_PIECE).encode() + b"\n", 1, flush=False)
    assert all("�" not in text for _, text in pieces)
    assert "".join(text for _, text in pieces) == "é" * LONGEST_PIECE + "\n"


@pytest.mark.parametrize(("offset", "start"), [(0, 0), (3, 0), (4, 4), (6, 4), (9, 8)])
def test_the_start_of_the_line_around_an_offset(offset: int, start: int) -> None:
    assert log(b"one\ntwo\nthree").line_start(offset) == start
