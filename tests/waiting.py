"""Waiting for something to become true, with a deadline and a word about what was missed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
# Seconds. It only tells what hangs from what is slow: machines that run tests may be ten times slower than
# ours, and how fast something is belongs in `make bench`. Who works on a test may set PATIENCE=20.
PATIENCE = float(os.environ.get("PATIENCE", "600"))
STALL = min(60.0, PATIENCE)  # seconds without a change on a machine that does nothing else

polled_at = float("-inf")  # when `wait_for` asked last, by the monotonic clock


def stall() -> float:
    """Returns the seconds without progress after which something hangs: more where programs compete for processors."""
    return STALL * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def wait_for(
    probe: Callable[[], T],
    *,
    seconds: float = PATIENCE,
    what: str | Callable[[], str] = "it",
    every: float = 0.05,
) -> T:
    """Asks `probe` until it answers with something true, and returns that.

    Raises AssertionError after `seconds`, and earlier once `what` has been the same for `stall()` seconds.
    """
    global polled_at  # noqa: PLW0603 - one number, which tests/hangs.py reads
    begins = changed = time.monotonic()
    told = None if callable(what) else what
    while not (answer := probe()):
        polled_at = now = time.monotonic()
        if now - begins > seconds or now - changed > stall():
            text = what() if callable(what) else what
            if now - begins > seconds or text == told:
                raise AssertionError(f"not within {now - begins:.0f} s: {text}")
            told, changed = text, now
        time.sleep(every)
    return answer
