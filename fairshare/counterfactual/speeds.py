"""Estimates the speeds of jobs on generations where they were not measured, from other jobs that were measured
there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairshare.model import Bools, Floats, Ints
from fairshare.rates import within_reason


def speeds_of(rates: Floats, accepts: Bools, team: Ints) -> list[tuple[float, ...]]:
    """Returns the speed of each job on each generation, relative to the job's slowest generation, as one tuple for each
    job.

    The speed is 0 where the job may not run. An unknown rate is a known rate of the same job, multiplied by the speed
    ratio of the two generations: the ratio in the job's team or, if the team has none, in all teams. If there is no
    ratio, the speed is 1.

    - `rates` (J, K): measured steps per second, NaN where not measured.
    - `accepts` (J, K): whether the job may run on the generation.
    - `team` (J,): index of the job's team.
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
    """Returns the speed ratio for each pair of generations, as an array (K, K).

    For each job that was measured on the generations a and b, the rate on b is divided by the rate on a. The entry [a,
    b] is the median of the results. It is NaN if no job was measured on both.
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
    """Fills in the unknown rates of `jobs` in the array `filled` (J, K), in place.

    An unknown rate is a known rate of the same job, multiplied by the speed ratio of the two generations. `sources`:
    results of `_ratios`. The first one that has the ratio is used.
    """
    for second in range(known.shape[1]):
        for ratios in sources:
            for first in range(known.shape[1]):
                if np.isfinite(ratios[first, second]):
                    lacks = jobs[known[jobs, first] & ~np.isfinite(filled[jobs, second])]
                    filled[lacks, second] = filled[lacks, first] * ratios[first, second]


def _by_the_slowest(rates: Floats, accepts: Bools) -> Floats:
    """Returns each job's rates divided by its lowest known rate on an accepted generation, as an array (J, K).

    The result is 1 where the rate is unknown or the generation is not accepted.
    """
    counts = accepts & np.isfinite(rates)
    least = np.where(counts, rates, np.inf).min(axis=1, initial=np.inf, keepdims=True)
    relative: Floats = np.where(counts, rates / np.where(np.isfinite(least), least, 1.0), 1.0)
    return relative
