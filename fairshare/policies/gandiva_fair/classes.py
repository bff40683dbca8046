"""Jobs that are alike to the sharing: of one leaf, with the same choice of generations and the same speeds there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.model import NOWHERE, Bools, Floats, Ints, Jobs

# Speeds that differ by less than this ratio are the same.
SAME_SPEED = 1.05


@dataclass(frozen=True, slots=True)
class Classes:
    """C classes, in the order of their leaves."""

    leaf: Ints  # (C,)
    able: Bools  # (C, K) where its jobs may run
    step: Ints  # (C, K) how fast, as a power of SAME_SPEED relative to the best; 0 for the best, and where unknown
    eff: Floats  # (C, K) the same as a ratio, the mean of its jobs weighted by GPUs; 0 where they may not run
    gpus: Floats  # (C,) of all its jobs together
    of_job: Ints  # (J,) NOWHERE where a job may run nowhere


def speeds_of(jobs: Jobs, able: Bools) -> Floats:
    """(J, K) rate on each generation relative to the best of those that a job may use.

    1 where a rate is unknown, so that a generation that nobody tried is tried; 0 where the job may not run.
    """
    known = able & (np.nan_to_num(jobs.rate) > 0)
    rates = np.where(known, jobs.rate, 0.0)
    best = rates.max(axis=1, keepdims=True, initial=0.0)
    relative: Floats = np.divide(rates, best, out=np.ones_like(rates), where=known)
    return np.where(able, relative, 0.0)


def classes_of(jobs: Jobs, able: Bools) -> Classes:
    """The classes of all jobs that may run somewhere: `able` (J, K)."""
    some = np.flatnonzero(able.any(axis=1))
    may, eff = able[some], speeds_of(jobs, able)[some]
    step = np.zeros(may.shape, dtype=np.int16)
    slower = may & (eff < 1)
    step[slower] = np.clip(np.round(np.log(eff[slower]) / np.log(SAME_SPEED)), -1000, 0)
    leaf = jobs.account[some]
    look = np.where(may, step, 1).astype(np.int16)
    order = np.lexsort([*look.T, leaf])
    look = look[order]
    begins = np.diff(leaf[order], prepend=NOWHERE) != 0
    begins[1:] |= (look[1:] != look[:-1]).any(axis=1)
    starts = np.flatnonzero(begins)
    gpus = (jobs.workers * jobs.gpus)[some].astype(np.float64)
    total = _sums(gpus[order], starts)
    of_job = np.full(len(jobs), NOWHERE, dtype=np.int64)
    of_job[some[order]] = np.cumsum(begins) - 1
    first = order[starts]
    return Classes(
        leaf=leaf[first],
        able=may[first],
        step=step[first].astype(np.int64),
        eff=_sums((gpus[:, None] * eff)[order], starts) / total[:, None] if len(some) else eff,
        gpus=total,
        of_job=of_job,
    )


def _sums(values: Floats, starts: Ints) -> Floats:
    found: Floats = np.add.reduceat(values, starts, axis=0) if len(starts) else values[:0]
    return found
