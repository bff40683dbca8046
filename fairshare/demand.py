"""Computes how many GPUs an account can use of each generation, and of any set of generations together.

A job that accepts several generations uses only one at a time. So the use of the jobs below an account is not
described by one number for each generation but by a *polymatroid*: shares x can be used exactly when, for every set
S of generations, the sum of x over S is at most `rank[S]`, the GPUs of the jobs that accept any generation of S.
Ranks add up along the tree, and limits cut them down, without losing exactness. The bits of an integer represent a
set; there are 2^K sets.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from fairshare.model import Accounts, Bools, Floats, Ints, Jobs
from fairshare.tree import Tree

EPSILON = 1e-9  # GPUs; less counts as zero


@cache
def members(generations: int) -> Floats:
    """Returns an array (2^K, K) that is 1 where the generation belongs to the set, else 0. It is cached and
    read-only."""
    sets = np.arange(1 << generations)[:, None]
    found: Floats = ((sets >> np.arange(generations)) & 1).astype(np.float64)
    found.flags.writeable = False
    return found


def sets_of(accepted: Bools) -> Ints:
    """Returns, for each row of `accepted` (J, K), the set of marked generations as the bits of an integer, as an array
    (J,)."""
    bits: Ints = accepted @ (1 << np.arange(accepted.shape[1], dtype=np.int64))
    return bits


def demand_rank(tree: Tree, accounts: Accounts, jobs: Jobs, able: Bools) -> Floats:
    """Returns how many GPUs of each set of generations the jobs below an account can use within its limits, as an array
    (T, 2^K).

    `able` (J, K) marks the generations on which a job may run now.
    """
    size, generations = accounts.owed.shape
    count = 1 << generations
    cell = jobs.account * count + sets_of(able)
    exactly = np.bincount(cell, jobs.workers * jobs.gpus, size * count).astype(np.float64)
    within = exactly.reshape(size, count)  # GPUs of jobs that accept only generations of the set
    for k in range(generations):
        with_k = np.flatnonzero(np.arange(count) >> k & 1)
        within[:, with_k] += within[:, with_k ^ (1 << k)]
    # The jobs that accept some generation of a set are all jobs except those that accept only generations outside it.
    rank = within[:, [count - 1]] - within[:, ::-1]
    for level in tree.levels[::-1]:
        rank[level] = _cut(rank[level], accounts.cap[level], accounts.cap_total[level])
        if level is not tree.levels[0]:
            np.add.at(rank, tree.parent[level], rank[level])
    return rank


def _cut(rank: Floats, cap: Floats, cap_total: Floats) -> Floats:
    """Returns `rank` (C, 2^K), cut by the limits `cap` (C, K) on single generations and `cap_total` (C,) on all
    together."""
    rank = rank.copy()
    for k in range(cap.shape[1]):
        with_k = np.flatnonzero(np.arange(rank.shape[1]) >> k & 1)
        rank[:, with_k] = np.minimum(rank[:, with_k], rank[:, with_k ^ (1 << k)] + cap[:, [k]])
    limited: Floats = np.minimum(rank, cap_total[:, None])
    return limited


def room(rank: Floats, held: Floats, step: Floats) -> float:
    """Returns how many times `step` (K,) can be added to `held` (K,) within the ranks; `step` may have negative
    parts."""
    belongs = members(len(held))
    slack, flow = rank - belongs @ held, belongs @ step
    rising = flow > 0
    if not rising.any():
        return float("inf")
    return max(float(np.min(slack[rising] / flow[rising])), 0.0)


def take(rank: Floats, held: Floats, offered: Floats, turn: Ints) -> Floats:
    """Returns the part of `offered` (C, K) GPUs that each account can use in addition to `held` (C, K), as an array (C,
    K).

    An account that cannot use everything takes the generations with turn 0 first, then those with turn 1 and so on,
    and generations of the same turn in equal proportion.
    """
    belongs = members(offered.shape[1])
    taken = np.zeros_like(offered)
    for now in range(offered.shape[1]):
        rest = np.where(turn == now, offered, 0.0)
        while rest.any():
            slack = np.maximum(rank - (held + taken) @ belongs.T, 0.0)
            flow = rest @ belongs.T
            part = np.divide(slack, flow, out=np.ones_like(flow), where=flow > slack).min(axis=1)
            taken += part[:, None] * rest
            full = (flow > 0) & (slack - part[:, None] * flow <= EPSILON)
            stuck = (full @ belongs > 0) | (part >= 1)[:, None]
            rest = np.where(stuck, 0.0, rest * (1 - part[:, None]))
    return taken
