"""Moves gangs to generations where they are faster, after it has been decided which gangs run.

A gang is *picked* if it will run until the next round, on a generation and nodes that are already chosen. There are two
ways to improve this choice without loss to another account: a gang moves to free GPUs, or two gangs of one account swap
places. Speeds whose ratio is less than SAME_SPEED count as equal.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from fairshare.model import Ints
from fairshare.policies.gandiva_fair.classes import SAME_SPEED
from fairshare.policies.gandiva_fair.job_order import alike
from fairshare.policies.gandiva_fair.picked import Picked


def upgrade(picked: Picked) -> bool:
    """Moves picked gangs to generations where they are faster. Returns whether any gang moved.

    First, gangs move to free GPUs. Then gangs of the same account swap places. In rounds in which running gangs may not
    move, nothing happens.
    """
    if not picked.facts.may_move:
        return False
    moved = move_to_faster(picked, held=False)
    return _change_places(picked) or moved


def move_to_faster(picked: Picked, *, held: bool) -> bool:
    """Moves picked gangs to free GPUs of generations where they are faster. Returns whether any gang moved.

    Only running gangs that were picked for the generation on which they run are moved. Gangs within their minimum time
    before preemption (`Settings.min_hold`) are not moved.

    With `held`, the GPUs of running gangs that were not picked also count as free.
    """
    facts = picked.facts
    slower = [job for job in _slower(picked) if facts.jobs.resident[job] >= facts.settings.min_hold]
    return sum(_move_to_faster(picked, job, held=held) for job in slower) > 0


def _slower(picked: Picked) -> list[int]:
    """Returns the running gangs that were picked for the generation on which they run, and would be faster on another
    one.

    Gangs that must stay on their nodes (`Places.pinned`) are left out.
    """
    speed = picked.facts.speed
    some = np.flatnonzero(picked.chosen & (picked.generation == picked.facts.jobs.running_on))
    best = speed[some].max(axis=1, initial=0.0)
    slow = some[best > speed[some, picked.generation[some]] * SAME_SPEED]
    return [job for job in slow.tolist() if job not in picked.places.pinned]


def _move_to_faster(picked: Picked, job: int, *, held: bool) -> bool:
    """Moves one picked gang to free GPUs of the fastest possible generation. Returns whether it was moved.

    Only generations on which the gang is faster than now are tried. If none of them has room within limits, nothing
    changes. With `held`, the GPUs of running gangs that were not picked also count as free.
    """
    facts, places, here = picked.facts, picked.places, int(picked.generation[job])
    speed, size = facts.speed[job], facts.size[job]
    able = np.flatnonzero(facts.able[job]).tolist()
    faster = [k for k in able if speed[k] > speed[here] * SAME_SPEED]
    for k in sorted(faster, key=lambda k: -speed[k]):
        if places.free_gpus[k] >= size and picked.may_change(job, here, k):
            spot = places.take_back(job)
            if places.place(job, (k,), held=held):
                picked.change(job, k)
                return True
            places.give(job, spot)
    return False


def _change_places(picked: Picked) -> bool:
    """Swaps gangs of one account between generations where this increases the sum of their speeds. Returns whether any
    gangs were swapped.

    Only gangs with the same number of workers and of GPUs per worker are swapped. Each of them therefore fits exactly
    into the place of the other.
    """
    changed = False
    facts = picked.facts
    jobs, speed = facts.jobs, np.maximum(facts.speed, 1e-9)
    pinned = np.zeros(len(jobs), dtype=bool)
    pinned[list(picked.places.pinned)] = True
    some = np.flatnonzero(picked.chosen & ~pinned)
    group = alike(jobs.account[some], jobs.workers[some], jobs.gpus[some])
    for a, b in combinations(range(speed.shape[1]), 2):
        both = facts.able[some, a] & facts.able[some, b]
        up, down = both & (picked.generation[some] == a), both & (picked.generation[some] == b)
        gain = speed[some, b] / speed[some, a]
        most, least = np.zeros(len(some)), np.full(len(some), np.inf)
        np.maximum.at(most, group[up], gain[up])
        np.minimum.at(least, group[down], gain[down])
        for number in np.flatnonzero(most > least * SAME_SPEED).tolist():
            own = group == number
            first, second = np.flatnonzero(own & up), np.flatnonzero(own & down)
            first = first[np.argsort(-gain[first], kind="stable")]
            second = second[np.argsort(gain[second], kind="stable")]
            changed |= _exchange(picked, some[first], some[second], a, b)
    return changed


def _exchange(picked: Picked, up: Ints, down: Ints, a: int, b: int) -> bool:
    """Swaps the first gang of `up` with the first of `down`, then the second gangs, and so on. Returns whether any
    gangs were swapped.

    Stops at the first pair whose sum of speeds would not grow by more than the factor SAME_SPEED.

    - `up`: gangs that are picked for generation `a`. Those that would gain most by moving to `b` come first.
    - `down`: gangs that are picked for generation `b`. Those that would lose least by moving to `a` come first.
    """
    speed, places, changed = picked.facts.speed, picked.places, False
    for one, other in zip(up.tolist(), down.tolist(), strict=False):
        if speed[one, b] + speed[other, a] <= (speed[one, a] + speed[other, b]) * SAME_SPEED:
            break
        first, second = places.take_back(one), places.take_back(other)
        places.give(one, second)
        places.give(other, first)
        picked.generation[one], picked.generation[other], changed = b, a, True
    return changed
