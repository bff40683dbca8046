"""Moves picked gangs to generations where they are faster, if their account is owed time there.

Room is made by gangs whose accounts have received more than their share of the generation.
"""

from __future__ import annotations

import numpy as np

from fairshare.model import NOWHERE, Ints
from fairshare.policies.gandiva_fair.classes import SAME_SPEED
from fairshare.policies.gandiva_fair.making_room import Moved, Yields, make_room
from fairshare.policies.gandiva_fair.picked import Picked
from fairshare.policies.gandiva_fair.preempting import preempt_for

# After this many gangs failed to move to a generation, no further gang tries to.
_TRIES = 32
# For this many gangs that are ahead on a generation, gangs that are due there try to free room on their own generation.
_SWAPS = 4


def claim_fast(picked: Picked, *, may_stop: bool = False) -> list[int]:
    """Moves picked gangs to generations where they are faster and where their account is owed time.

    Room is made by gangs whose account has received more than its share of the generation: they are moved to another
    generation. With `may_stop`, gangs may also be stopped to make room. Returns the stopped gangs.

    Within an account, the gangs that gain most per GPU move first. If the account is not yet owed enough time on a
    generation to move a gang there, its gangs that gain less do not move there either. The account thus saves its time
    on the generation for the gang that gains most.
    """
    facts, speed = picked.facts, picked.facts.speed
    jobs, generations = _faster(picked)
    swaps = _Swaps(picked, jobs, generations)
    saving = set[tuple[int, int]]()
    # Pairs of generations on which no larger gang could be swapped since the last successful move.
    stuck = set[tuple[int, int]]()
    in_vain, stopped = [0] * speed.shape[1], list[int]()
    for job, k in zip(jobs.tolist(), generations.tolist(), strict=True):
        account = facts.account[job]
        if (account, k) in saving or in_vain[k] == _TRIES:
            continue
        here = int(picked.generation[job])
        if here == NOWHERE or speed[job, k] <= speed[job, here]:
            continue
        if not picked.is_due(job, k):
            saving.add((account, k))
            found = _claim(picked, job, here, k, only_own=True)
        else:
            found = _claim(picked, job, here, k)
            if not found and (here, k) not in stuck:
                found = swaps.try_for(job, here, k)
                stuck.add((here, k))
            if not found and may_stop:
                others = preempt_for(picked, job, k)
                stopped += others
                found = len(others) > 0
        in_vain[k] += not found
        if found:
            stuck.clear()
    return stopped


def _faster(picked: Picked) -> tuple[Ints, Ints]:
    """Returns picked gangs paired with generations on which they would be faster, as two arrays.

    The first pairs are those whose account is furthest behind its share of the pair's generation.
    """
    facts, share = picked.facts, np.maximum(picked.facts.shares.share, 1e-9)
    some = np.flatnonzero(picked.chosen & ~facts.stays)
    now = facts.speed[some, picked.generation[some]]
    row, k = np.nonzero(facts.able[some] & (facts.speed[some] > now[:, None] * SAME_SPEED))
    job = some[row]
    behind = (picked.due / share)[facts.jobs.account[job], k]
    order = np.lexsort((job, now[row] - facts.speed[job, k], -behind))
    return job[order], k[order]


def _claim(picked: Picked, job: int, here: int, k: int, *, only_own: bool = False) -> bool:
    """Moves a gang from generation `here` to generation `k`, where other gangs make room for it.

    Returns False and changes nothing if that is impossible. With `only_own`, only gangs of the same account make room.
    """
    if not picked.may_change(job, here, k):
        return False
    places, due = picked.places, picked.due[picked.facts.account[job]]
    before, spot = due[k], places.take_back(job)
    yields = _yields_to(picked, job, here, only_own=only_own)
    others = make_room(places, job, (k,), picked.may_change, yields)
    if others is None:
        places.give(job, spot)
        return False
    moved: Moved = [*others, (job, spot)]
    picked.follow(moved)
    if (only_own and due[k] < before - 1e-6) or not picked.is_within_limits(moved):
        picked.bring_back(moved)
        return False
    return True


def _yields_to(picked: Picked, job: int, here: int, *, only_own: bool) -> Yields:
    """Returns a function (gang, generation) that says whether a picked gang must leave the generation for `job`.

    `job` runs on generation `here`. With `only_own`, only gangs of the same account have to leave.
    """
    facts = picked.facts
    speed, account = facts.speed, facts.account

    def yields(other: int, k: int) -> bool:
        if account[other] != account[job]:
            return not only_own and picked.is_ahead(other, k)
        gains_less = speed[other, k] - speed[other, here] < speed[job, k] - speed[job, here]
        return bool(gains_less and not facts.stays[other])

    return yields


class _Swaps:
    """A helper that swaps a larger gang on one generation with several smaller gangs on another.

    The account of the larger gang has received more than its share of the first generation. The accounts of the smaller
    gangs are owed time of the first generation.
    """

    def __init__(self, picked: Picked, jobs: Ints, generations: Ints) -> None:
        """Prepares swaps. `jobs` and `generations` are the two arrays that `_faster` returns."""
        self._picked = picked
        self._movable = np.flatnonzero(picked.chosen & ~picked.facts.stays)
        self._wanting = [jobs[generations == k] for k in range(picked.facts.speed.shape[1])]

    def try_for(self, job: int, here: int, k: int) -> bool:
        """Tries to swap a larger gang on generation `k` with smaller gangs on generation `here`: `job` and others.

        Returns whether gangs were swapped. All gangs that move to generation `k` are faster there, and their accounts
        are owed time there.
        """
        generation = self._picked.generation
        wanting = self._wanting[k]
        group = [job, *wanting[generation[wanting] == here][:_TRIES].tolist()]
        due = [other for other in dict.fromkeys(group) if self._picked.is_due(other, k)]
        return any(self._swap(larger, due, here, k) for larger in self._ahead(here, k)[:_SWAPS])

    def _leaving(self, larger: int, group: list[int], here: int, k: int) -> list[int]:
        """Returns the gangs of `group` that can make room on generation `here` for the gang `larger` by moving to
        generation `k`.

        Gangs on the same node follow each other in the result. The result is empty if not even the whole group would
        make enough room.
        """
        facts, places = self._picked.facts, self._picked.places
        most = places.free_gpus[k] + facts.size[larger]
        spots = {job: places.places[job].nodes for job in group if facts.size[job] <= most}
        free, gpus = places.free[here], facts.gpus[larger]
        left: dict[int, int] = {}  # free GPUs by node once the whole group is gone
        for job, nodes in spots.items():
            for node in nodes:
                left[node] = left.get(node, free.gpus[node]) + facts.gpus[job]
        more = sum(gained // gpus - free.gpus[node] // gpus for node, gained in left.items())
        if free.slots(gpus) + more < facts.workers[larger]:
            return []
        leaving = [job for job, nodes in spots.items() if all(left[node] >= gpus for node in nodes)]
        first: dict[int, int] = {}
        for job in leaving:
            first.setdefault(spots[job][0], len(first))
        return sorted(leaving, key=lambda job: first[spots[job][0]])

    def _ahead(self, here: int, k: int) -> list[int]:
        """Returns gangs on generation `k` that may also run on generation `here`.

        Their accounts have received more than their share of generation `k`. Gangs of the account furthest ahead
        come first.
        """
        facts, picked = self._picked.facts, self._picked
        some = self._movable[picked.generation[self._movable] == k]
        due = picked.due[facts.jobs.account[some], k]
        turn = facts.sizes[some] * facts.settings.quantum
        ahead = facts.able[some, here] & (due <= -turn * (0.5 + facts.affinity[some, k]))
        some, due = some[ahead], due[ahead]
        largest: list[int] = some[np.argsort(due, kind="stable")].tolist()
        return largest

    def _swap(self, larger: int, group: list[int], here: int, k: int) -> bool:
        """Swaps the gang `larger` on generation `k` with as many gangs of `group` on generation `here` as needed.

        Returns False and changes nothing if this fails.
        """
        picked, places = self._picked, self._picked.places
        leaving = self._leaving(larger, group, here, k)
        if not leaving:
            return False
        moved: Moved = [(larger, places.take_back(larger))]
        for job in leaving:
            if not picked.is_due(job, k) or not picked.may_change(job, here, k):
                continue
            spot = places.take_back(job)
            if not places.place(job, (k,), held=True):
                places.give(job, spot)
                continue
            moved.append((job, spot))
            picked.change(job, k)
            if picked.may_change(larger, k, here) and places.place(larger, (here,), held=True):
                picked.change(larger, here)
                return True
        places.give(larger, moved[0][1])
        picked.bring_back(moved)
        return False
