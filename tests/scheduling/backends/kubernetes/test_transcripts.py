"""The stored logs of workers are complete and without duplicates, wherever a kubelet's log stream breaks off."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.backends.kubernetes.transcript import (
    KubeletMessage,
    LogLocked,
    Transcript,
    nanoseconds,
    read_mark,
)
from scheduling.backends.logfiles import LogFiles

START = 1_790_000_000
Line = tuple[int, bytes]  # nanoseconds since START, and the line with its line end


def stamp(moment: int) -> bytes:
    second = datetime.fromtimestamp(START + moment // 10**9, UTC)
    return f"{second:%Y-%m-%dT%H:%M:%S}.{moment % 10**9:09d}Z".encode()


class Kubelet:
    """A kubelet with the given log lines. `tell` returns the lines from a given time on."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines

    def tell(self, since: str) -> bytes:
        first = 0 if not since else (nanoseconds(since.encode()) or 0) - START * 10**9
        return b"".join(stamp(at) + b" " + text for at, text in self.lines if at >= first)


def open_one(folder: Path, *, pod: str = "pod-1", epoch: int = 1, limit: int = 10**6) -> Transcript:
    return Transcript(LogFiles(folder), 0, pod=pod, epoch=epoch, limit=limit)


def text(folder: Path) -> bytes:
    return LogFiles(folder).log(0).read_bytes()


def listen(folder: Path, kubelet: Kubelet, *, until: int | None = None, pieces: int = 1 << 16) -> None:
    """Opens the transcript (the stored log) in `folder`, feeds one answer of the kubelet to it, and closes it.

    The answer arrives in pieces of `pieces` bytes. The connection breaks after `until` bytes; None means that it does
    not break.
    """
    transcript = open_one(folder)
    transcript.begin()
    data = kubelet.tell(transcript.since)[:until]
    for at in range(0, len(data), pieces):
        transcript.feed(data[at : at + pieces])
    transcript.save()
    transcript.close()


def test_moments_are_read_to_the_nanosecond_in_any_zone() -> None:
    assert nanoseconds(b"2026-11-21T19:03:28.000000001Z") == nanoseconds(
        b"2026-11-21T20:03:28.000000001+01:00"
    )
    assert nanoseconds(b"1970-01-01T00:00:01.5Z") == 1_500_000_000
    assert nanoseconds(b"1970-01-01T00:00:01Z") == 1_000_000_000
    for other in (b"", b"unable", b"2026-13-21T19:03:28Z", b"2026-11-21T19:03:28.1234567890Z"):
        assert nanoseconds(other) is None


lines = st.lists(
    st.tuples(
        st.integers(0, 3 * 10**9),
        st.sampled_from([b"\n", b"a\n", b"ab\n", b"a\n", b"step 1 loss 0\n", b"step 1\rstep 2\n"]),
    ),
    max_size=25,
).map(sorted)


@given(
    told=lines,
    breaks=st.lists(st.tuples(st.integers(0, 25), st.integers(0, 800)), max_size=6),
    pieces=st.integers(1, 50),
    crashes=st.booleans(),
)
def test_whatever_breaks_off_each_line_is_there_once(
    tmp_path_factory: pytest.TempPathFactory,
    told: list[Line],
    breaks: list[tuple[int, int]],
    pieces: int,
    crashes: bool,
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    for known, until in sorted(breaks):
        transcript = open_one(folder)
        transcript.begin()
        data = Kubelet(told[:known]).tell(transcript.since)[:until]
        for at in range(0, len(data), pieces):
            transcript.feed(data[at : at + pieces])
        if not crashes:
            transcript.save()
        transcript.close()
    listen(folder, Kubelet(told), pieces=pieces)
    assert text(folder) == b"".join(line for _, line in told)
    times, offset = LogFiles(folder).times(0, 0, 10**6), 0
    for at, line in told:
        assert times.of(offset) == (1, START * 1000 + at // 10**6)
        offset += len(line)


@given(seed=st.integers(0, 10**6))
def test_marks_of_any_age_lead_to_the_same_log(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """The stored log is complete and without duplicates however old the saved position in the kubelet's log is.

    A transcript saves its position only now and then. So after a crash it continues from an old one.
    """
    folder, chance = tmp_path_factory.mktemp("logs"), Random(seed)
    told = sorted(
        (chance.randrange(5 * 10**9), chance.choice([b"x\n", b"xx\n", b"x y\n"])) for _ in range(40)
    )
    for known in sorted(chance.randrange(41) for _ in range(5)):
        transcript = open_one(folder)
        for _ in range(chance.randrange(1, 4)):
            transcript.begin()
            data = Kubelet(told[:known]).tell(transcript.since)
            data = data[: chance.randrange(len(data) + 1)]
            middle = chance.randrange(len(data) + 1)
            transcript.feed(data[:middle])
            if chance.random() < 0.4:
                transcript.save()
            transcript.feed(data[middle:])
        transcript.close()
    listen(folder, Kubelet(told))
    assert text(folder) == b"".join(line for _, line in told)


def test_two_streams_may_arrive_out_of_order(tmp_path: Path) -> None:
    told = [(999_999_990, b"out 1\n"), (1_000_000_005, b"out 2\n"), (999_999_995, b"err 1\n")]
    kubelet = Kubelet(told)
    for _ in range(3):
        listen(tmp_path, kubelet)
    kubelet.lines = [*told, (1_000_000_001, b"err 2\n"), (1_000_000_009, b"out 3\n")]
    listen(tmp_path, kubelet)
    assert text(tmp_path) == b"out 1\nout 2\nerr 1\nerr 2\nout 3\n"


def test_lines_that_a_kubelet_has_dropped_break_nothing(tmp_path: Path) -> None:
    told = [(at, b"line %d\n" % at) for at in range(10)]
    listen(tmp_path, Kubelet(told), until=-3)
    assert text(tmp_path).endswith(b"\nline")
    listen(tmp_path, Kubelet([(12, b"line 12\n"), (13, b"line 13\n")]))
    assert text(tmp_path).endswith(b"line 8\nline\nline 12\nline 13\n")


def test_an_unfinished_line_is_stored_and_continued(tmp_path: Path) -> None:
    kubelet = Kubelet([(1, b"loading 10%\rloading")])
    listen(tmp_path, kubelet)
    assert text(tmp_path) == b"loading 10%\rloading"
    kubelet.lines = [(1, b"loading 10%\rloading 20%")]
    listen(tmp_path, kubelet)
    assert text(tmp_path) == b"loading 10%\rloading 20%"
    transcript = open_one(tmp_path)
    transcript.begin()
    transcript.feed(kubelet.tell(transcript.since))
    transcript.finish()
    transcript.close()
    assert text(tmp_path) == b"loading 10%\rloading 20%"


def test_the_next_pod_of_a_rank_continues_the_file_on_a_new_line(tmp_path: Path) -> None:
    first = open_one(tmp_path)
    first.begin()
    first.feed(Kubelet([(1, b"one\n"), (2, b"two")]).tell(""))
    first.finish()
    first.close()
    second = open_one(tmp_path, pod="pod-2", epoch=2)
    assert (second.since, second.done) == ("", False)
    second.begin()
    second.feed(Kubelet([(1, b"one\n")]).tell(""))
    second.save()
    second.close()
    assert text(tmp_path) == b"one\ntwo\none\n"
    listened = open_one(tmp_path, pod="pod-2", epoch=2)
    listened.begin()
    listened.feed(Kubelet([(1, b"one\n"), (3, b"three\n")]).tell(listened.since))
    listened.close()
    assert text(tmp_path) == b"one\ntwo\none\nthree\n"


def test_a_full_log_says_once_that_it_is_cut_and_counts_each_byte_once(tmp_path: Path) -> None:
    kubelet = Kubelet([(at * 10**8, b"0123456789\n") for at in range(100)])
    for _ in range(2):
        transcript = open_one(tmp_path, limit=25)
        transcript.begin()
        transcript.feed(kubelet.tell(transcript.since))
        assert transcript.is_full
        transcript.save()
        transcript.close()
    transcript = open_one(tmp_path, limit=25)
    transcript.finish()
    transcript.close()
    assert text(tmp_path)[:25] == b"0123456789\n0123456789\n012"
    assert text(tmp_path).count(b"output is cut here") == 1
    assert b"1,075 bytes of output were cut" in text(tmp_path)


def test_a_message_of_the_kubelet_is_no_line_of_the_program(tmp_path: Path) -> None:
    transcript = open_one(tmp_path)
    transcript.begin()
    told = Kubelet([(1, b"one\n")]).tell("")
    with pytest.raises(KubeletMessage, match="unable to retrieve container logs"):
        transcript.feed(told + b"unable to retrieve container logs for containerd://ab")
    transcript.save()
    transcript.close()
    assert text(tmp_path) == b"one\n"


def test_two_do_not_write_the_same_log(tmp_path: Path) -> None:
    first = open_one(tmp_path)
    with pytest.raises(LogLocked):
        open_one(tmp_path)
    first.close()
    open_one(tmp_path).close()


def test_a_later_reader_knows_that_the_log_is_complete(tmp_path: Path) -> None:
    transcript = open_one(tmp_path)
    transcript.finish()
    transcript.close()
    mark = read_mark(LogFiles(tmp_path), 0)
    assert mark is not None
    assert (mark.pod, mark.done) == ("pod-1", True)
    again = open_one(tmp_path)
    assert again.done
    again.close()
    assert not open_one(tmp_path, pod="pod-2").done
