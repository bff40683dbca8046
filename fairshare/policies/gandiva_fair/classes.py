"""Jobs that are alike to the sharing: of one leaf, with the same choice of generations and the same speeds there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairshare.model import NOWHERE, Bools, Floats, Ints, Jobs

Steps = NDArray[np.int16]

# Speeds that differ by less than this ratio are the same.
SAME_SPEED = 1.05


@dataclass(frozen=True, slots=True)
class Classes:
    """C classes, in the order of their leaves."""

    leaf: Ints  # (C,)
    able: Bools  # (C, K) where its jobs may run
    # How fast, as a power of SAME_SPEED relative to the best: 0 for the best and where unknown, 1 where it may not run.
    step: Steps  # (C, K)
    gpus: Floats  # (C,) of all its jobs together


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
    may, speed = able[some], speeds_of(jobs, able)[some]
    step: Steps = np.where(may, 0, 1).astype(np.int16)
    slower = may & (speed < 1)
    step[slower] = np.clip(np.round(np.log(speed[slower]) / np.log(SAME_SPEED)), -1000, 0)
    leaf = jobs.account[some]
    order = np.lexsort([*step.T, leaf])
    leaf, step = leaf[order], step[order]
    begins = np.diff(leaf, prepend=NOWHERE) != 0
    begins[1:] |= (step[1:] != step[:-1]).any(axis=1)
    starts = np.flatnonzero(begins)
    gpus = (jobs.workers * jobs.gpus)[some[order]].astype(np.float64)
    return Classes(
        leaf=leaf[starts],
        able=may[order[starts]],
        step=step[starts],
        gpus=np.add.reduceat(gpus, starts) if len(starts) else gpus,
    )
