"""Measures the speeds that trades need: gangs of one account change places across generations, once each.

Gandiva_fair (EuroSys '20, section 3.3) profiles jobs on the generations that they may use. Here two gangs of the
same shape and account change places. What every account gets of every generation stays the same, so that profiling
costs no other account anything, and each gang moves for it at most once per generation.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from fairshare.model import NOWHERE, Bools, Ints, Jobs, Snapshot
from fairshare.policies.gandiva_fair.selection import Picks
from fairshare.tree import Tree

# Gangs of an account for which a partner is sought in one round; a team with hundreds needs no more.
TRIES = 16


def swap_for_samples(snapshot: Snapshot, tree: Tree, able: Bools, picks: Picks) -> Picks:
    """Returns the picks after swapping at most one pair of gangs of each account.

    `able` (J, K) says where jobs may run. One gang of a pair continues where its speed was measured, and was not
    measured where the other is; the other one may run here too. Only accounts that trade, or are below one that
    does, take part, and only gangs that take part in the sharing.
    """
    jobs, settings = snapshot.jobs, snapshot.settings
    able = jobs.sharing(able)
    if not settings.trading or not settings.is_quantum:
        return picks
    generation, nodes = picks.generation.copy(), dict(picks.nodes)
    movable = (generation != NOWHERE) & _trades(snapshot, tree)[jobs.account]
    # What leaves a closed node cannot come back, and nothing else may start there.
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
    """Returns (T,) whether an account or one above it trades."""
    found = snapshot.accounts.trades.copy()
    for level in tree.levels[1:]:
        found[level] |= found[tree.parent[level]]
    return found


def _curious(jobs: Jobs, able: Bools, generation: Ints, picked: Ints) -> Bools:
    """Returns which of `picked` continue where they were measured, and may run on a generation where they were not."""
    here = generation[picked]
    known = np.isfinite(jobs.rate[picked])
    at_home = (here == jobs.running_on[picked]) & known[np.arange(len(picked)), here]
    found: Bools = at_home & (able[picked] & ~known).any(axis=1)
    return found


def _partner(jobs: Jobs, able: Bools, generation: Ints, own: Ints, first: int) -> int | None:
    """Returns one of `own`, of the shape of `first` and on a generation that `first` lacks, that may run where `first`
    is."""
    missing = able[first] & ~np.isfinite(jobs.rate[first])
    here, there = generation[first], generation[own]
    known = np.isfinite(jobs.rate[own])
    alike = (
        (jobs.workers[own] == jobs.workers[first])
        & (jobs.gpus[own] == jobs.gpus[first])
        & able[own, here]
        & missing[there]
        # A gang that lacks a sample only there would have to come back for it.
        & (known[np.arange(len(own)), there] | ~known[:, here])
    )
    if not alike.any():
        return None
    # A gang that lacks a sample here gains by the swap as well.
    return int(own[alike][np.argmin(known[alike, here])])
