"""Swaps gangs between generations so that the speeds of their jobs can be measured there (profiling).

Trades need the speed of a job on both generations of a trade. A measured speed is called a *sample*. To get samples,
two gangs of the same account and shape that were picked for different generations swap their nodes. Two gangs have the
same shape if they have the same number of workers and of GPUs per worker. The account keeps its GPUs of each
generation, so that profiling costs other accounts nothing.

A gang is moved for this purpose at most once for each generation. Gandiva_fair (EuroSys '20, section 3.3) also profiles
jobs on the generations that they may use.

Sizes of arrays: T accounts, K generations, J jobs.
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
    """Swaps gangs so that their speeds can be measured, at most one pair of each account. Returns a changed copy of
    `picks`.

    The first gang of a pair runs on a generation where its speed is known, and goes to a generation where it is not
    known. The second gang was picked for that generation, and takes the place of the first.

    These gangs are never swapped:
    - Gangs of accounts that do not trade, and are not below an account that trades.
    - Preemptible gangs, running services and sessions, and gangs on closed nodes.
    - Running gangs that got their GPUs less than half a quantum ago, or less than the minimum time before preemption
      ago.

    Returns `picks` unchanged if trading is off, or if this round may not move running gangs.

    - `able` (J, K): whether each job may run on each generation.
    - `picks`: the gangs picked in this round, with their nodes.
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
    unmeasured = _should_be_measured(jobs, able, generation, picked) & settled[picked]
    bounds = np.flatnonzero(np.diff(jobs.account[picked], prepend=-1, append=-1)).tolist()
    for begin, end in pairwise(bounds):
        own = picked[begin:end][settled[picked[begin:end]] | (jobs.running_on[picked[begin:end]] == NOWHERE)]
        for first in picked[begin:end][unmeasured[begin:end]][:TRIES].tolist():
            second = _partner(jobs, able, generation, own, first)
            if second is not None:
                nodes[first], nodes[second] = nodes[second], nodes[first]
                generation[[first, second]] = generation[[second, first]]
                break
    return replace(picks, generation=generation, nodes=nodes)


def _trades(snapshot: Snapshot, tree: Tree) -> Bools:
    """Returns which accounts trade, or are below an account that trades, as a mask (T,)."""
    found = snapshot.accounts.trades.copy()
    for level in tree.levels[1:]:
        found[level] |= found[tree.parent[level]]
    return found


def _should_be_measured(jobs: Jobs, able: Bools, generation: Ints, picked: Ints) -> Bools:
    """Returns which of the gangs in `picked` should be measured on another generation, as a mask with one entry for
    each of them.

    A gang should be measured if two conditions are met:
    - It was picked for the generation on which it runs now, and its speed there is known.
    - It may also run on a generation where its speed is not known.

    - `able` (J, K): whether each job may run on each generation.
    - `generation` (J,): the generation for which each gang was picked.
    - `picked`: indices of gangs.
    """
    here = generation[picked]
    known = np.isfinite(jobs.rate[picked])
    at_home = (here == jobs.running_on[picked]) & known[np.arange(len(picked)), here]
    found: Bools = at_home & (able[picked] & ~known).any(axis=1)
    return found


def _partner(jobs: Jobs, able: Bools, generation: Ints, own: Ints, first: int) -> int | None:
    """Returns the gang that should swap its place with the gang `first`, or None if there is no suitable gang.

    Suppose that `first` was picked for generation A, and another gang for generation B. The other gang is suitable if
    all of this is true:
    - It has the same number of workers, and of GPUs per worker, as `first`.
    - `first` may run on B, and its speed there is not known.
    - The other gang may run on A.
    - The speed of the other gang is known on B, or is not known on A.

    A gang whose speed on A is not known is preferred, because the swap then gives two samples.

    - `able` (J, K): whether each job may run on each generation.
    - `generation` (J,): the generation for which each gang was picked.
    - `own`: the gangs of the same account that may be moved.
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
