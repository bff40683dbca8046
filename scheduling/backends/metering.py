"""Converts samples of GPU use to idle periods. Reads neither clocks nor the database.

A window of 30 seconds counts as idle only if no use was measured in the whole window. Any use ends the window, and the
next window begins immediately. Run:ai counts idle time of allocated GPUs in the same way. Time that was not measured
never counts as idle.
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
    """A series of samples of one lease. Two successive samples are at most LONGEST_GAP seconds apart."""

    last: float
    window_from: float
    reported_at: float
    spent: float = 0.0  # amount used in the current window
    idle_from: float | None = None


class Meter(Generic[Key]):
    """Measures the use and the idleness of several leases. All times are seconds on the same monotonic clock."""

    def __init__(self, *, negligible: float = 0.0) -> None:
        """Creates a meter without samples.

        `negligible` is the use up to which a window still counts as idle, in the unit of the samples. Such a threshold
        is useful because programs that only wait also use a little processor time.
        """
        self._negligible = negligible
        self._runs: dict[Key, _Run] = {}

    def sample(self, key: Key, at: float, amount: float) -> float | None:
        """Records that the lease `key` used `amount` between its last sample and the time `at`. Returns what must be
        reported about the lease:

        - None: nothing.
        - 0: the lease is in use. This is returned when an idle lease is used again, and at most once every WINDOW
          seconds while a lease stays in use.
        - A positive number: an idle window has just ended. The lease has been idle for this many seconds, up to `at`.

        The first sample of a lease returns None, and so does the first one after a gap of more than LONGEST_GAP
        seconds. `amount` has any unit, such as processor seconds.
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
        """Drops the data of all leases whose keys are not in `keys`."""
        self._runs = {key: run for key, run in self._runs.items() if key in keys}

    @staticmethod
    def _report(run: _Run, unused_for: float) -> float:
        run.reported_at = run.last
        return unused_for
