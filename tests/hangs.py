"""Makes a test that hangs fail, with the stacks of all threads, about a minute after the test last did any work."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from tests import waiting

TICKS = os.sysconf("SC_CLK_TCK")
# The least CPU seconds that a working test spends in half of a stall, even if it gets only a tenth of a core.
LITTLE = 0.5
# CPU seconds after which a test counts as an endless loop. Tests marked as slow may spend five times as many.
MUCH = 300.0
# Checks in half of a stall. If the whole machine pauses, it misses all checks but one, so a pause is not a hang.
CHECKS = 5


@contextmanager
def watched(*, seconds: float | None = None, little: float = LITTLE, much: float = MUCH) -> Iterator[None]:
    """Fails the test that runs inside the block if the test hangs, or if it has spent more than `much` CPU seconds.

    A test hangs if both are true during the last `seconds` / 2 (by default `waiting.stall()` / 2):
    - The test and the processes that it started together spent at most `little` CPU seconds.
    - The test did not poll in `wait_for`, which has its own time limit.

    Only the main thread may call this function.
    """
    began = _own_seconds()
    # the CPU seconds and the polls at the last checks
    seen: deque[tuple[float, int]] = deque(maxlen=CHECKS + 1)
    is_looking = False

    def start_timer() -> tuple[float, float]:
        slice_seconds = (seconds or waiting.stall()) / (2 * CHECKS)
        return signal.setitimer(signal.ITIMER_REAL, slice_seconds, slice_seconds)

    def on_alarm(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_looking
        start_timer()  # before a failure: Python drops an exception that is raised inside a finalizer
        # On a busy machine a check may outlast the timer. A check inside a check would put what it saw before what the
        # outer one saw, so that no work seems to have been done.
        if is_looking:
            return
        is_looking = True
        try:
            look()
        finally:
            is_looking = False

    def look() -> None:
        own = _own_seconds()
        seen.append((own + _descendants_seconds(), waiting.polls))
        (before, polls_before), (now, polls) = seen[0], seen[-1]
        if own - began > much:
            pytest.fail(f"an endless loop? {own - began:.0f} s of a processor were spent\n{stacks()}")
        if len(seen) > CHECKS and now - before <= little and polls == polls_before:
            pytest.fail(f"nothing was done for {(seconds or waiting.stall()) / 2:g} s\n{stacks()}")

    handler = signal.signal(signal.SIGALRM, on_alarm)
    timer = start_timer()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Applies `watched` to each test and its fixtures. Tests marked as slow may spend five times as many CPU
    seconds."""
    with watched(much=MUCH if item.get_closest_marker("slow") is None else 5 * MUCH):
        return (yield)


def stacks() -> str:
    """Returns the tracebacks of all threads of this process, as text."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


def _own_seconds() -> float:
    """Returns the CPU seconds of this process and of its children that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def _descendants_seconds() -> float:
    """Returns the CPU seconds of all living descendants of this process."""
    children: dict[int, list[tuple[int, int]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            # fields 11 to 14: user and system time of the process, and of its children that have ended
            children.setdefault(int(fields[1]), []).append((int(entry.name), sum(map(int, fields[11:15]))))
    spent, left = 0, [os.getpid()]
    while left:
        for pid, ticks in children.get(left.pop(), ()):
            spent += ticks
            left.append(pid)
    return spent / TICKS
