"""The logs of several workers are merged by time, without loss or repetition, whichever part is read and whenever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from portal.jobs import log_group, logs
from portal.jobs.log_group import Line, LogGroup, Position
from portal.jobs.log_search import SEARCH_PIECE, BadPattern, Lines, search
from portal.jobs.logs import LogEnd, LogFile
from scheduling.backends.base import LogChunk
from scheduling.backends.logtimes import Moment, Times


@dataclass
class Held:
    """Logs in memory with their times, by rank. Stands in for a backend and for its reader of times."""

    logs: dict[int, bytes] = field(default_factory=dict)
    known: dict[int, list[tuple[int, Moment]]] = field(default_factory=dict)

    def write(self, rank: int, text: str, moment: Moment) -> None:
        log = self.logs.setdefault(rank, b"")
        self.known.setdefault(rank, []).append((len(log), moment))
        self.logs[rank] = log + text.encode()

    def log_size(self, *, job_id: int, rank: int) -> int:
        return len(self.logs.get(rank, b""))

    def read_log(self, *, job_id: int, rank: int, offset: int, limit: int, last_attempt: int = 0) -> LogChunk:
        data = self.logs.get(rank, b"")
        piece = data[offset : offset + limit]
        reached = offset + len(piece)
        return LogChunk(rank, offset, reached, piece, complete=last_attempt > 0 and reached == len(data))

    def log_times(self, *, job_id: int) -> Held:
        return self

    def times(self, rank: int, begin: int, end: int) -> Times:
        known = self.known.get(rank, [])
        return Times([offset for offset, _ in known], [moment for _, moment in known])

    def offset_after(self, rank: int, moment: Moment) -> int | None:
        return next((offset for offset, found in self.known.get(rank, []) if found > moment), None)


def group_of(held: Held, ranks: int) -> LogGroup:
    return LogGroup([LogFile(held, 1, rank) for rank in range(ranks)])


def in_order(held: Held) -> list[Line]:
    """Returns all lines of the logs, each made by the slowest way: split, time by time, sort."""
    lines = []
    for rank, data in held.logs.items():
        offset, times = 0, held.times(rank, 0, len(data))
        for text in data.splitlines(keepends=True):
            moment = times.of(offset)
            lines.append(Line(offset, text.decode(), rank, moment.at, moment.attempt))
            offset += len(text)
    return sorted(lines, key=lambda line: (line.order, line.offset))


RANKS = 3
# What workers write: which one, how many milliseconds later, whether it is the next attempt, and the text.
WRITES = st.lists(
    st.tuples(
        st.integers(0, RANKS - 1),
        st.integers(0, 2),
        st.booleans(),
        st.sampled_from(["a\n", "bb\nneedle\n", "long line of some length\n", "\n", "half", " needle\n"]),
    ),
    max_size=30,
)


def wrote(writes: Sequence[tuple[int, int, bool, str]]) -> Held:
    held, at, attempt = Held(), 1000, 1
    for rank, later, is_next, text in writes:
        at, attempt = at + later, attempt + is_next
        held.write(rank, text, Moment(attempt, at))
    return held


@pytest.fixture(autouse=True)
def _small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (logs, log_group):
        monkeypatch.setattr(module, "LONGEST_PIECE", 40)
    monkeypatch.setattr(log_group, "LEAST_READ", 80)


@given(WRITES, st.integers(1, 200))
def test_read_forward_or_backward_in_parts_the_lines_are_all_there_once_and_in_order(
    writes: list[tuple[int, int, bool, str]], want: int
) -> None:
    held = wrote(writes)
    group, whole = group_of(held, RANKS), in_order(held)
    lines, position = [], group.start
    while (found := group.forward(position, want))[0]:
        lines, position = lines + found[0], found[1]
    assert (_texts(lines), position) == (_texts(whole), group.sizes())
    lines = []
    while (found := group.backward(position, want))[0]:
        lines, position = found[0] + lines, found[1]
    assert (_texts(lines), position) == (_texts(whole), group.start)


def _texts(lines: Sequence[Line]) -> list[tuple[int, str]]:
    """Joins the parts of each line, so that where reading cut a line makes no difference."""
    joined: dict[tuple[int, int], str] = {}
    last: dict[int, tuple[int, int]] = {}
    for line in lines:
        key = last.get(line.rank)
        if key is None or joined[key].endswith("\n"):
            key = last[line.rank] = line.rank, line.offset
        joined[key] = joined.get(key, "") + line.text
    return [(rank, text) for (rank, _), text in joined.items()]


@given(WRITES, st.data())
def test_a_line_has_one_place_from_which_both_directions_are_the_whole(
    writes: list[tuple[int, int, bool, str]], data: st.DataObject
) -> None:
    held = wrote(writes)
    group, whole = group_of(held, RANKS), in_order(held)
    assume(whole and all(len(line.text) < 40 for line in whole))
    index = data.draw(st.integers(0, len(whole) - 1))
    line = whole[index]
    position = group.position_of(line.rank, line.offset)
    before, begin = group.backward(position, 10_000)
    after, end = group.forward(position, 10_000)
    assert (before, after) == (whole[:index], whole[index:])
    assert (begin, end) == (group.start, group.sizes())


@given(WRITES, st.data())
def test_a_reader_that_is_cut_off_at_any_time_and_resumes_gets_each_byte_once(
    writes: list[tuple[int, int, bool, str]], data: st.DataObject
) -> None:
    """The logs grow between looks. A cut forgets all but the last position that the reader has received."""
    held, at, attempt = Held(), 1000, 1
    group = group_of(held, RANKS)
    got: dict[int, str] = dict.fromkeys(range(RANKS), "")
    position: Position = group.start
    unfinished: Sequence[int] = group.start

    def look(end: LogEnd | None) -> bool:
        nonlocal position, unfinished
        found = group.look(position, unfinished, end)
        for line in found.lines:
            got[line.rank] += line.text
        position, unfinished = found.position, found.unfinished
        return found.is_complete

    for rank, later, is_next, text in writes:
        at, attempt = at + later, attempt + is_next
        held.write(rank, text, Moment(attempt, at))
        for _ in range(data.draw(st.integers(0, 2))):
            look(None)
        if data.draw(st.booleans()):
            unfinished = group.start
    while not look(LogEnd(attempt, is_overdue=False)):
        continue
    assert {rank: text.encode() for rank, text in got.items() if text} == {
        rank: log for rank, log in held.logs.items() if log
    }


@given(WRITES, st.integers(1, 5))
def test_a_search_in_parts_finds_the_lines_in_the_order_of_the_group(
    writes: list[tuple[int, int, bool, str]], most: int
) -> None:
    held = wrote(writes)
    group = group_of(held, RANKS)
    expected = [(line.rank, line.offset) for line in in_order(held) if "needle" in line.text]
    found, position = [], group.start
    while position is not None:
        part, position = search(group, "NEEDLE", regex=False, most=most, begin=position)
        assert len(part) <= most
        found += [(rank, offset) for rank, offset in part]
    assert found == expected


# --- lines that match ---------------------------------------------------------------------------

CONTENT = st.lists(
    st.sampled_from(
        [b"a", b"B", "é".encode(), b"\r", b"\n", b"\x1b[31m", b"\x1b[", b"0m", b"\x1b]0;t\x07", b"\xff", b" "]
    ),
    max_size=30,
).map(b"".join)
PATTERNS = [
    "a",
    "ab",
    "^a",
    "a$",
    "^$",
    "a|^b",
    "É",
    r"\s+$",
    r"\Aa",
    r"a\z",
    "(?-i:a)b",
    "[^b]b",
    "x*",
    r"\ba\b",
    ".",
]


@given(CONTENT.map(lambda data: data + b"end\n"), st.sampled_from(PATTERNS))
def test_a_search_of_a_part_finds_the_same_lines_as_one_line_by_line(data: bytes, pattern: str) -> None:
    lines = Lines(pattern, regex=True)
    assert list(lines.starts(data)) == list(lines._starts_by_line(data))


def one(data: bytes) -> LogGroup:
    return group_of(Held({0: data}), 1)


def test_search_finds_lines_by_their_offsets_over_the_borders_of_reads() -> None:
    line = b"x" * 99 + b"\n"
    data = bytearray(line * (3 * SEARCH_PIECE // 100))
    starts = [0, SEARCH_PIECE - SEARCH_PIECE % 100, 2 * SEARCH_PIECE - 2 * SEARCH_PIECE % 100 - 100]
    for start in starts:  # the second line spans two reads
        data[start + 40 : start + 46] = b"NeEdLe"
    found, after = search(one(bytes(data) + b"last needle"), "needle", regex=False, most=10)
    assert ([offset for _, offset in found], after) == ([*starts, len(data)], None)


def test_colours_do_not_hide_a_text_from_the_search() -> None:
    data = b"\x1b[1mstep\x1b[0m 1 \x1b[31mlo\x1b[33mss\x1b[0m 0.5\r\n\x1b]0;title\x07step 2 loss 0.4\r\n"
    for text, regex in (("step 1 loss 0.5", False), (r"^step \d loss 0\.5$", True)):
        assert search(one(data), text, regex=regex, most=9)[0] == [(0, 0)]
    assert search(one(data), "title", regex=False, most=9)[0] == []
    assert search(one(data), "31m", regex=False, most=9)[0] == []


def test_a_search_can_be_a_regular_expression_and_stops_at_the_most() -> None:
    held = one(b"step 1 loss 0.5\nstep 2 loss 0.4\nend\nstep 3 loss 0.3\n")
    assert search(held, r"^step \d loss 0\.[34]$", regex=True, most=10)[0] == [(0, 16), (0, 36)]
    assert search(held, r"step \d", regex=False, most=10)[0] == []
    assert search(held, "step", regex=False, most=2) == ([(0, 0), (0, 16)], (36,))
    with pytest.raises(BadPattern):
        search(held, "(", regex=True, most=10)
    with pytest.raises(BadPattern, match=r"^missing \): step \($"):
        search(held, "step (", regex=True, most=10)


@pytest.mark.parametrize(
    "data", [b"a" * 5000 + b"\n", b"\r" * 500_000 + b"a\n", b"\x1b[0" * 200_000, b"\x1b]" * 300_000]
)
def test_no_pattern_and_no_text_makes_the_search_slow(data: bytes) -> None:
    """A pattern that is slow in engines that backtrack is fast here, because RE2 does not backtrack."""
    assert search(one(data), "(a+)+$b", regex=True, most=10)[0] == []
