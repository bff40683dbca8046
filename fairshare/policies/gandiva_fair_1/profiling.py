"""Getting the speeds that trades need: gangs of one account change places across generations, once each.

Gandiva_fair (EuroSys '20) profiles jobs on the generations that they may use, moving them where samples
are missing. Here two gangs of the same shape and account swap: what every account gets of every
generation stays as it was, so that profiling costs nobody else anything, and each gang moves for it at
most once a generation.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from fairshare.model import NOWHERE, Bools, Ints, Jobs, Settings
from fairshare.placement import Packing

# Gangs of an account for which a partner is sought in one round; a team of hundreds needs no more.
TRIES = 16


def swap_for_samples(
    jobs: Jobs, able: Bools, generation: Ints, packings: list[Packing], settings: Settings
) -> None:
    """Lets at most one pair of each account's picked gangs swap places; changes `generation` and `packings`.

    `able` (J, K) says where jobs may run, `generation` (J,) where they were picked. One of a pair has been
    measured where it runs and not where the other is; the other may run here, too.
    """
    movable = generation != NOWHERE
    for packing in packings:
        movable[list(packing.pinned)] = False
    picked = np.flatnonzero(movable)
    picked = picked[np.argsort(jobs.account[picked], kind="stable")]
    curious = _curious(jobs, able, generation, picked, settings)
    bounds = np.flatnonzero(np.diff(jobs.account[picked], prepend=-1, append=-1)).tolist()
    for begin, end in pairwise(bounds):
        own = picked[begin:end]
        for first in own[curious[begin:end]][:TRIES].tolist():
            second = _partner(jobs, able, generation, own, first)
            if second is not None:
                _swap(first, second, generation, packings)
                break


def _curious(jobs: Jobs, able: Bools, generation: Ints, picked: Ints, settings: Settings) -> Bools:
    """Which of `picked` go on where they were measured, and may run on a generation where they were not."""
    here = generation[picked]
    known = np.isfinite(jobs.rate[picked])
    at_home = (here == jobs.running_on[picked]) & known[np.arange(len(picked)), here]
    settled = jobs.resident[picked] >= max(settings.min_hold, settings.quantum / 2)
    found: Bools = at_home & settled & (able[picked] & ~known).any(axis=1)
    return found


def _partner(jobs: Jobs, able: Bools, generation: Ints, own: Ints, first: int) -> int | None:
    """One of `own` of the shape of `first`, on a generation that `first` lacks, which may run where it is."""
    missing = able[first] & ~np.isfinite(jobs.rate[first])
    here = generation[first]
    alike = (
        (jobs.workers[own] == jobs.workers[first])
        & (jobs.gpus[own] == jobs.gpus[first])
        & able[own, here]
        & missing[generation[own]]
    )
    partners = own[alike]
    if not len(partners):
        return None
    # One that lacks a sample here gains by the swap as well.
    return int(partners[np.argmin(np.isfinite(jobs.rate[partners, here]))])


def _swap(first: int, second: int, generation: Ints, packings: list[Packing]) -> None:
    here, there = packings[generation[first]].places, packings[generation[second]].places
    here[second], there[first] = here.pop(first), there.pop(second)
    generation[first], generation[second] = generation[second], generation[first]
