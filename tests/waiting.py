"""Waits until a condition is true, with a time limit and a message that says which condition was not met."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
# Seconds. This limit only distinguishes tests that hang from tests that are slow: other machines may be ten times
# slower than ours, and `make bench` measures speed. While you work on a test, you may set PATIENCE=20.
PATIENCE = float(os.environ.get("PATIENCE", "600"))
STALL = min(
    60.0, PATIENCE
)  # seconds without a change after which something hangs, on a machine that runs nothing else

# Seconds that at most pass between two polls by the clock of `wait_for`. Longer gaps are pauses of the whole machine.
LONGEST_GAP = 30.0

polls = 0  # how often `wait_for` has called a probe in vain


def stall() -> float:
    """Returns the number of seconds without progress after which a test counts as hanging.

    This is STALL, or more if the machine has a high load.
    """
    return STALL * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def wait_for(
    probe: Callable[[], T],
    *,
    seconds: float = PATIENCE,
    what: str | Callable[[], str] = "it",
    every: float = 0.05,
) -> T:
    """Calls `probe` every `every` seconds until its result is true, and returns this result.

    `what`: what is awaited, for the error message. It is a text, or a function that returns a text, such as the number
    of steps done. If the function returns a new text, this counts as progress.

    Raises AssertionError after `seconds` seconds in all, or after `stall()` seconds without progress.
    """
    global polls  # noqa: PLW0603 - one number, which tests/hangs.py reads
    waited, changed, last = 0.0, 0.0, time.monotonic()
    told = None if callable(what) else what
    while not (answer := probe()):
        polls += 1
        now = time.monotonic()
        waited, last = waited + min(now - last, max(LONGEST_GAP, every)), now
        if waited > seconds or waited - changed > stall():
            text = what() if callable(what) else what
            if waited > seconds or text == told:
                raise AssertionError(f"not within {waited:.0f} s: {text}")
            told, changed = text, waited
        time.sleep(every)
    return answer
