"""Measures how fair a division of GPU time was: indices over tenants, and finish-time fairness of jobs.

A weight for each generation makes GPU time of different generations comparable. There are two kinds of weights,
never mixed: the weights published for all tenants, to compare tenants, and the speeds that a tenant measured, for
the tenant's own statement.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairshare.model import Floats, Ints
from fairshare.rates import within_reason

NOTHING = 1e-9  # GPU-seconds; less counts as zero


def delivered(received: float, due: float) -> float | None:
    """Returns received / due; None if `due` is zero."""
    return received / due if due > NOTHING else None


def jain(shares: Sequence[float]) -> float | None:
    """Returns Jain's index of n shares ≥ 0: (Σx)² / (n Σx²), from 1/n (one tenant has everything) to 1 (all are equal).

    The index does not change when all shares are multiplied by the same number. Returns None for an empty list, and
    1 when all shares are zero. Jain, Chiu, Hawe, "A Quantitative Measure of Fairness …" (DEC-TR-301, 1984), section
    3.
    """
    if not len(shares):
        return None
    most = max(shares)
    if most <= 0:
        return 1.0
    scaled = np.asarray(shares, dtype=np.float64) / most  # so that no square overflows
    return float(min(scaled.sum() ** 2 / (len(scaled) * np.square(scaled).sum()), 1.0))


def max_min(shares: Sequence[float]) -> float | None:
    """Returns the lowest share divided by the highest share; None for an empty list.

    Max-min fairness raises the lowest share first.
    """
    if not len(shares):
        return None
    most = max(shares)
    return min(shares) / most if most > 0 else 1.0


def finish_time_fairness(
    *, seconds: float, held: Floats, entitled: Floats, weight: Floats, gpus: int, sharers: float
) -> float | None:
    """Returns the finish-time fairness ρ of an ended job: its actual time divided by its time alone on its own part.

    Above 1 the job lost time by sharing. Themis (NSDI '20), section 3: ρ = T_shared / T_ideal, where T_ideal is the
    run time alone on 1/n of the cluster. Here `seconds` is the time from submit to end. The work is the GPU-seconds
    that the job `held` (K,), times `weight` (K,). The job's own part is the tenant's entitlement in that time,
    `entitled` (K,), in GPU-seconds of the generations that the job accepts, divided by `sharers`: the average number
    of the tenant's unfinished jobs, this job included. A gang uses at most `gpus` GPUs of that part, each as fast as
    the average GPU that it held. Returns None if the job held nothing, took no time or was entitled to nothing.
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
    """Returns the average number of jobs that exist in each interval from `since` to `until`.

    Each job exists from its entry in `begins` to its entry in `ends`.
    """

    def area(moments: Floats) -> Floats:
        return _ramp(begins, moments) - _ramp(ends, moments)

    length = until - since
    mean: Floats = np.divide(area(until) - area(since), length, out=np.zeros_like(length), where=length > 0)
    return mean


def _ramp(points: Floats, moments: Floats) -> Floats:
    """Returns, for each moment t in `moments`, the sum of t − p over all points p before t."""
    ordered = np.sort(points)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    before = np.searchsorted(ordered, moments)
    ramp: Floats = moments * before - sums[before]
    return ramp


def own_speeds(rate: Floats, gpus: Ints) -> Floats:
    """Returns the speed of each generation, measured by the tenant's own jobs, as an array (K,).

    The slowest generation has speed 1, an unmeasured one NaN. `rate` (J, K) is in steps per second, NaN where
    unknown. The base is the generation that most jobs measured together with another generation. The speed of a
    generation is its mean ratio to the base over the jobs measured on both, weighted by `gpus` (J,), as in trades.
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
