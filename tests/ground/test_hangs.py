"""Tests that a test that hangs fails with the stacks of all threads, and that a test that computes or polls does
not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests import hangs, waiting
from tests.hangs import watched
from tests.waiting import wait_for


def wait_for_ever() -> None:
    threading.Event().wait()


def test_a_test_that_waits_for_ever_fails_and_shows_where() -> None:
    with pytest.raises(pytest.fail.Exception, match="in wait_for_ever"), watched(seconds=0.4):
        wait_for_ever()


def test_a_test_whose_child_works_goes_on() -> None:
    work = "import time\nends = time.monotonic() + 3\nwhile time.monotonic() < ends: pass"
    with watched(seconds=2.0, little=0.02):
        subprocess.run([sys.executable, "-c", work], check=True)


def test_an_endless_loop_ends() -> None:
    def loop() -> None:
        while True:
            pass

    with (
        pytest.raises(pytest.fail.Exception, match=r"(?s)an endless loop.*in loop"),
        # no amount of work is too little here, because a busy machine may give this process none for a while
        watched(seconds=0.2, little=-1.0, much=0.3),
    ):
        loop()


def test_checks_that_outlast_their_timer_see_the_work_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def scan_for_long() -> float:
        until = time.monotonic() + 0.05  # the timer has run out twice by then
        while time.monotonic() < until:
            pass
        return 0.0

    monkeypatch.setattr(hangs, "_descendants_seconds", scan_for_long)
    until = time.process_time() + 0.5
    with watched(seconds=0.2, little=0.0):
        while time.process_time() < until:
            pass


def test_the_watch_around_a_watch_goes_on() -> None:
    def watch_and_wait() -> None:
        with watched():
            pass
        wait_for_ever()

    with pytest.raises(pytest.fail.Exception, match="nothing was done"), watched(seconds=0.4):
        watch_and_wait()


def pause(seconds: float) -> None:
    """Stops this whole process for `seconds` seconds, while its timers continue."""
    with subprocess.Popen(["/bin/sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"]):
        os.kill(os.getpid(), signal.SIGSTOP)


def test_a_pause_of_the_whole_machine_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(seconds=2.0):
        pause(1.1)
        pause(1.1)
    monkeypatch.setattr(waiting, "LONGEST_GAP", 0.1)
    answers = iter([False, True])
    wait_for(lambda: pause(0.6) or next(answers), seconds=0.5)  # type: ignore[func-returns-value]


def test_waiting_ends_when_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "stall", lambda: 0.1)
    with pytest.raises(AssertionError, match="a bus"):
        wait_for(lambda: False, what="a bus")
    with pytest.raises(AssertionError, match="a train"):
        wait_for(lambda: False, what=lambda: "a train")


def test_waiting_goes_on_while_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "stall", lambda: 0.01)
    steps = iter(range(10))
    seen: list[int] = []

    def news() -> str:
        seen.append(next(steps))
        return f"step {seen[-1]}"

    wait_for(lambda: len(seen) == 5, what=news)
    assert seen == [0, 1, 2, 3, 4]


def test_polls_count_as_work() -> None:
    began = time.monotonic()
    with watched(seconds=0.4):
        wait_for(lambda: time.monotonic() - began > 1.0, every=0.01)
