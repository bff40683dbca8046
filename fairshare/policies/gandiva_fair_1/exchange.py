"""Accounts side by side give up GPUs of one generation for another, so that together they use more.

What a parent can use its children can use together: ranks add up. But a division by tickets lets each child
take what it likes best, and may leave over what only those can use who have all they need by then. Exchanges
along shortest paths find room for it: Lawler and Martel, "Computing Maximal 'Polymatroidal' Network Flows",
Mathematics of Operations Research 7 (1982).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from fairshare.demand import EPSILON, room
from fairshare.model import NOWHERE, Floats

# A generation that goes to an account, for another that it gives up (NOWHERE for none).
Exchange = tuple[int, int, int]


def fit_in(rank: Floats, held: Floats, left: Floats) -> Floats:
    """Find room among C accounts for what is `left` (K,) besides what they hold; returns what they hold then.

    `rank` (C, 2^K) as of demand_rank, `held` (C, K). All of it finds room where the sum of ranks allows that.
    """
    held, left = held.copy(), left.copy()
    for generation in range(len(left)):
        while left[generation] > EPSILON:
            gpus = 0.0
            for path in _paths(rank, held, generation):
                gpus = _follow(path, rank, held, float(left[generation]))
                if gpus > 0:
                    break
            if gpus == 0:
                break
            left[generation] -= gpus
    return held


def _paths(rank: Floats, held: Floats, start: int) -> Iterator[list[Exchange]]:
    """Ways to make room for GPUs of a generation, the shortest first: each step takes what the one before gave."""
    came: dict[int, list[Exchange]] = {start: []}
    waiting = deque([start])
    while waiting:
        takes = waiting.popleft()
        path = came[takes]
        for account in range(len(held)):
            if room(rank[account], held[account], _step(held, takes, NOWHERE)) > EPSILON:
                yield [*path, (account, takes, NOWHERE)]
        for gives in range(held.shape[1]):
            if gives in came:
                continue
            for account in np.flatnonzero(held[:, gives] > EPSILON).tolist():
                if room(rank[account], held[account], _step(held, takes, gives)) > EPSILON:
                    came[gives] = [*path, (account, takes, gives)]
                    waiting.append(gives)
                    break


def _step(held: Floats, takes: int, gives: int) -> Floats:
    step = np.zeros(held.shape[1])
    step[takes] = 1.0
    if gives != NOWHERE:
        step[gives] = -1.0
    return step


def _follow(path: list[Exchange], rank: Floats, held: Floats, most: float) -> float:
    """Exchange along the path as much as everybody on it can, `most` at most; returns how much, 0 for none."""
    steps: dict[int, Floats] = {}
    for account, takes, gives in path:
        steps[account] = steps.get(account, 0.0) + _step(held, takes, gives)
    for account, step in steps.items():
        most = min(most, room(rank[account], held[account], step))
        falling = step < 0
        most = min(most, float(np.min(held[account][falling] / -step[falling], initial=np.inf)))
    if most <= EPSILON:
        return 0.0
    for account, step in steps.items():
        after = held[account] + most * step
        held[account] = np.where(after > EPSILON, after, 0.0)
    return most
