"""The times of a log are kept beside it: they ascend, survive crashes, and are found for any part of the log."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.backends.logfiles import LogFiles
from scheduling.backends.logtimes import NO_TIMES, RECORD, UNKNOWN, Moment, Times
from scheduling.backends.output import Log

# What an attempt writes: pieces of a length, each after a pause in milliseconds (negative: the clock was set back).
ATTEMPTS = st.lists(
    st.lists(st.tuples(st.integers(1, 9), st.integers(-3, 5)), max_size=6), min_size=1, max_size=4
)


def open_log(folder: Path, attempt: int, limit: int = 10**6) -> Log:
    files = LogFiles(folder)
    fd = files.open(0, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    return Log(fd, limit, times=files.times_writer(0, attempt))


def all_times(folder: Path) -> Times:
    files = LogFiles(folder)
    return files.times(0, 0, files.size(0))


@given(
    attempts=ATTEMPTS,
    torn=st.integers(0, RECORD.size - 1),
    window=st.tuples(st.integers(0, 99), st.integers(0, 99)),
)
def test_each_byte_has_the_time_and_attempt_that_wrote_it_whatever_the_clock_did(
    tmp_path_factory: pytest.TempPathFactory,
    attempts: list[list[tuple[int, int]]],
    torn: int,
    window: tuple[int, int],
) -> None:
    """Between attempts, the writer is killed within a record."""
    folder, clock, wrote = tmp_path_factory.mktemp("logs"), 1000, []
    for number, pieces in enumerate(attempts, 1):
        log, latest = open_log(folder, number), 0
        for length, pause in pieces:
            clock += pause
            latest = max(latest, clock)  # times never decrease within an attempt
            log.write(b"x" * length, [(0, clock)])
            wrote += [Moment(number, latest)] * length
        log.release()
        with (folder / "rank-0.times").open("ab") as file:
            file.write(b"\xff" * torn)
    open_log(folder, len(attempts)).release()  # mends what the last crash left
    files = LogFiles(folder)
    begin, end = sorted(min(each, len(wrote)) for each in window)
    times = files.times(0, begin, end)
    assert [times.of(offset) for offset in range(begin, end)] == wrote[begin:end]
    assert wrote == sorted(wrote)
    for moment in {*wrote, UNKNOWN}:
        later = [offset for offset, found in enumerate(wrote) if found > moment]
        assert files.offset_after(0, moment) == (later[0] if later else None)
    starts = [
        (wrote.index(first), first)
        for first in (min(m for m in wrote if m.attempt == n) for n in {m.attempt for m in wrote})
    ]
    assert files.attempts(0, 10) == sorted(starts)
    assert files.attempts(0, 1) == sorted(starts)[-1:]


def test_a_record_of_bytes_that_never_arrived_is_replaced(tmp_path: Path) -> None:
    log = open_log(tmp_path, 1)
    log.write(b"one\n", [(0, 10)])
    log.times.note([(4, 20), (8, 30)])  # then the power fails
    log.release()
    again = open_log(tmp_path, 2)
    again.write(b"two\nthree\n", [(0, 15), (4, 16)])
    again.release()
    times = all_times(tmp_path)
    assert [times.of(offset) for offset in (0, 3, 4, 7, 8, 13)] == [
        Moment(1, 10), Moment(1, 10), Moment(2, 15), Moment(2, 15), Moment(2, 16), Moment(2, 16),
    ]  # fmt: skip


def test_bytes_beyond_the_limit_of_a_log_have_no_times(tmp_path: Path) -> None:
    log = open_log(tmp_path, 1, limit=6)
    log.write(b"one\ntwo\nthree\n", [(0, 10), (4, 20), (8, 30)])
    log.release()
    assert (tmp_path / "rank-0.times").stat().st_size == 2 * RECORD.size


@pytest.mark.parametrize("spoilt", ["missing", "garbage", "link", "folder"])
def test_a_spoilt_file_of_times_leaves_the_log_readable(tmp_path: Path, spoilt: str) -> None:
    path = tmp_path / "rank-0.times"
    if spoilt == "garbage":
        path.write_bytes(bytes(range(256)) * 100)
    elif spoilt == "link":
        path.symlink_to("/etc/passwd")
    elif spoilt == "folder":
        path.mkdir()
    (tmp_path / "rank-0.log").write_bytes(b"one\n")
    files = LogFiles(tmp_path)
    times = files.times(0, 0, 4)
    assert list(times.moments) == sorted(times.moments)
    if spoilt != "garbage":
        assert (times, files.offset_after(0, UNKNOWN), files.attempts(0, 5)) == (NO_TIMES, None, [])
    else:
        assert len(files.attempts(0, 5)) <= 5
    log = open_log(tmp_path, 1)
    log.write(b"two\n", [(0, 5)])
    log.release()
    assert files.log(0).read_bytes() == b"one\ntwo\n"


def test_the_latest_time_that_a_file_can_name_exists_in_every_time_zone(tmp_path: Path) -> None:
    open_log(tmp_path, 1).release()
    (tmp_path / "rank-0.times").write_bytes(RECORD.pack(0, 2**64 - 1, 1))
    [(_, moment)] = LogFiles(tmp_path).attempts(0, 1)
    at = datetime.fromtimestamp(moment.at / 1000, UTC)
    assert at.astimezone(timezone(timedelta(hours=14))) == at
