"""How fast jobs would be where they never ran: by the jobs that were measured on both generations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairshare.model import Bools, Floats, Ints
from fairshare.rates import within_reason


def speeds_of(rates: Floats, accepts: Bools, team: Ints) -> list[tuple[float, ...]]:
    """(J, K) speeds, each job's slowest measured generation being 1, and 0 where it may not run.

    `rates` (J, K) are steps per second, NaN where nobody measured. What is missing is guessed from the median
    ratio of the team's other jobs (`team` (J,)), else of all jobs; where there is none, as fast as where it ran.
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
    """(K, K) the median of rate on the second / rate on the first; NaN where no job has both."""
    kinds = rates.shape[1]
    found = np.full((kinds, kinds), np.nan)
    for first in range(kinds):
        for second in range(kinds):
            both = known[:, first] & known[:, second]
            if both.any():
                found[first, second] = float(np.median(rates[both, second] / rates[both, first]))
    return found


def _fill(filled: Floats, known: Bools, jobs: Ints, sources: Sequence[Floats]) -> None:
    """Guesses what is not known of `jobs`, from the first generation that is, by the first source that can."""
    for second in range(known.shape[1]):
        for ratios in sources:
            for first in range(known.shape[1]):
                if np.isfinite(ratios[first, second]):
                    lacks = jobs[known[jobs, first] & ~np.isfinite(filled[jobs, second])]
                    filled[lacks, second] = filled[lacks, first] * ratios[first, second]


def _by_the_slowest(rates: Floats, accepts: Bools) -> Floats:
    """Relative to the least of each row that counts; 1 where none does."""
    counts = accepts & np.isfinite(rates)
    least = np.where(counts, rates, np.inf).min(axis=1, initial=np.inf, keepdims=True)
    relative: Floats = np.where(counts, rates / np.where(np.isfinite(least), least, 1.0), 1.0)
    return relative
