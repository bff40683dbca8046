"""Estimates the speed of jobs on generations where they never ran, from jobs that were measured on both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairshare.model import Bools, Floats, Ints
from fairshare.rates import within_reason


def speeds_of(rates: Floats, accepts: Bools, team: Ints) -> list[tuple[float, ...]]:
    """Returns (J, K) speeds relative to each job's slowest measured generation, 0 where it may not run.

    `rates` (J, K) are steps per second, NaN where not measured. Missing ones are estimated by the median ratio of
    the team's other jobs (`team` (J,)), else of all jobs. Without any ratio a job counts as equally fast.
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
    """Returns (K, K) the median of rate on the second / rate on the first; NaN where no job was measured on both."""
    kinds = rates.shape[1]
    found = np.full((kinds, kinds), np.nan)
    for first in range(kinds):
        for second in range(kinds):
            both = known[:, first] & known[:, second]
            if both.any():
                found[first, second] = float(np.median(rates[both, second] / rates[both, first]))
    return found


def _fill(filled: Floats, known: Bools, jobs: Ints, sources: Sequence[Floats]) -> None:
    """Fills in unknown rates of `jobs`, by the first source and the first known generation that have a ratio."""
    for second in range(known.shape[1]):
        for ratios in sources:
            for first in range(known.shape[1]):
                if np.isfinite(ratios[first, second]):
                    lacks = jobs[known[jobs, first] & ~np.isfinite(filled[jobs, second])]
                    filled[lacks, second] = filled[lacks, first] * ratios[first, second]


def _by_the_slowest(rates: Floats, accepts: Bools) -> Floats:
    """Returns the rates relative to the least accepted and known one of each row; 1 for others."""
    counts = accepts & np.isfinite(rates)
    least = np.where(counts, rates, np.inf).min(axis=1, initial=np.inf, keepdims=True)
    relative: Floats = np.where(counts, rates / np.where(np.isfinite(least), least, 1.0), 1.0)
    return relative
