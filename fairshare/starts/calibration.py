"""Turns simulated waits into intervals that hold as often as they say, by the outcomes of earlier forecasts.

An interval is the simulated wait, and on both sides a margin in units of the forecast's own spread. Each outcome moves
the margins a little: after a start outside the interval they grow, otherwise they shrink. This is online conformal
prediction by quantile tracking (Angelopoulos, Candès, Tibshirani, "Conformal PID Control for Time Series Prediction",
NeurIPS 2023, section 2.1) with decaying steps (Angelopoulos, Barber, Bates, ICML 2024). In the long run the intervals
hold as often as COVERAGE says, whatever the jobs and the simulation are like, because this needs no assumption about
how errors are distributed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from fairshare.model import Floats

COVERAGE = 0.8
# Standard deviation of the logarithm of a wait, beyond what simulations show: new jobs, and what they neglect.
LEAST_SPREAD = 0.5
# A cluster's first intervals reach so many spreads to both sides: at the least spread, to four times the expected wait.
FIRST_MARGIN = 2.75
# The n-th outcome moves a margin by up to n ** -DECAY spreads, but never less than LEAST_STEP, so that the margins
# follow when the jobs of a cluster change.
DECAY, LEAST_STEP = 0.6, 0.03


@dataclass(frozen=True, slots=True)
class Expected:
    """Waits of jobs as simulations give them: `centre` and `spread` (J,) of the logarithm of the wait."""

    centre: Floats
    spread: Floats


def summarize(waits: Floats, *, quantum: float, horizon: float) -> Expected:
    """Returns the centre and spread of simulated waits (S, J) in seconds. Infinite waits count as `horizon`."""
    logs = np.log(np.minimum(waits, horizon) + quantum)
    return Expected(np.mean(logs, axis=0), np.hypot(np.std(logs, axis=0), LEAST_SPREAD))


@dataclass(frozen=True, slots=True)
class Margins:
    """How far intervals reach below and above the expected wait, in spreads. A negative margin is on the other side.

    `below_known` and `above_known` count the outcomes that have moved each margin.
    """

    below: float = FIRST_MARGIN
    above: float = FIRST_MARGIN
    below_known: int = 0
    above_known: int = 0

    def after_below(self, *, missed: bool) -> Self:
        """Returns the margins after it became known whether a job started before its interval."""
        moved = self.below + _step(self.below_known, missed=missed)
        return type(self)(moved, self.above, self.below_known + 1, self.above_known)

    def after_above(self, *, missed: bool) -> Self:
        """Returns the margins after it became known whether a job waited until its interval was over."""
        moved = self.above + _step(self.above_known, missed=missed)
        return type(self)(self.below, moved, self.below_known, self.above_known + 1)

    def interval(self, expected: Expected, *, quantum: float) -> tuple[Floats, Floats]:
        """Returns the earliest and the latest wait (J,) in seconds."""
        below, above = -self.below, self.above
        if below > above:
            below = above = (below + above) / 2
        earliest = np.exp(expected.centre + below * expected.spread) - quantum
        latest = np.exp(expected.centre + above * expected.spread) - quantum
        return np.maximum(earliest, 0.0), np.maximum(latest, 0.0)


def _step(known: int, *, missed: bool) -> float:
    size: float = max((known + 1) ** -DECAY, LEAST_STEP)
    return size * (missed - (1 - COVERAGE) / 2)
