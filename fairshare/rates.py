"""Limits the rates that jobs report, so that an extreme number cannot distort what other jobs get."""

from __future__ import annotations

import numpy as np

from fairshare.model import Floats

# The largest plausible ratio of the speeds of two GPUs; a larger ratio of reported rates has other reasons.
MOST_RATIO = 1e4
# Sums and quotients of rates outside this range would overflow or vanish.
LEAST_RATE, MOST_RATE = 1e-100, 1e100


def within_reason(rate: Floats) -> Floats:
    """Returns the rates of jobs with implausible rates corrected, as an array (J, K). NaN means that a rate is unknown.

    A rate is implausible if it is below 1/MOST_RATIO of the job's best rate, or if it is extremely large or small. If a
    job has such a rate, all its rates are divided by its best rate, and then raised to at least 1/MOST_RATIO.

    If no job has an implausible rate, returns `rate` itself.
    """
    best = np.fmax.reduce(rate, axis=1, initial=np.nan)[:, None]
    odd = ((rate > 0) & (rate < best / MOST_RATIO)) | (rate > MOST_RATE) | ((rate > 0) & (rate < LEAST_RATE))
    some = np.flatnonzero(odd.any(axis=1))
    if not len(some):
        return rate
    # Trades and shares depend only on ratios of rates, so the division does not change them.
    found = rate.copy()
    over_best = np.divide(rate[some], best[some], out=rate[some].copy(), where=rate[some] > 0)
    found[some] = np.where(rate[some] > 0, np.maximum(over_best, 1 / MOST_RATIO), rate[some])
    return found
