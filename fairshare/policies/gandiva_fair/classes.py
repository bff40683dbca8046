"""Groups similar jobs into classes, so that shares are computed for a few classes instead of thousands of jobs.

Jobs of one class have the same leaf account, may run on the same generations, and have about the same relative speeds
there. A class can also depend on the *shape* of gangs: the number of workers, and of GPUs per worker. Gangs of some
shapes cannot use all GPUs of a generation. For example, workers with 3 GPUs use only 6 of the 8 GPUs of a node. Jobs of
such a shape share a class only with jobs of the same shape.

Sizes of arrays: J jobs, C classes, K generations, S shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairshare.columns import anywhere, highest, sort_keys
from fairshare.model import NOWHERE, Bools, Cluster, Floats, Ints, Jobs
from fairshare.reasons import worker_slots

Steps = NDArray[np.int16]

# Speeds whose ratio is less than this count as equal.
SAME_SPEED = 1.05


@dataclass(frozen=True, slots=True)
class Classes:
    """The C classes of similar jobs, sorted by leaf account. Each field has one entry for each class."""

    leaf: Ints  # (C,)
    able: Bools  # (K, C) where the jobs of the class may run
    # Speed as a power of SAME_SPEED relative to the best: 0 for the best and where unknown, 1 where it may not run.
    step: Steps  # (K, C)
    gpus: Floats  # (C,) of all jobs of the class together
    most: Floats  # (C, K) GPUs of a generation that the class's gangs could use in an empty cluster


def speeds_of(jobs: Jobs, able: Bools) -> Floats:
    """Returns each job's speed on each generation, relative to its fastest generation, as an array (J, K) of numbers
    from 0 to 1.

    It is the job's measured rate, divided by its best rate on the generations where it may run (`able`, a mask (J, K)).
    Where the rate is unknown, the speed is 1, so that the scheduler tries the generation. Where the job may not run,
    the speed is 0.
    """
    rates = np.fmax(jobs.rate, 0.0) * able  # 0 where unknown
    if not rates.size:
        return rates
    best = highest(rates)
    found: Floats = rates / np.where(best > 0, best, 1.0)[:, None] + (able & (rates == 0))
    return found


def classes_of(jobs: Jobs, able: Bools, cluster: Cluster) -> Classes:
    """Returns the classes of similar jobs. Jobs that may not run on any generation are in no class.

    `able` (J, K): whether each job may run on each generation. `cluster`: its nodes say which shapes of gangs can use
    all GPUs of a generation.
    """
    some = np.flatnonzero(anywhere(able))
    may, speed = able.take(some, axis=0), speeds_of(jobs, able).take(some, axis=0)
    may, speed = np.ascontiguousarray(may.T), np.ascontiguousarray(speed.T)
    step: Steps = (~may).astype(np.int16)
    slower = may & (speed < 1)
    step[slower] = np.clip(np.round(np.log(speed[slower]) / np.log(SAME_SPEED)), -1000, 0)
    leaf, shape, most = jobs.account[some], *shapes_of(jobs, cluster)
    shape = shape[some]
    order = np.lexsort([shape, *step, *sort_keys(leaf)])
    leaf, shape, step = leaf[order], shape[order], step.take(order, axis=1)
    begins = np.diff(leaf, prepend=NOWHERE) != 0
    begins[1:] |= (step[:, 1:] != step[:, :-1]).any(axis=0) | (shape[1:] != shape[:-1])
    starts = np.flatnonzero(begins)
    gpus = (jobs.workers * jobs.gpus)[some[order]].astype(np.float64)
    return Classes(
        leaf=leaf[starts],
        able=may.take(order[starts], axis=1),
        step=step.take(starts, axis=1),
        gpus=np.add.reduceat(gpus, starts) if len(starts) else gpus,
        most=most[shape[starts]],
    )


def shapes_of(jobs: Jobs, cluster: Cluster) -> tuple[NDArray[np.unsignedinteger], Floats]:
    """Returns the shape of each job's gang, and the GPUs that gangs of each shape could use, as two arrays:

    - (J,): for each job, the index of its gang's shape among the S shapes.
    - (S, K): the GPUs of each generation that gangs of each shape could use together in an empty cluster.

    All shapes whose gangs can use all GPUs of every generation count as one shape, with index 0.
    """
    base = int(jobs.gpus.max(initial=0)) + 1
    shapes, which = np.unique(jobs.workers * base + jobs.gpus, return_inverse=True)
    workers, gpus = shapes // base, shapes % base
    slots = worker_slots(cluster, cluster.capacity, gpus)
    most = (workers * gpus)[:, None] * (slots // workers[:, None])
    all_ = np.bincount(cluster.node_generation, cluster.capacity, len(cluster.generations))
    odd = anywhere(most < all_)
    # Numbers of up to 16 bits are sorted much faster than wider ones.
    number = np.where(odd, np.cumsum(odd), 0).astype(np.min_scalar_type(len(odd)))
    return number[which], np.concatenate([all_[None], most[odd]]).astype(np.float64)
