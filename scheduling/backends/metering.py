"""From samples of use to stretches without any: the rule, without clocks and without a database.

A window of 30 seconds in which nothing was used is idle as a whole; any use ends it, and the next one begins then
(Run:ai counts its idle allocated GPU time so). What was not measured is never idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

WINDOW = 30.0  # seconds
LONGEST_GAP = 5.0  # seconds between two samples; after a longer one nothing is known of the time between
ANY = float("inf")  # an amount that is a use, whatever else was

Key = TypeVar("Key")


@dataclass(slots=True)
class _Run:
    """Samples without a gap between them."""

    last: float
    window_from: float
    told: float
    spent: float = 0.0  # in this window
    idle_from: float | None = None


class Meter(Generic[Key]):
    """Samples of several leases; times are seconds on one clock that never goes back."""

    def __init__(self, *, negligible: float = 0.0) -> None:
        """An amount up to `negligible` in a window is no use: programs that wait wake up now and then, too."""
        self._negligible = negligible
        self._runs: dict[Key, _Run] = {}

    def sample(self, key: Key, at: float, amount: float) -> float | None:
        """Takes down that `amount` was used since the sample before. Tells for how long nothing was used until `at`.

        That is 0 while something is; None when there is nothing to tell yet. While nothing changes it is told once
        a window.
        """
        run = self._runs.get(key)
        if run is None or not 0 <= at - run.last <= LONGEST_GAP:
            # What was used since the sample before belongs to time of which nothing is known.
            self._runs[key] = _Run(last=at, window_from=at, told=at)
            return None
        run.last = at
        run.spent += amount
        if run.spent > self._negligible:
            is_new = run.idle_from is not None or at - run.told >= WINDOW
            run.idle_from, run.window_from, run.spent = None, at, 0.0
            return self._tell(run, 0.0) if is_new else None
        if at - run.window_from < WINDOW:
            return None
        if run.idle_from is None:
            run.idle_from = run.window_from
        run.window_from, run.spent = at, 0.0
        return self._tell(run, at - run.idle_from)

    def keep(self, keys: set[Key]) -> None:
        """Forgets all others."""
        self._runs = {key: run for key, run in self._runs.items() if key in keys}

    @staticmethod
    def _tell(run: _Run, unused_for: float) -> float:
        run.told = run.last
        return unused_for
