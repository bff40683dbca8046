"""Estimates the speed of jobs on generations where they were not measured, from jobs that were measured on both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairshare.model import Bools, Floats, Ints
from fairshare.rates import within_reason


def speeds_of(rates: Floats, accepts: Bools, team: Ints) -> list[tuple[float, ...]]:
    """Returns the speed of each job relative to its slowest measured generation, as tuples over generations.

    The speed is 0 where the job may not run. `rates` (J, K) has steps per second, NaN where not measured. A missing
    rate is estimated by the median ratio of the team's other jobs (`team` (J,)), or of all jobs if the team has
    none. Without any ratio a job counts as equally fast.
    """
    rates = within_reason(rates)
    known = np.isfinite(rates) & (np.nan_to_num(rates) > 0)
    filled = np.where(known, rates, np.nan)
    everybody = _ratios(rates, known)
    for one in np.unique(team).tolist():
        own = np.flatnonzero(team == one)
        _fill(filled, known, own, [_ratios(rates[own], known[own]), everybody])
    relative = _by_the_slowest(filled, accepts)
    return [tuple(row) for row in np.where(accepts, relative, 0.0).tolist()]


def _ratios(rates: Floats, known: Bools) -> Floats:
    """Returns the median over jobs of the rate on the second generation divided by the rate on the first, as an array
    (K, K).

    The median is NaN for pairs of generations on which no job was measured.
    """
    kinds = rates.shape[1]
    found = np.full((kinds, kinds), np.nan)
    for first in range(kinds):
        for second in range(kinds):
            both = known[:, first] & known[:, second]
            if both.any():
                found[first, second] = float(np.median(rates[both, second] / rates[both, first]))
    return found


def _fill(filled: Floats, known: Bools, jobs: Ints, sources: Sequence[Floats]) -> None:
    """Fills in the unknown rates of `jobs`: from the first source that has a ratio to a known generation, and the first
    such generation."""
    for second in range(known.shape[1]):
        for ratios in sources:
            for first in range(known.shape[1]):
                if np.isfinite(ratios[first, second]):
                    lacks = jobs[known[jobs, first] & ~np.isfinite(filled[jobs, second])]
                    filled[lacks, second] = filled[lacks, first] * ratios[first, second]


def _by_the_slowest(rates: Floats, accepts: Bools) -> Floats:
    """Returns each rate divided by the lowest known rate that its row has on accepted generations, as an array (J, K).

    The result is 1 where the rate is unknown or the generation not accepted.
    """
    counts = accepts & np.isfinite(rates)
    least = np.where(counts, rates, np.inf).min(axis=1, initial=np.inf, keepdims=True)
    relative: Floats = np.where(counts, rates / np.where(np.isfinite(least), least, 1.0), 1.0)
    return relative
