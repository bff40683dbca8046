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


def wait_for(
    probe: Callable[[], T],
    *,
    seconds: float = PATIENCE,
    what: str | Callable[[], str] = "it",
    every: float = 0.05,
) -> T:
    """Asks `probe` until it answers with something true, and returns that; AssertionError when late."""
    deadline = time.monotonic() + seconds
    while not (answer := probe()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what() if callable(what) else what}")
        time.sleep(every)
    return answer
