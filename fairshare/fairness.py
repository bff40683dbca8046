"""How fair a division of GPU time was: indices over tenants, and finish-time fairness of jobs.

Amounts of several generations are made comparable by a weight for each, in one of two ways that are never
mixed: weights published for all, to compare tenants; or the speeds that a tenant measured, for its own statement.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairshare.model import Floats, Ints
from fairshare.rates import within_reason

NOTHING = 1e-9  # GPU-seconds; less than this is nothing


def delivered(received: float, due: float) -> float | None:
    """Received in relation to what was due; None where nothing was due."""
    return received / due if due > NOTHING else None


def jain(shares: Sequence[float]) -> float | None:
    """Jain's index of n shares ≥ 0: (Σx)² / (n Σx²), from 1/n (one has all) to 1 (all have the same).

    It does not change when all are multiplied by the same number. None of nothing; 1 where all are zero.
    Jain, Chiu, Hawe, "A Quantitative Measure of Fairness …" (DEC-TR-301, 1984), section 3.
    """
    if not len(shares):
        return None
    most = max(shares)
    if most <= 0:
        return 1.0
    scaled = np.asarray(shares, dtype=np.float64) / most  # so that no square is out of range
    return float(min(scaled.sum() ** 2 / (len(scaled) * np.square(scaled).sum()), 1.0))


def max_min(shares: Sequence[float]) -> float | None:
    """The lowest share as a part of the highest, 0 to 1: what max-min fairness raises first. None of nothing."""
    if not len(shares):
        return None
    most = max(shares)
    return min(shares) / most if most > 0 else 1.0


def finish_time_fairness(
    *, seconds: float, held: Floats, entitled: Floats, weight: Floats, gpus: int, sharers: float
) -> float | None:
    """ρ of one ended job: the time it took, divided by the time alone on its own part. Above 1 it was worse off.

    Themis (NSDI '20), section 3: ρ = T_shared / T_ideal, T_ideal being the run time alone on 1/n of the
    cluster. Here `seconds` go from submit to end. The work is what the job `held` (K,), in GPU-seconds times
    `weight` (K,). Its own part is what its tenant was `entitled` to meanwhile (K,), in GPU-seconds of the
    generations that it accepts, divided among the tenant's `sharers` unfinished jobs (on average, with itself);
    of that a gang of `gpus` uses no more than it has GPUs, each as fast as those it held on average.
    None where it held nothing, took no time or was entitled to nothing.
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
    """How many of the jobs that exist from `begins` to `ends` there were on average in each stretch of time."""

    def area(moments: Floats) -> Floats:
        return _ramp(begins, moments) - _ramp(ends, moments)

    length = until - since
    mean: Floats = np.divide(area(until) - area(since), length, out=np.zeros_like(length), where=length > 0)
    return mean


def _ramp(points: Floats, moments: Floats) -> Floats:
    """Of each moment t the sum of t − p over all points p before it."""
    ordered = np.sort(points)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    before = np.searchsorted(ordered, moments)
    ramp: Floats = moments * before - sums[before]
    return ramp


def own_speeds(rate: Floats, gpus: Ints) -> Floats:
    """(K,) speed of each generation as a tenant's own jobs measured it, the slowest being 1; NaN unmeasured.

    `rate` (J, K) in steps per second, NaN unknown. Of the generation that most jobs measured beside others,
    each other one's speed is the mean ratio over the jobs measured on both, weighted by their `gpus`, as in trades.
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
