"""Ends a test that hangs: it fails with the stacks of all threads, a minute after the last sign of work."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from tests import waiting

TICKS = os.sysconf("SC_CLK_TCK")
# Seconds of a processor that a working test spends at least between two looks, even where it gets a tenth of one.
LITTLE = 0.5
# Seconds of a processor after which a test is taken for an endless loop; slow tests have five times as many.
MUCH = 300.0


@contextmanager
def watched(*, seconds: float | None = None, little: float = LITTLE, much: float = MUCH) -> Iterator[None]:
    """Fails the test inside once it does nothing, or once it has spent `much` seconds of a processor.

    It is looked at twice in `seconds` (`waiting.stall()` by default). It does something if it and the processes that it
    started spend `little` seconds of a processor between two looks. Polls of `wait_for` count, too, as that has its
    own limit. Only the main thread may call this.
    """
    began = _own_seconds()
    before: float | None = None

    def look(_number: int, _frame: FrameType | None) -> None:
        nonlocal before
        interval = seconds or waiting.stall()
        own = _own_seconds()
        now = own + _descendants_seconds()
        works = before is None or now - before > little or time.monotonic() - waiting.polled_at < interval / 2
        before = now
        if own - began > much:
            pytest.fail(f"an endless loop? {own - began:.0f} s of a processor were spent\n{stacks()}")
        if not works:
            pytest.fail(f"nothing was done for {interval / 2:g} s\n{stacks()}")
        signal.setitimer(signal.ITIMER_REAL, interval / 2)

    handler = signal.signal(signal.SIGALRM, look)
    remaining, _ = signal.setitimer(signal.ITIMER_REAL, (seconds or waiting.stall()) / 2)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, remaining)
        signal.signal(signal.SIGALRM, handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Watches each test with its fixtures."""
    with watched(much=MUCH if item.get_closest_marker("slow") is None else 5 * MUCH):
        return (yield)


def stacks() -> str:
    """Where all threads of this process are."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


def _own_seconds() -> float:
    """Processor seconds of this process and of its children that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def _descendants_seconds() -> float:
    """Processor seconds of the processes below this one that are alive."""
    children: dict[int, list[tuple[int, int]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            # user, system, and both of children that were waited for
            children.setdefault(int(fields[1]), []).append((int(entry.name), sum(map(int, fields[11:15]))))
    spent, left = 0, [os.getpid()]
    while left:
        for pid, ticks in children.get(left.pop(), ()):
            spent += ticks
            left.append(pid)
    return spent / TICKS
