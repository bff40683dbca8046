"""Places a gang that fits nowhere, by moving gangs that were already picked in this round.

Moves only change the plan: no gang has been started or stopped yet. A moved gang gets other GPUs instead.

A gang that is larger than the gang to be placed is moved only in two cases:

- The plan has it on other nodes than those where it runs or ran last.
- It must make room even if it becomes slower (`yields` of `make_room`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

import numpy as np

from fairshare.policies.gandiva_fair.classes import SAME_SPEED
from fairshare.policies.gandiva_fair.places import Places, Spot
from fairshare.policies.gandiva_fair.room import ANY

Moved = list[tuple[int, Spot]]  # moved gangs, each with the place that it left
# (job, from, to): whether limits allow the job to change from one generation to another
MayChange = Callable[[int, int, int], bool]
# (job, generation): whether the job has to leave the generation for any other where it finds room
Yields = Callable[[int, int], bool]

# Number of nodes tried for each further worker; after these the gang counts as without room.
TRIES = 8


def make_room(
    places: Places, job: int, generations: Iterable[int], may_change: MayChange, yields: Yields
) -> Moved | None:
    """Places the gang `job` on one of `generations` by moving other gangs.

    Returns the moved gangs, each with the place that it left. Returns None and changes nothing if the gang cannot be
    placed.

    - `may_change`: a function that is called with a picked gang, its generation, and another generation. It returns
      whether limits allow the gang to change to the other generation.
    - `yields`: a function that is called with a picked gang and its generation. It returns True if the gang must make
      room even if it becomes slower or is larger than `job`. All other gangs move only to GPUs on which they are about
      as fast or faster.
    """
    if places.facts.size[job] > sum(places.free_gpus):
        return None
    clearing = _Clearing(places, job, may_change, yields)
    return next((moved for k in generations if (moved := clearing.place_on(k)) is not None), None)


def undo(places: Places, moved: Moved, keep: int = 0) -> None:
    """Moves gangs back to the places that they left, the last move first, and removes these moves from `moved`.

    `keep`: how many of the first moves are not undone.
    """
    while len(moved) > keep:
        other, spot = moved.pop()
        places.take_back(other)
        places.give(other, spot)


class _Clearing:
    """Makes room for one gang, called the new gang, by moving other gangs.

    Nodes on which a worker of the new gang already fits are kept for it: no gang moves there.
    """

    def __init__(self, places: Places, job: int, may_change: MayChange, yields: Yields) -> None:
        self._facts, self._places, self._may_change, self._yields = places.facts, places, may_change, yields
        self._job, self._gpus, self._size = job, places.facts.gpus[job], places.facts.size[job]

    def place_on(self, k: int) -> Moved | None:
        """Places the new gang on generation `k`. Other gangs are moved to make room for one worker after another.

        Returns the moved gangs, each with the place that it left. Returns None and changes nothing if the new gang
        cannot be placed.
        """
        moved: Moved = []
        while not self._places.place(self._job, (k,), held=True):
            if not self._free_slot(k, moved):
                undo(self._places, moved)
                return None
        return moved

    def _free_slot(self, k: int, moved: Moved) -> bool:
        """Makes room for one more worker of the new gang on some node of generation `k`.

        Appends the gangs that it moves to `moved`. Returns False if it finds no such node, or if there was already room
        for all workers.
        """
        free = self._places.free[k]
        if free.slots(self._gpus) >= self._facts.workers[self._job]:
            return False
        nearest = islice(free.nearest(self._gpus, self._places.capacity[k]), TRIES)
        return any(self._clear(k, node, target, moved) for node, target in nearest)

    def _clear(self, k: int, node: int, target: int, moved: Moved) -> bool:
        """Moves gangs off the node until it has at least `target` free GPUs.

        Appends the moved gangs to `moved`. Returns False and changes nothing if the target cannot be reached.
        """
        places, size, before = self._places, self._facts.size, len(moved)
        there = []
        for other in places.on[k][node]:
            if other in places.pinned or not self._finds_room(other, k, node):
                continue
            # Gangs that yield may become slower.
            yields, is_at_home = self._yields(other, k), places.places[other] == places.home(other)
            if yields or size[other] <= self._size or not is_at_home:
                there.append((is_at_home, size[other], other, yields))
        if places.free[k].gpus[node] + sum(gpus for _, gpus, _, _ in there) < target:
            return False
        for _, _, other, yields in sorted(there):
            was_at = self._move(other, k, node, may_slow=yields)
            if was_at is not None:
                moved.append((other, was_at))
                if places.free[k].gpus[node] >= target:
                    return True
        undo(places, moved, before)
        return False

    def _finds_room(self, other: int, k: int, node: int) -> bool:
        """Returns whether the gang `other` would fit on other nodes if it left the node `node` of generation `k`."""
        has_room = self._places.has_room
        for to, able in enumerate(self._facts.able[other].tolist()):
            if able and has_room(other, to) and (to != k or self._has_room_elsewhere_on(other, k, node)):
                return True
        return False

    def _has_room_elsewhere_on(self, other: int, k: int, node: int) -> bool:
        slots = self._places.free[k].slots_among(self._nodes_for_others(k, node), self._facts.gpus[other])
        return slots >= self._facts.workers[other]

    def _move(self, other: int, k: int, node: int, *, may_slow: bool) -> Spot | None:
        """Moves the gang `other` off the node `node` of generation `k`.

        Returns the place that it left. Returns None and changes nothing if there is no other place for it.

        `may_slow`: whether `other` may become slower by the move.
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
                among = self._nodes_for_others(k, node) if to == k else ANY
                nodes = levels[to].nodes_for(facts.workers[other], facts.gpus[other], among)
                if nodes is not None:
                    was_at = places.take_back(other)
                    places.give(other, Spot(to, nodes))
                    return was_at
        return None

    def _nodes_for_others(self, k: int, node: int) -> int:
        """Returns the nodes of generation `k` to which other gangs may move, as a bit mask. `node` is not one of
        them."""
        return ~(self._places.free[k].at_least(self._gpus) | 1 << node)
