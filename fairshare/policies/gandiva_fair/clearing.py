"""Room for a gang where it fits nowhere: picked gangs no larger than it move out of its way, wherever they fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from fairshare.model import Ints
from fairshare.placement import nodes_for
from fairshare.policies.gandiva_fair.classes import SAME_SPEED
from fairshare.policies.gandiva_fair.places import Places, Spot

Moved = list[tuple[int, Spot]]  # gangs that changed places, and where each was before
# Whether limits allow a job to go from one generation to another.
MayChange = Callable[[int, int, int], bool]
# Whether a gang has to leave a generation for any other where it finds room.
Yields = Callable[[int, int], bool]

# Nodes that are considered for one more worker before a gang is told that there is no room.
TRIES = 8


def make_room(
    places: Places, job: int, generations: Iterable[int], may_change: MayChange, yields: Yields
) -> Moved | None:
    """Place the gang on one of `generations`; None, and no change, in vain. Returns who moved for it."""
    if places.facts.size[job] > sum(places.free_gpus):
        return None
    clearing = _Clearing(places, job, may_change, yields)
    return next((moved for k in generations if (moved := clearing.of(k)) is not None), None)


def undo(places: Places, moved: Moved, keep: int = 0) -> None:
    """Move gangs back where they were, the last first, but for the first `keep`."""
    while len(moved) > keep:
        other, spot = moved.pop()
        places.take_back(other)
        places.give(other, spot)


class _Clearing:
    def __init__(self, places: Places, job: int, may_change: MayChange, yields: Yields) -> None:
        self._facts, self._places, self._may_change, self._yields = places.facts, places, may_change, yields
        self._job, self._gpus, self._size = job, places.facts.gpus[job], places.facts.size[job]

    def of(self, k: int) -> Moved | None:
        """Place the gang on generation `k`, one worker's room after the other."""
        moved: Moved = []
        while not self._places.place(self._job, (k,), held=True):
            if not self._gain_slot(k, moved):
                undo(self._places, moved)
                return None
        return moved

    def _gain_slot(self, k: int, moved: Moved) -> bool:
        """Free one node of the generation for one more worker, and say in `moved` who went."""
        gpus, free, capacity = self._gpus, self._places.free[k], self._places.capacity[k]
        if self._places.slots(k, gpus) >= self._facts.workers[self._job]:
            return False
        slots = free // gpus
        never = int(capacity.max(initial=0)) + 1
        lacking = np.where((slots + 1) * gpus <= capacity, gpus - free % gpus, never)
        for node in np.argsort(lacking, kind="stable")[:TRIES].tolist():
            if lacking[node] == never:
                return False
            if self._clear(k, node, int(slots[node] + 1) * gpus, moved):
                return True
        return False

    def _clear(self, k: int, node: int, target: int, moved: Moved) -> bool:
        """Move gangs away from a node until `target` GPUs are free there."""
        places, size, before = self._places, self._facts.size, len(moved)
        there = []
        for other in places.on[k][node]:
            if other in places.pinned or not self._finds_room(other, k, node):
                continue
            # Those of its own account may become slower for it: their owner wants all of them to run.
            yields = self._yields(other, k)
            if yields or size[other] <= self._size:
                there.append((places.places[other] == places.home(other), size[other], other, yields))
        if places.free[k][node] + sum(gpus for _, gpus, _, _ in there) < target:
            return False
        for _, _, other, yields in sorted(there):
            was_at = self._move(other, k, node, may_slow=yields)
            if was_at is not None:
                moved.append((other, was_at))
                if places.free[k][node] >= target:
                    return True
        undo(places, moved, before)
        return False

    def _finds_room(self, other: int, k: int, node: int) -> bool:
        """Whether there is room anywhere for a gang that leaves its node, not where a worker of the job fits."""
        has_room = self._places.has_room
        for to, able in enumerate(self._facts.able[other].tolist()):
            if able and has_room(other, to) and (to != k or self._has_room_beside(other, k, node)):
                return True
        return False

    def _has_room_beside(self, other: int, k: int, node: int) -> bool:
        gpus, free = self._facts.gpus[other], int(self._places.free[k][node])
        slots = self._places.slots(k, gpus, below=self._gpus)
        return slots - (free // gpus if free < self._gpus else 0) >= self._facts.workers[other]

    def _move(self, other: int, k: int, node: int, *, may_slow: bool) -> Spot | None:
        """Move a picked gang to GPUs that are as good for it, or any if it `may_slow`, off its node.

        Nor does it go to nodes of `k` with room for a worker of the job. Returns where it was; None, and no change,
        where it finds none.
        """
        facts, places = self._facts, self._places
        least = 0.0 if may_slow else facts.speed[other, k] / SAME_SPEED
        as_good = np.flatnonzero(facts.able[other] & (facts.speed[other] >= least))
        as_good = as_good[np.argsort(-facts.speed[other, as_good], kind="stable")]
        roomy = [
            to
            for to in as_good.tolist()
            if places.has_room(other, to) and (to == k or self._may_change(other, k, to))
        ]
        for levels in (places.unheld, places.free):
            for to in roomy:
                level = self._beside(levels[k], k, node) if to == k else levels[to]
                nodes = nodes_for(level, facts.workers[other], facts.gpus[other])
                if nodes is not None:
                    was_at = places.take_back(other)
                    places.give(other, Spot(to, nodes))
                    return was_at
        return None

    def _beside(self, level: Ints, k: int, node: int) -> Ints:
        """The level without the node, and without those where a worker of the job fits."""
        found = np.where(self._places.free[k] < self._gpus, level, 0)
        found[node] = 0
        return found
