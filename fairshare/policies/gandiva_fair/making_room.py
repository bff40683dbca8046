"""Makes room for a gang that fits nowhere, by moving gangs that were picked before.

Gangs that are larger than this gang are moved only in two cases. Either this round has placed them elsewhere than on
the nodes where they run or ran last, or the caller says that they have to leave the generation.
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
    """Places the gang on one of `generations` by moving other gangs.

    Returns the moved gangs with the places that they left, or None if it failed and nothing changed. `may_change` says
    whether limits allow a gang to change generations. `yields` says whether a gang has to leave a generation.
    """
    if places.facts.size[job] > sum(places.free_gpus):
        return None
    clearing = _Clearing(places, job, may_change, yields)
    return next((moved for k in generations if (moved := clearing.of(k)) is not None), None)


def undo(places: Places, moved: Moved, keep: int = 0) -> None:
    """Moves gangs back to the places that they left, the last move first, until only the first `keep` moves remain."""
    while len(moved) > keep:
        other, spot = moved.pop()
        places.take_back(other)
        places.give(other, spot)


class _Clearing:
    def __init__(self, places: Places, job: int, may_change: MayChange, yields: Yields) -> None:
        self._facts, self._places, self._may_change, self._yields = places.facts, places, may_change, yields
        self._job, self._gpus, self._size = job, places.facts.gpus[job], places.facts.size[job]

    def of(self, k: int) -> Moved | None:
        """Places the gang on generation `k`. Other gangs are moved to make room for one worker after another.

        Returns the moved gangs with the places that they left, or None if it failed and nothing changed.
        """
        moved: Moved = []
        while not self._places.place(self._job, (k,), held=True):
            if not self._gain_slot(k, moved):
                undo(self._places, moved)
                return None
        return moved

    def _gain_slot(self, k: int, moved: Moved) -> bool:
        """Makes room for one more worker of the gang on some node of generation `k`. Returns whether it succeeded.

        The gangs that it moves are appended to `moved`.
        """
        free = self._places.free[k]
        if free.slots(self._gpus) >= self._facts.workers[self._job]:
            return False
        nearest = islice(free.nearest(self._gpus, self._places.capacity[k]), TRIES)
        return any(self._clear(k, node, target, moved) for node, target in nearest)

    def _clear(self, k: int, node: int, target: int, moved: Moved) -> bool:
        """Moves gangs off a node until `target` GPUs are free on it. Returns False and changes nothing if that
        fails."""
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
        """Returns whether the gang `other` could find room elsewhere after leaving the node `node` of generation `k`.

        `other` leaves to make room for the gang to be placed. Nodes of generation `k` on which a worker of that gang
        already fits do not count as room for `other`.
        """
        has_room = self._places.has_room
        for to, able in enumerate(self._facts.able[other].tolist()):
            if able and has_room(other, to) and (to != k or self._has_room_beside(other, k, node)):
                return True
        return False

    def _has_room_beside(self, other: int, k: int, node: int) -> bool:
        slots = self._places.free[k].slots_among(self._beside(k, node), self._facts.gpus[other])
        return slots >= self._facts.workers[other]

    def _move(self, other: int, k: int, node: int, *, may_slow: bool) -> Spot | None:
        """Moves the picked gang `other` off its node. Returns the place that it left, or None if it finds no other
        place.

        Its new GPUs must be as fast for it as the old ones, unless `may_slow` is true. Nodes of generation `k` on which
        a worker of the gang to be placed already fits are not used.
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
                among = self._beside(k, node) if to == k else ANY
                nodes = levels[to].nodes_for(facts.workers[other], facts.gpus[other], among)
                if nodes is not None:
                    was_at = places.take_back(other)
                    places.give(other, Spot(to, nodes))
                    return was_at
        return None

    def _beside(self, k: int, node: int) -> int:
        """Returns the nodes of generation `k` to which another gang may move, as a bit mask.

        Excluded are `node` and all nodes on which a worker of the gang to be placed already fits.
        """
        return ~(self._places.free[k].at_least(self._gpus) | 1 << node)
