"""Bounds the rates that programs report, so that no reported number can distort what others get."""

from __future__ import annotations

import numpy as np

from fairshare.model import Floats

# No GPU is this many times as fast as another; a larger ratio of printed rates has other reasons.
MOST_RATIO = 1e4
# Sums and quotients of rates beyond these would overflow or vanish.
LEAST_RATE, MOST_RATE = 1e-100, 1e100


def within_reason(rate: Floats) -> Floats:
    """Returns (J, K) rates of jobs, NaN unknown, with none below 1/MOST_RATIO of the job's best.

    Returns `rate` itself where no rate is out of bounds. A job with a rate that is too large or too small to compute
    with gets its rates divided by its best, which does not change how it trades and shares.
    """
    best = np.fmax.reduce(rate, axis=1, initial=np.nan)[:, None]
    odd = ((rate > 0) & (rate < best / MOST_RATIO)) | (rate > MOST_RATE) | ((rate > 0) & (rate < LEAST_RATE))
    some = np.flatnonzero(odd.any(axis=1))
    if not len(some):
        return rate
    found = rate.copy()
    over_best = np.divide(rate[some], best[some], out=rate[some].copy(), where=rate[some] > 0)
    found[some] = np.where(rate[some] > 0, np.maximum(over_best, 1 / MOST_RATIO), rate[some])
    return found
