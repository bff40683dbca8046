"""Moves picked gangs to faster generations (GPU types) on which their account is owed time: a local search.

Picked gangs are those that will run until the next round. Each has been placed on some generation. An account is *owed*
time of a generation if it gets less than its share there, and is *ahead* there if it gets more. The coming quantum is
included. `Picked.is_due` and `Picked.is_ahead` say how much time is enough.

Other gangs on the faster generation make room. Three ways are tried, in this order:
1. They are moved elsewhere. Two kinds of gangs may become slower by this: gangs of accounts that are ahead, and gangs
   of the same account that gain less speed there.
2. One larger gang of an account that is ahead changes places with several smaller gangs (`_Swaps`).
3. Gangs of accounts that are ahead are stopped, if the caller permits it (`preempt_for`).
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
    """Moves picked gangs to generations where they are faster and where their account is owed time. Returns the gangs
    that were stopped for this.

    `may_stop`: whether gangs may be stopped to make room. If false, they are only moved, and the returned list is
    empty.

    Within an account, the gangs that gain most speed move first. A gang moves once its account is owed enough time of
    the generation to run it there (`Picked.is_due`). If the account is owed too little for a gang, it saves its time
    for this gang until a later round. In this round:
    - The gang can only take the place of gangs of its own account, so that the account gets no more GPUs of the
      generation.
    - Gangs of the account that gain less speed do not move to the generation, because they would use up the saved time.
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
            found = _move(picked, job, here, k, only_own=True)
        else:
            found = _move(picked, job, here, k)
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
    """Returns the moves that would make a picked gang faster, as two arrays of equal length: the gangs, and the
    generations to which they would move.

    Gangs that may not leave their generation are left out. Moves of the account that is furthest behind its share of
    the generation come first. Among the moves of one account to one generation, the greatest gain of speed comes first.
    """
    facts, share = picked.facts, np.maximum(picked.facts.shares.share, 1e-9)
    some = np.flatnonzero(picked.chosen & ~facts.stays)
    now = facts.speed[some, picked.generation[some]]
    row, k = np.nonzero(facts.able[some] & (facts.speed[some] > now[:, None] * SAME_SPEED))
    job = some[row]
    behind = (picked.due / share)[facts.jobs.account[job], k]
    order = np.lexsort((job, now[row] - facts.speed[job, k], -behind))
    return job[order], k[order]


def _move(picked: Picked, job: int, here: int, k: int, *, only_own: bool = False) -> bool:
    """Moves the picked gang `job` from generation `here` to generation `k`. Returns whether it succeeded; if not,
    nothing changes.

    Other gangs on generation `k` are moved to make room. Some of them may become slower; see `_yields_to`.

    `only_own`: if true, only gangs of the same account may become slower, and the account must not end up with more
    GPUs of generation `k` than before.
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
    """Returns the function `yields` for `make_room`. It says which gangs must make room for `job`, even if they become
    slower.

    The gang `job` moves from generation `here` to a faster one. The returned function is called with another gang that
    runs on the faster generation, and with this generation. It returns True in two cases:
    - The gang belongs to another account, which is ahead on the faster generation, and `only_own` is false.
    - The gang belongs to the same account, and gains less speed than `job` by the faster generation instead of `here`.

    It returns False for gangs that must stay on their generation, such as running services.
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
    """Swaps one larger gang on a generation `k` with several smaller gangs on another generation `here`.

    The account of the larger gang is ahead on `k`. The accounts of the smaller gangs are owed time of `k`, and these
    gangs are faster there. Several gangs move together if no single one frees enough GPUs for the larger gang.
    """

    def __init__(self, picked: Picked, jobs: Ints, generations: Ints) -> None:
        """Prepares swaps of the gangs in `picked`.

        `jobs` and `generations`: the moves that make a gang faster, as the two arrays that `_faster` returns.
        """
        self._picked = picked
        self._movable = np.flatnonzero(picked.chosen & ~picked.facts.stays)
        self._wanting = [jobs[generations == k] for k in range(picked.facts.speed.shape[1])]

    def try_for(self, job: int, here: int, k: int) -> bool:
        """Tries to swap `job` and other gangs on generation `here` with a larger gang on generation `k`. Returns
        whether gangs were swapped.

        If the other gangs free enough GPUs for the larger gang, `job` itself may stay on `here`.
        """
        generation = self._picked.generation
        wanting = self._wanting[k]
        group = [job, *wanting[generation[wanting] == here][:_TRIES].tolist()]
        due = [other for other in dict.fromkeys(group) if self._picked.is_due(other, k)]
        return any(self._swap(larger, due, here, k) for larger in self._larger_gangs(here, k)[:_SWAPS])

    def _useful(self, larger: int, group: list[int], here: int, k: int) -> list[int]:
        """Returns the gangs of `group` that should leave generation `here` to make room for the gang `larger`.

        These are the gangs on nodes that have room for a worker of `larger` after the whole group has left. A gang with
        several nodes needs this on each of them. Gangs on the same node are adjacent in the result. If the whole group
        does not free enough GPUs, the result is empty.
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
        # Gangs on one node are adjacent, so that nodes become free one after another.
        return sorted(leaving, key=lambda job: first[spots[job][0]])

    def _larger_gangs(self, here: int, k: int) -> list[int]:
        """Returns the gangs on generation `k` that may run on generation `here` and whose account is ahead on `k` (see
        `Picked.is_ahead`). The gangs of the account furthest ahead come first."""
        facts, picked = self._picked.facts, self._picked
        some = self._movable[picked.generation[self._movable] == k]
        due = picked.due[facts.jobs.account[some], k]
        turn = facts.sizes[some] * facts.settings.quantum
        ahead = facts.able[some, here] & (due <= -turn * (0.5 + facts.affinity[some, k]))
        some, due = some[ahead], due[ahead]
        largest: list[int] = some[np.argsort(due, kind="stable")].tolist()
        return largest

    def _swap(self, larger: int, group: list[int], here: int, k: int) -> bool:
        """Moves gangs of `group` from generation `here` to `k`, one after another, until the gang `larger` fits on
        `here`. Then moves `larger` from `k` to `here`.

        Returns whether this succeeded; if not, nothing changes.
        """
        picked, places = self._picked, self._picked.places
        leaving = self._useful(larger, group, here, k)
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
