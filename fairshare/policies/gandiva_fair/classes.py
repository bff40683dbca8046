"""Jobs that are alike to the sharing: of one leaf, with the same choice of generations and the same speeds there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairshare.model import NOWHERE, Bools, Floats, Ints, Jobs
from fairshare.policies.gandiva_fair.columns import anywhere, highest

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
    known = able & (jobs.rate > 0)
    relative = able.astype(np.float64)
    some = np.flatnonzero(anywhere(known))
    if len(some):
        rates, is_known = jobs.rate.take(some, axis=0), known.take(some, axis=0)
        rates[~is_known] = 0.0
        speeds = rates / highest(rates)[:, None]
        relative[some] = np.where(is_known, speeds, relative.take(some, axis=0))
    return relative


def classes_of(jobs: Jobs, able: Bools) -> Classes:
    """The classes of all jobs that may run somewhere: `able` (J, K)."""
    some = np.flatnonzero(anywhere(able))
    may, speed = able.take(some, axis=0), speeds_of(jobs, able).take(some, axis=0)
    step: Steps = (~may).astype(np.int16)
    slower = may & (speed < 1)
    step[slower] = np.clip(np.round(np.log(speed[slower]) / np.log(SAME_SPEED)), -1000, 0)
    leaf = jobs.account[some]
    # Numbers of 16 bits are sorted in several passes, which is much faster.
    leaf_bits = [(leaf & 0xFFFF).astype(np.uint16), (leaf >> 16).astype(np.uint16)]
    order = np.lexsort([*step.T, *leaf_bits])
    leaf, step = leaf[order], step.take(order, axis=0)
    begins = np.diff(leaf, prepend=NOWHERE) != 0
    begins[1:] |= anywhere(step[1:] != step[:-1])
    starts = np.flatnonzero(begins)
    gpus = (jobs.workers * jobs.gpus)[some[order]].astype(np.float64)
    return Classes(
        leaf=leaf[starts],
        able=may[order[starts]],
        step=step[starts],
        gpus=np.add.reduceat(gpus, starts) if len(starts) else gpus,
    )
