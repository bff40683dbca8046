"""Computes by how much accounts must deviate from their shares because gangs are indivisible.

It simulates stride scheduling on idealised hardware: the GPUs of a generation are one pool without nodes, and
preemption costs nothing. In each quantum, gangs are chosen one after another, as long as any fits. Among the users with
a gang that still fits, the user furthest behind relative to its share is always next. The deviation of this ideal
scheduler is the yardstick for real schedulers, which also have to place gangs on nodes. Sources: Waldspurger and Weihl
1995 for stride; Gandiva_fair, EuroSys '20, §3, for gangs.
"""

from __future__ import annotations

import numpy as np

from fairshare.check.economy import Economy
from fairshare.model import Floats


def earned(share: Floats, received: Floats) -> Floats:
    """Returns the GPU-quanta that each leaf account is credited with for one round, as an array (T,).

    The credit is the leaf's share. If all leaves together received only a fraction of the sum of their shares, each
    leaf is credited with this fraction of its share.

    `share` (T,): GPUs that each leaf was due. `received` (T,): GPUs that each leaf held in the round.
    """
    total = share.sum()
    return share * min(1.0, received.sum() / total) if total > 0 else share * 0.0


def fluid_lag(economy: Economy, shares: list[Floats]) -> tuple[Floats, int]:
    """Simulates the ideal stride scheduler and returns how far accounts deviate from their shares.

    Returns a pair: an array (R, T) with the GPU-quanta that each leaf had received beyond its share after each of R
    rounds, and the number of GPUs of the largest gang that ran.

    `shares` has one array (T,) for each round: the GPUs that each leaf is due.
    """
    ahead, found, largest = np.zeros(len(economy.accounts)), [], 0
    for number, share in enumerate(shares):
        runs = _round(economy, economy.active(number), share, ahead)
        received = np.zeros(len(share))
        for j in runs:
            received[economy.jobs[j].account] += economy.jobs[j].size
            largest = max(largest, economy.jobs[j].size)
        ahead = np.where(share > 0, ahead + received - earned(share, received), 0.0)
        found.append(ahead)
    return np.array(found), largest


def _round(economy: Economy, active: tuple[int, ...], share: Floats, ahead: Floats) -> list[int]:
    """Returns the jobs that run in one round of the ideal stride scheduler.

    The next gang is always taken from the leaf with the lowest ratio (`ahead` plus the GPUs that it already got in this
    round) / `share`.

    `share` (T,): GPUs that each leaf is due. `ahead` (T,): GPU-quanta that each leaf has received beyond its share in
    earlier rounds.
    """
    free = economy.capacity.copy()
    received, runs = np.zeros(len(share)), []
    queues: dict[int, list[int]] = {}
    for j in sorted(active, key=lambda j: -economy.jobs[j].priority):
        if share[economy.jobs[j].account] > 0:
            queues.setdefault(economy.jobs[j].account, []).append(j)
    while queues:
        leaf = min(queues, key=lambda t: ((ahead[t] + received[t]) / share[t], t))
        for j in queues[leaf]:
            size = economy.jobs[j].size
            room = np.where(economy.able[j] & (free >= size), 1 + free, 0.0) * economy.speed[j]
            if room.any():
                free[int(room.argmax())] -= size
                received[leaf] += size
                runs.append(j)
                queues[leaf].remove(j)
                break
        else:
            del queues[leaf]
            continue
        if not queues[leaf]:
            del queues[leaf]
    return runs
