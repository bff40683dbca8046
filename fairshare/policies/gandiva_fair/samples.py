"""Measures the speeds of jobs that trades need, by swapping two gangs of an account between generations.

Gandiva_fair (EuroSys '20, section 3.3) profiles jobs on the generations that they may use. Here two gangs of the same
shape and account swap places. All accounts keep their GPUs of every generation, so that profiling costs other accounts
nothing. A gang is moved for this purpose at most once for each generation.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from fairshare.model import NOWHERE, Bools, Ints, Jobs, Snapshot
from fairshare.policies.gandiva_fair.selection import Picks
from fairshare.tree import Tree

# Gangs of an account for which a partner is sought in one round; for a team with hundreds of gangs these suffice.
TRIES = 16


def swap_for_samples(snapshot: Snapshot, tree: Tree, able: Bools, picks: Picks) -> Picks:
    """Returns the picks, with at most one pair of gangs of each account swapped so that their speeds can be measured.

    The first gang of a pair was measured on the generation where it runs, but not on that of the second gang. The
    second gang must be able to run where the first one runs. Preemptible gangs are not swapped. Only accounts that
    trade, or are below an account that trades, take part. `able` (J, K) says on which generations each job may run.
    """
    jobs, settings = snapshot.jobs, snapshot.settings
    able = jobs.sharing(able)
    if not settings.trading or not settings.is_quantum:
        return picks
    generation, nodes = picks.generation.copy(), dict(picks.nodes)
    movable = (generation != NOWHERE) & _trades(snapshot, tree)[jobs.account]
    # A gang that leaves a closed node cannot come back, and no other gang may start there.
    movable &= ~jobs.on_any(snapshot.cluster.closed)
    if jobs.keeps is not None:
        movable &= ~jobs.keeps
    picked = np.flatnonzero(movable)
    picked = picked[np.argsort(jobs.account[picked], kind="stable")]
    settled = jobs.resident >= max(settings.min_hold, settings.quantum / 2)
    curious = _curious(jobs, able, generation, picked) & settled[picked]
    bounds = np.flatnonzero(np.diff(jobs.account[picked], prepend=-1, append=-1)).tolist()
    for begin, end in pairwise(bounds):
        own = picked[begin:end][settled[picked[begin:end]] | (jobs.running_on[picked[begin:end]] == NOWHERE)]
        for first in picked[begin:end][curious[begin:end]][:TRIES].tolist():
            second = _partner(jobs, able, generation, own, first)
            if second is not None:
                nodes[first], nodes[second] = nodes[second], nodes[first]
                generation[[first, second]] = generation[[second, first]]
                break
    return replace(picks, generation=generation, nodes=nodes)


def _trades(snapshot: Snapshot, tree: Tree) -> Bools:
    """Returns the accounts that trade or are below an account that trades, as a mask (T,)."""
    found = snapshot.accounts.trades.copy()
    for level in tree.levels[1:]:
        found[level] |= found[tree.parent[level]]
    return found


def _curious(jobs: Jobs, able: Bools, generation: Ints, picked: Ints) -> Bools:
    """Returns which of the `picked` gangs should be measured on another generation, as a mask.

    Such a gang continues on a generation where its speed is known, and may also run on a generation where its speed is
    unknown. `generation` (J,): the generation on which each gang is placed.
    """
    here = generation[picked]
    known = np.isfinite(jobs.rate[picked])
    at_home = (here == jobs.running_on[picked]) & known[np.arange(len(picked)), here]
    found: Bools = at_home & (able[picked] & ~known).any(axis=1)
    return found


def _partner(jobs: Jobs, able: Bools, generation: Ints, own: Ints, first: int) -> int | None:
    """Returns the gang with which the gang `first` should swap places, or None if there is no suitable gang.

    The partner is one of `own`, the gangs of the same account that may be moved. It has the same shape, is placed on a
    generation where `first` was not measured, and may run on the generation of `first`. `generation` (J,): the
    generation on which each gang is placed.
    """
    missing = able[first] & ~np.isfinite(jobs.rate[first])
    here, there = generation[first], generation[own]
    known = np.isfinite(jobs.rate[own])
    alike = (
        (jobs.workers[own] == jobs.workers[first])
        & (jobs.gpus[own] == jobs.gpus[first])
        & able[own, here]
        & missing[there]
        # A gang that was not measured only on its present generation would have to come back for that.
        & (known[np.arange(len(own)), there] | ~known[:, here])
    )
    if not alike.any():
        return None
    # Prefers a gang that was not measured here, which gains by the swap as well.
    return int(own[alike][np.argmin(known[alike, here])])
