"""Measures how fairly GPU time was divided: indices over tenants, and finish-time fairness of jobs.

GPU time of different generations is made comparable by a weight for each generation. Figures that compare tenants use
published weights, which are the same for all tenants. Figures about a single tenant use the speeds of the generations
that were measured with the tenant's own jobs. The two kinds of weights are never mixed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairshare.model import Floats, Ints
from fairshare.rates import within_reason

NOTHING = 1e-9  # GPU-seconds; less counts as zero


def delivered(received: float, due: float) -> float | None:
    """Returns `received` divided by `due`, two amounts of GPU time, or None if nothing was due."""
    return received / due if due > NOTHING else None


def jain(shares: Sequence[float]) -> float | None:
    """Returns Jain's fairness index of n shares ≥ 0: (Σx)² / (n Σx²).

    It ranges from 1/n (one tenant has everything) to 1 (all shares are equal), and does not change when all shares are
    multiplied by the same number. Returns None for an empty list, and 1 when all shares are zero. Source: Jain, Chiu,
    Hawe, "A Quantitative Measure of Fairness …" (DEC-TR-301, 1984), section 3.
    """
    if not len(shares):
        return None
    most = max(shares)
    if most <= 0:
        return 1.0
    scaled = np.asarray(shares, dtype=np.float64) / most  # so that no square overflows
    return float(min(scaled.sum() ** 2 / (len(scaled) * np.square(scaled).sum()), 1.0))


def max_min(shares: Sequence[float]) -> float | None:
    """Returns the lowest share divided by the highest share, which is 1 if all shares are equal.

    Returns None for an empty list, and 1 when all shares are zero.
    """
    if not len(shares):
        return None
    most = max(shares)
    return min(shares) / most if most > 0 else 1.0


def finish_time_fairness(
    *, seconds: float, held: Floats, entitled: Floats, weight: Floats, gpus: int, sharers: float
) -> float | None:
    """Returns the finish-time fairness ρ of an ended job: its actual time divided by its time alone on its fair part.

    If ρ is above 1, the job lost time by sharing. Source: Themis (NSDI '20), section 3, ρ = T_shared / T_ideal.

    - `seconds`: the actual time (T_shared), from submit to end.
    - `weight` (K,): the value of one GPU of each generation.
    - `held` (K,): GPU-seconds that the job held on each generation.
    - `entitled` (K,): the tenant's entitlement from submit to end, in GPU-seconds of the generations that the job
      accepts.
    - `sharers`: average number of unfinished jobs of the tenant, this job included. The fair part of each of them is an
      equal part of the entitlement.
    - `gpus`: GPUs of the gang, the most that the job can use at the same time.

    Returns None if the job held nothing, took no time or was entitled to nothing.
    """
    work, all_held = float(held @ weight), float(held.sum())
    if seconds <= 0 or work <= 0 or all_held <= 0 or sharers <= 0:
        return None
    part = float(entitled @ weight) / seconds / max(sharers, 1.0)
    if part <= 0:
        return None
    # The gang's GPUs count with the average weight of the GPUs that the job really held.
    alone = work / min(gpus * work / all_held, part)
    return seconds / alone


def unfinished_between(begins: Floats, ends: Floats, since: Floats, until: Floats) -> Floats:
    """Returns the average number of jobs that existed in each interval, as an array with one value for each interval.

    `begins` and `ends` have the begin and end of each job; `since` and `until` those of each interval.
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
    """Returns the relative speed of each generation as measured by a tenant's own jobs, as an array (K,).

    For each job that was measured on a generation and on a base generation, the two rates are divided. The speed of the
    generation is the mean of these ratios, or NaN if there are none. All speeds are then divided by the lowest.

    `rate` (J, K): steps per second, NaN where unknown. `gpus` (J,): GPUs of each job, its weight in the means.
    """
    rate = within_reason(rate)
    known = np.nan_to_num(rate) > 0
    together = known.T.astype(np.int64) @ known.astype(np.int64)
    speed = np.full(rate.shape[1], np.nan)
    if not known.any():
        return speed
    beside = together.sum(axis=1) - together.diagonal()
    # The base is the generation whose jobs have the most measurements on other generations.
    base = max(range(len(beside)), key=lambda k: (beside[k], together[k, k], -k))
    for k in range(rate.shape[1]):
        both = known[:, base] & known[:, k]
        if both.any():
            speed[k] = np.average(rate[both, k] / rate[both, base], weights=gpus[both])
    scaled: Floats = speed / np.nanmin(speed)
    return scaled
