"""Measures how fair a division of GPU time was: indices over tenants, and finish-time fairness of jobs.

A weight for each generation makes amounts comparable. There are two kinds of weights, never mixed: those published
for all, to compare tenants, and the speeds that a tenant measured, for its own statement.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairshare.model import Floats, Ints
from fairshare.rates import within_reason

NOTHING = 1e-9  # GPU-seconds; less counts as zero


def delivered(received: float, due: float) -> float | None:
    """Returns received / due; None where nothing was due."""
    return received / due if due > NOTHING else None


def jain(shares: Sequence[float]) -> float | None:
    """Returns Jain's index of n shares ≥ 0: (Σx)² / (n Σx²), from 1/n (one has everything) to 1 (all are equal).

    It does not change when all shares are multiplied by the same number. Returns None for an empty list, 1 when all
    are zero. Jain, Chiu, Hawe, "A Quantitative Measure of Fairness …" (DEC-TR-301, 1984), section 3.
    """
    if not len(shares):
        return None
    most = max(shares)
    if most <= 0:
        return 1.0
    scaled = np.asarray(shares, dtype=np.float64) / most  # so that no square overflows
    return float(min(scaled.sum() ** 2 / (len(scaled) * np.square(scaled).sum()), 1.0))


def max_min(shares: Sequence[float]) -> float | None:
    """Returns the lowest share as a fraction of the highest, which max-min fairness raises first; None for an empty
    list."""
    if not len(shares):
        return None
    most = max(shares)
    return min(shares) / most if most > 0 else 1.0


def finish_time_fairness(
    *, seconds: float, held: Floats, entitled: Floats, weight: Floats, gpus: int, sharers: float
) -> float | None:
    """Returns ρ of an ended job: the time it took divided by its run time alone on its own part. Above 1 it lost by
    sharing.

    Themis (NSDI '20), section 3: ρ = T_shared / T_ideal, where T_ideal is the run time alone on 1/n of the cluster.
    Here `seconds` is the time from submit to end. The work is what the job `held` (K,), in GPU-seconds, times
    `weight` (K,). The job's own part is the tenant's entitlement in that time, `entitled` (K,), in GPU-seconds of
    the generations that it accepts, divided by the average number of the tenant's unfinished jobs, `sharers`, which
    includes this job. Of that part a gang uses at most `gpus` GPUs, each as fast as the average GPU that it held.
    Returns None where the job held nothing, took no time or was entitled to nothing.
    """
    work, all_held = float(held @ weight), float(held.sum())
    if seconds <= 0 or work <= 0 or all_held <= 0 or sharers <= 0:
        return None
    part = float(entitled @ weight) / seconds / max(sharers, 1.0)
    if part <= 0:
        return None
    alone = work / min(gpus * work / all_held, part)
    return seconds / alone


def unfinished_between(begins: Floats, ends: Floats, since: Floats, until: Floats) -> Floats:
    """Returns the average number of jobs, which exist from `begins` to `ends`, in each interval `since` to `until`."""

    def area(moments: Floats) -> Floats:
        return _ramp(begins, moments) - _ramp(ends, moments)

    length = until - since
    mean: Floats = np.divide(area(until) - area(since), length, out=np.zeros_like(length), where=length > 0)
    return mean


def _ramp(points: Floats, moments: Floats) -> Floats:
    """Returns, for each moment t, the sum of t − p over all points p before t."""
    ordered = np.sort(points)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    before = np.searchsorted(ordered, moments)
    ramp: Floats = moments * before - sums[before]
    return ramp


def own_speeds(rate: Floats, gpus: Ints) -> Floats:
    """Returns (K,) the speed of each generation by the tenant's own jobs; the slowest is 1, unmeasured ones are NaN.

    `rate` (J, K) is in steps per second, NaN unknown. The base is the generation that most jobs measured together
    with another. The speed of each other one is its mean ratio to the base over jobs measured on both, weighted by
    `gpus` (J,), as in trades.
    """
    rate = within_reason(rate)
    known = np.nan_to_num(rate) > 0
    together = known.T.astype(np.int64) @ known.astype(np.int64)
    speed = np.full(rate.shape[1], np.nan)
    if not known.any():
        return speed
    beside = together.sum(axis=1) - together.diagonal()
    base = max(range(len(beside)), key=lambda k: (beside[k], together[k, k], -k))
    for k in range(rate.shape[1]):
        both = known[:, base] & known[:, k]
        if both.any():
            speed[k] = np.average(rate[both, k] / rate[both, base], weights=gpus[both])
    scaled: Floats = speed / np.nanmin(speed)
    return scaled
