"""Moves picked gangs to faster generations (GPU types) on which their account is owed time: a local search.

Picked gangs are those that will run until the next round. Each has been placed on some generation. An account is *owed*
time of a generation if it has received less than its share there, and is *ahead* there if it has received more. Both
already count the coming quantum: the share that the account earns in it, and the gangs picked for it. How much time is
enough is decided by `Picked.is_due` and `Picked.is_ahead`.

If a gang would be faster on a generation where its account is owed time, other gangs there make room for it. Three ways
are tried, in this order:
1. Other gangs are moved away. Only two kinds of gangs may become slower by this: gangs of accounts that are ahead, and
   gangs of the same account that gain less speed on the generation than the gang that moves in.
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

    Other gangs make room as described at the top of this file.

    `may_stop`: whether gangs may also be stopped to make room. If false, they are only moved, and the returned list is
    empty.

    Within an account, the gangs that gain most speed move first. Sometimes the time that the account is owed on a
    generation is too short for the next gang in this order. That gang can then only change places with gangs of its own
    account. The account's later gangs do not move to the generation at all, so that the account saves its time there
    for the gang that gains most.
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

    Other gangs on generation `k` are moved to make room. Only gangs that must yield to `job` may become slower by this;
    see `_yields_to`.

    `only_own`: if true, only gangs of the same account must yield, and the move fails if the account would use more
    GPUs of generation `k` afterwards than before.
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
    """Returns a function for `make_room` that says which gangs must yield to `job`: make room for it even if they
    become slower by this.

    The function is called with a picked gang and its generation, to which `job` would move from generation `here`. It
    returns True for two kinds of gangs:
    - Gangs of other accounts that are ahead on that generation. With `only_own`, it returns False for these.
    - Gangs of the same account that gain less speed than `job` by running on that generation instead of `here`.

    It returns False for all gangs that must stay on their generation, such as running services.
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

    The account of the larger gang has received more than its share of generation `k`. The accounts of the smaller gangs
    are owed time of `k`, and these gangs are faster there. Often no single smaller gang frees enough GPUs on `here` for
    the larger gang, so that several must move together.
    """

    def __init__(self, picked: Picked, jobs: Ints, generations: Ints) -> None:
        """Prepares swaps of the gangs in `picked`.

        `jobs` and `generations`: the moves that make a gang faster, as the two arrays that `_faster` returns.
        """
        self._picked = picked
        self._movable = np.flatnonzero(picked.chosen & ~picked.facts.stays)
        self._wanting = [jobs[generations == k] for k in range(picked.facts.speed.shape[1])]

    def try_for(self, job: int, here: int, k: int) -> bool:
        """Tries to move `job` from generation `here` to `k`, together with other gangs on `here`, in exchange for a
        larger gang on `k`. Returns whether gangs were swapped.

        All gangs that move to generation `k` are faster there, and their accounts are owed time there. The exchange may
        also succeed without `job`, if the other gangs free enough GPUs.
        """
        generation = self._picked.generation
        wanting = self._wanting[k]
        group = [job, *wanting[generation[wanting] == here][:_TRIES].tolist()]
        due = [other for other in dict.fromkeys(group) if self._picked.is_due(other, k)]
        return any(self._swap(larger, due, here, k) for larger in self._larger_gangs(here, k)[:_SWAPS])

    def _useful(self, larger: int, group: list[int], here: int, k: int) -> list[int]:
        """Returns the gangs of `group` that can help to make room on generation `here` for the gang `larger`, by moving
        to generation `k`.

        A gang helps if, on each of its nodes, a worker of `larger` would fit once all gangs of `group` have left. Gangs
        on the same node follow each other in the result, so that nodes become free one after another. The result is
        empty if there would not be enough room even after the whole group has left.
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

    def _larger_gangs(self, here: int, k: int) -> list[int]:
        """Returns the gangs on generation `k` that should leave it in a swap, and may run on generation `here`.

        A gang should leave if its account is ahead of its share of generation `k` by the amount that `Picked.is_ahead`
        describes. The gangs of the account furthest ahead come first.
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
