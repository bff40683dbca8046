"""Converts samples of use to idle periods. Reads neither clocks nor the database.

A window of 30 seconds without any use counts as idle as a whole. Any use ends the window, and the next window begins
at once; Run:ai counts its idle allocated GPU time in the same way. Time that was not measured never counts as idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

WINDOW = 30.0  # seconds
LONGEST_GAP = 5.0  # seconds between two samples; a longer gap counts as not measured
ANY = float("inf")  # an amount that exceeds any threshold

Key = TypeVar("Key")


@dataclass(slots=True)
class _Run:
    """A series of samples without a longer gap."""

    last: float
    window_from: float
    reported_at: float
    spent: float = 0.0  # amount used in the current window
    idle_from: float | None = None


class Meter(Generic[Key]):
    """Meters the use of several leases. All times are seconds on one monotonic clock."""

    def __init__(self, *, negligible: float = 0.0) -> None:
        """Ignores use of up to `negligible` per window, because programs that only wait also wake up now and then."""
        self._negligible = negligible
        self._runs: dict[Key, _Run] = {}

    def sample(self, key: Key, at: float, amount: float) -> float | None:
        """Records `amount`, used since the last sample at `at`. Returns 0 for use, and the seconds of idleness up to
        `at` after each idle window.

        More than the negligible amount within a window is use. Returns None while the window is open, and while use
        goes on: it is reported again once per window.
        """
        run = self._runs.get(key)
        if run is None or not 0 <= at - run.last <= LONGEST_GAP:
            # The amount belongs to a gap that was not measured.
            self._runs[key] = _Run(last=at, window_from=at, reported_at=at)
            return None
        run.last = at
        run.spent += amount
        if run.spent > self._negligible:
            is_new = run.idle_from is not None or at - run.reported_at >= WINDOW
            run.idle_from, run.window_from, run.spent = None, at, 0.0
            return self._report(run, 0.0) if is_new else None
        if at - run.window_from < WINDOW:
            return None
        if run.idle_from is None:
            run.idle_from = run.window_from
        run.window_from, run.spent = at, 0.0
        return self._report(run, at - run.idle_from)

    def keep(self, keys: set[Key]) -> None:
        """Forgets all leases whose keys are not in `keys`."""
        self._runs = {key: run for key, run in self._runs.items() if key in keys}

    @staticmethod
    def _report(run: _Run, unused_for: float) -> float:
        run.reported_at = run.last
        return unused_for
