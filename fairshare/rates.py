"""Bounds of what programs print of their own speed, so that no number of theirs upsets what others get."""

from __future__ import annotations

import numpy as np

from fairshare.model import Floats

# No GPU is as many times as fast as another; beyond that a job's printed rates differ for other reasons.
MOST_RATIO = 1e4
# Rates beyond these overflow, or vanish, where some are summed or divided.
LEAST_RATE, MOST_RATE = 1e-100, 1e100


def within_reason(rate: Floats) -> Floats:
    """(J, K) rates of jobs, NaN unknown, none of them below a MOST_RATIO-th of the job's best.

    Returns `rate` itself where nothing is beyond the bounds. A job with a rate so large or so small that it cannot be
    reckoned with gets rates over its best, which in what jobs trade and share is the same.
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
