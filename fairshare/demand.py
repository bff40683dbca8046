"""Computes how many GPUs of each generation the jobs of an account can use together.

A job may accept several generations, but uses only one of them at a time. An account therefore has one number for each
set S of generations, called `rank[S]`: the GPUs of all its jobs that accept at least one generation of S.

An account can use certain amounts of the generations if, for every set S, the amounts for the generations in S add up
to at most `rank[S]`. For example, an account has one job of 4 GPUs that accepts two generations. Its rank is 4 for each
set that contains one of them or both. So it can use 4 GPUs of either generation, but not 4 GPUs of each.

The rank of an inner account is the sum of its children's ranks. Limits reduce ranks. After both, the condition is still
exact, because the usable amounts form a *polymatroid*. A set is an integer whose bit k stands for generation k, so
there are 2^K sets.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from fairshare.model import Accounts, Bools, Floats, Ints, Jobs
from fairshare.tree import Tree

EPSILON = 1e-9  # GPUs; less counts as zero


@cache
def members(generations: int) -> Floats:
    """Returns which generations belong to each set, as an array (2^K, K) of 1 and 0. It is cached and read-only.

    The index of a set is the integer whose bits are its generations.
    """
    sets = np.arange(1 << generations)[:, None]
    found: Floats = ((sets >> np.arange(generations)) & 1).astype(np.float64)
    found.flags.writeable = False
    return found


def sets_of(accepted: Bools) -> Ints:
    """Returns, for each row of the mask `accepted` (J, K), an integer whose bits are the marked generations, as an
    array (J,)."""
    bits: Ints = accepted @ (1 << np.arange(accepted.shape[1], dtype=np.int64))
    return bits


def demand_rank(tree: Tree, accounts: Accounts, jobs: Jobs, able: Bools) -> Floats:
    """Returns each account's demand for GPUs, for each set of generations (its rank), as an array (T, 2^K).

    The demand for a set is the GPUs of all jobs that accept at least one generation of the set. The jobs of all
    accounts below an account are included, and limits are applied. The sets are numbered as in `members`.

    `able` (J, K): whether each job may run on each generation now.
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
    """Returns `rank` (C, 2^K), the GPUs that C accounts can use of each set of generations, reduced by limits.

    `cap` (C, K): limits on single generations, in GPUs. `cap_total` (C,): limits on all generations together.
    """
    rank = rank.copy()
    for k in range(cap.shape[1]):
        with_k = np.flatnonzero(np.arange(rank.shape[1]) >> k & 1)
        rank[:, with_k] = np.minimum(rank[:, with_k], rank[:, with_k ^ (1 << k)] + cap[:, [k]])
    limited: Floats = np.minimum(rank, cap_total[:, None])
    return limited


def room(rank: Floats, held: Floats, step: Floats) -> float:
    """Returns the largest factor f ≥ 0 for which an account can use `held` + f × `step` GPUs.

    - `rank` (2^K,): GPUs that the account can use of each set of generations.
    - `held` (K,): GPUs of each generation that the account has.
    - `step` (K,): a change of the GPUs of each generation; entries may be negative.

    Returns infinity if nothing limits the factor.
    """
    belongs = members(len(held))
    slack, flow = rank - belongs @ held, belongs @ step
    rising = flow > 0
    if not rising.any():
        return float("inf")
    return max(float(np.min(slack[rising] / flow[rising])), 0.0)


def take(rank: Floats, held: Floats, offered: Floats, turn: Ints) -> Floats:
    """Returns the part of `offered` that each of C accounts can use in addition to `held`, in GPUs, as an array (C, K).

    - `rank` (C, 2^K): GPUs that each account can use of each set of generations.
    - `held` (C, K): GPUs of each generation that each account already has.
    - `offered` (C, K): GPUs of each generation that are offered to each account.
    - `turn` (C, K): the order in which an account takes generations if it cannot use everything: those with turn 0
      first, then those with turn 1, and so on. It takes generations of the same turn in proportion to what is offered.
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
