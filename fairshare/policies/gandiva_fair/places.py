"""Where gangs go: each worker's GPUs on one node, a gang on one generation, on the fewest nodes.

While a round is decided, GPUs are *given* to gangs picked in this round, or free; of the free ones some are
still *held* by running gangs that were not picked yet. A gang gets GPUs that nobody holds, else those of gangs
without a claim to stay, else any that are free, else room that moving smaller picked gangs makes, on whatever
generation these find other GPUs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from fairshare.model import NOWHERE, Bools, Cluster, Floats, Ints, Jobs
from fairshare.placement import fit
from fairshare.policies.gandiva_fair.classes import SAME_SPEED

# Nodes that are considered for one more worker before a gang is told that there is no room.
TRIES = 8
# Steps of the search for places for all, which is exact only in clusters that are small enough for it.
STEPS = 3000


class Spot(NamedTuple):
    """GPUs of one gang."""

    generation: int
    nodes: list[int]  # of each worker, rank by rank, as positions within the generation


class Places:
    """All nodes while a round is decided."""

    def __init__(  # noqa: PLR0917 - what a decision has worked out before, in that order
        self, cluster: Cluster, jobs: Jobs, able: Bools, speed: Floats, holds: Bools, settled: Bools
    ) -> None:
        """`able` (J, K) says where each job may run, `speed` (J, K) how fast it is there, the best being 1.

        `holds` (J,) marks the gangs that have GPUs and may go on with them, `settled` those of them which others
        make way for where they can.
        """
        self._able, self._speed = able, speed
        generations = range(len(cluster.generations))
        self.nodes = [np.flatnonzero(cluster.node_generation == k) for k in generations]
        self.free = [cluster.capacity[nodes] for nodes in self.nodes]  # not given in this round
        self.free_gpus = [int(free.sum()) for free in self.free]
        self._capacity = [free.copy() for free in self.free]
        self._unheld = [free.copy() for free in self.free]
        self._unsettled = [
            free.copy() for free in self.free
        ]  # or held by those that others need not make way for
        self.workers: list[int] = jobs.workers.tolist()
        self.gpus: list[int] = jobs.gpus.tolist()
        self._account: list[int] = jobs.account.tolist()
        self.places: dict[int, Spot] = {}
        self.pinned: set[int] = set()  # gangs that stay where they are
        self._on: defaultdict[tuple[int, int], set[int]] = defaultdict(set)  # picked gangs by node
        position = np.full(len(cluster.node_generation), -1, dtype=np.int64)
        for nodes in self.nodes:
            position[nodes] = np.arange(len(nodes))
        self._spots: list[int] = position[jobs.place_node].tolist()
        self._bounds: list[int] = jobs.place_start.tolist()
        self._home_generation = _home_generation(cluster, jobs)
        self.home_of: list[int] = self._home_generation.tolist()
        running = holds & (jobs.running_on != NOWHERE) & (self._home_generation == jobs.running_on)
        self._held: set[int] = set(np.flatnonzero(running).tolist())  # gangs that run and were not picked yet
        self.running = running
        self._settled = settled
        for chosen, levels in ((running, self._unheld), (running & settled, self._unsettled)):
            self._take_all(jobs, chosen, position, levels)

    def _take_all(self, jobs: Jobs, chosen: Bools, position: Ints, levels: list[Ints]) -> None:
        """Take what the `chosen` (J,) gangs have away from `levels`, all at once."""
        gang = np.repeat(np.arange(len(jobs)), np.diff(jobs.place_start))
        for k, nodes in enumerate(self.nodes):
            here = chosen[gang] & (self._home_generation[gang] == k)
            held = np.bincount(position[jobs.place_node[here]], jobs.gpus[gang[here]], len(nodes))
            levels[k] -= held.astype(np.int64)

    def home(self, job: int) -> Spot | None:
        """Where the gang runs or ran last, if all its workers do so on nodes of one generation."""
        k = self.home_of[job]
        if k == NOWHERE:
            return None
        return Spot(k, self._spots[self._bounds[job] : self._bounds[job + 1]])

    def go_home(self, job: int) -> bool:
        """Give the gang what it has, or had last if nobody else runs there; False where that is given away."""
        spot = self.home(job)
        if spot is None:
            return False
        level = self.free if job in self._held else self._unheld
        if not self._fits(job, spot, level):
            return False
        self.give(job, spot)
        return True

    def stay(self, job: int) -> bool:
        """`go_home`, and never move the gang; False where its nodes are not up any more."""
        if not self.go_home(job):
            return False
        self.pinned.add(job)
        return True

    def close(self, closed: Bools) -> None:
        """Leave of the nodes marked in `closed` (N,) only what the gangs have that stay there."""
        for k, nodes in enumerate(self.nodes):
            here = closed[nodes]
            self._capacity[k][here] -= self.free[k][here]
            self.free[k][here] = 0
            self._unheld[k][here] = np.minimum(self._unheld[k][here], 0)
            self._unsettled[k][here] = np.minimum(self._unsettled[k][here], 0)
            self.free_gpus[k] = int(self.free[k].sum())

    def place(self, job: int, generations: Iterable[int], *, held: bool) -> bool:
        """Give the gang GPUs on one of `generations`, first come first; those that others hold only if `held`."""
        for levels in (self._unheld, self._unsettled, self.free) if held else (self._unheld,):
            for k in generations:
                if self.workers[job] * self.gpus[job] > self.free_gpus[k]:
                    continue
                spot = fit(np.maximum(levels[k], 0), self.workers[job], self.gpus[job])
                if spot is not None:
                    self.give(job, Spot(k, spot.tolist()))
                    return True
        return False

    def give(self, job: int, spot: Spot) -> None:
        self.let_go(job)
        gpus, k = self.gpus[job], spot.generation
        self._shift((self.free[k], self._unheld[k], self._unsettled[k]), spot.nodes, -gpus)
        self.free_gpus[k] -= gpus * len(spot.nodes)
        self.places[job] = spot
        for node in spot.nodes:
            self._on[k, node].add(job)

    def take_back(self, job: int) -> Spot:
        """A picked gang gives up what it was given."""
        spot = self.places.pop(job)
        gpus, k = self.gpus[job], spot.generation
        self._shift((self.free[k], self._unheld[k], self._unsettled[k]), spot.nodes, gpus)
        self.free_gpus[k] += gpus * len(spot.nodes)
        for node in spot.nodes:
            self._on[k, node].discard(job)
        return spot

    def let_go(self, job: int) -> None:
        """What the gang has is held by nobody: it was picked, or nobody may go on with it."""
        if job not in self._held:
            return
        self._held.remove(job)
        spot = self.home(job)
        assert spot is not None  # noqa: S101 - who holds GPUs holds them at home
        levels = (self._unheld, self._unsettled) if self._settled[job] else (self._unheld,)
        self._shift([level[spot.generation] for level in levels], spot.nodes, self.gpus[job])

    def on(self, k: int, node: int) -> set[int]:
        """The picked gangs with workers on a node of generation `k`."""
        return self._on[k, node]

    def make_room(
        self,
        job: int,
        generations: Iterable[int],
        may_change: Callable[[int, int, int], bool],
        yields: Callable[[int, int], bool],
    ) -> list[tuple[int, Spot]] | None:
        """Place the gang where smaller picked gangs can move out of its way; None, and no change, in vain.

        `may_change` tells whether limits allow a job to go from one generation to another, `yields` whether it has
        to leave a generation for any other where it finds room. Returns the moved gangs, and where each was before.
        """
        if self.workers[job] * self.gpus[job] > sum(self.free_gpus):
            return None
        self._may_change, self._yields = may_change, yields
        for k in generations:
            moved: list[tuple[int, Spot]] = []
            while not self.place(job, (k,), held=True):
                if not self._gain_slot(job, k, moved):
                    break
            else:
                return moved
            self._undo(moved)
        return None

    def _gain_slot(self, job: int, k: int, moved: list[tuple[int, Spot]]) -> bool:
        """Free one node of generation `k` for one more worker of the gang, and say in `moved` who went."""
        gpus = self.gpus[job]
        free, capacity = self.free[k], self._capacity[k]
        slots = free // gpus
        if int(slots.sum()) >= self.workers[job]:
            return False
        never = int(capacity.max(initial=0)) + 1
        lacking = np.where((slots + 1) * gpus <= capacity, gpus - free % gpus, never)
        for node in np.argsort(lacking, kind="stable")[:TRIES].tolist():
            if lacking[node] == never:
                return False
            if self._clear(job, k, node, int(slots[node] + 1) * gpus, moved):
                return True
        return False

    def _clear(self, job: int, k: int, node: int, target: int, moved: list[tuple[int, Spot]]) -> bool:
        """Move picked gangs no larger than `job` away from a node until `target` GPUs are free there."""
        before, size = len(moved), self.workers[job] * self.gpus[job]
        there = [
            (self.places[other] == self.home(other), self.workers[other] * self.gpus[other], other)
            for other in self._on[k, node]
            if other not in self.pinned
        ]
        taboo = self.free[k] >= self.gpus[job]  # nodes that have room for a worker of the gang
        taboo[node] = True
        for _, smaller, other in sorted(there):
            # Those of its own account may become slower for it: their owner wants all of them to run.
            yields = self._yields(other, k)
            was_at = self._move(other, k, taboo, may_slow=yields) if smaller <= size or yields else None
            if was_at is not None:
                moved.append((other, was_at))
                if self.free[k][node] >= target:
                    return True
        self._undo(moved, before)
        return False

    def _move(self, job: int, k: int, taboo: Bools, *, may_slow: bool) -> Spot | None:
        """Move a picked gang to GPUs that are as good for it, or any if it `may_slow`, not on taboo nodes of `k`.

        Returns where it was; None, and no change, where it finds none.
        """
        least = 0.0 if may_slow else self._speed[job, k] / SAME_SPEED
        as_good = np.flatnonzero(self._able[job] & (self._speed[job] >= least))
        as_good = as_good[np.argsort(-self._speed[job, as_good], kind="stable")]
        for levels in (self._unheld, self.free):
            for other in as_good.tolist():
                if self.workers[job] * self.gpus[job] > self.free_gpus[other]:
                    continue
                if other != k and not self._may_change(job, k, other):
                    continue
                level = np.maximum(levels[other], 0)
                if other == k:
                    level[taboo] = 0
                spot = fit(level, self.workers[job], self.gpus[job])
                if spot is not None:
                    was_at = self.take_back(job)
                    self.give(job, Spot(other, spot.tolist()))
                    return was_at
        return None

    def _undo(self, moved: list[tuple[int, Spot]], keep: int = 0) -> None:
        """Move gangs back where they were, the last first, but for the first `keep`."""
        while len(moved) > keep:
            other, spot = moved.pop()
            self.take_back(other)
            self.give(other, spot)

    def place_all(self, jobs: Sequence[int], prefer: Sequence[Sequence[int]]) -> bool:
        """Find places for all `jobs` beside the picked ones, each on a generation of `prefer`; else no change.

        A depth-first search, large workers first: a gang goes where it fits most tightly, and elsewhere if
        that leaves no room for the others, as is seen early by their choices of generations (Hall's condition).
        It gives up after STEPS steps more than there are gangs.
        """
        order = sorted(range(len(jobs)), key=lambda i: self._tightness(jobs[i], len(prefer[i])))
        needs = self._needs([jobs[i] for i in order], [prefer[i] for i in order])
        options = [self._options(jobs[order[0]], prefer[order[0]])] if order else []
        steps, placed = 0, 0
        while placed < len(order):
            steps += 1
            tired = steps > STEPS + len(order)
            if tired or not options[-1]:
                options.pop()
                if tired or not options:
                    for i in order[:placed]:
                        self.take_back(jobs[i])
                    return False
                placed -= 1
                self.take_back(jobs[order[placed]])
                continue
            self.give(jobs[order[placed]], options[-1].pop())
            if any(sum(self.free_gpus[k] for k in choice) < need[placed + 1] for choice, need in needs):
                self.take_back(jobs[order[placed]])
                continue
            placed += 1
            if placed < len(order):
                options.append(self._options(jobs[order[placed]], prefer[order[placed]]))
        return True

    def _needs(
        self, jobs: Sequence[int], prefer: Sequence[Sequence[int]]
    ) -> list[tuple[frozenset[int], list[int]]]:
        """For each choice of generations, GPUs that those of `jobs` need there who have no other, from each job on."""
        size = [self.workers[job] * self.gpus[job] for job in jobs]
        found = []
        for choice in sorted(map(frozenset, set(map(tuple, prefer))), key=sorted):
            inside = [gpus if choice.issuperset(own) else 0 for gpus, own in zip(size, prefer, strict=True)]
            found.append((choice, [*accumulate(reversed(inside), initial=0)][::-1]))
        return found

    def _tightness(self, job: int, choice: int) -> tuple[int, int, int, int]:
        return -self.gpus[job], -self.workers[job], choice, job

    def _options(self, job: int, generations: Sequence[int]) -> list[Spot]:
        """Spots for the gang that differ in what they leave behind, the best last."""
        found: list[Spot] = []
        workers, gpus = self.workers[job], self.gpus[job]
        for k in generations:
            free = self.free[k]
            if workers > 1:
                spot = fit(np.maximum(free, 0), workers, gpus)
                found += [] if spot is None else [Spot(k, spot.tolist())]
                continue
            for left in np.unique(free[free >= gpus]).tolist():
                found.append(Spot(k, [int((free == left).argmax())]))
        found.sort(key=lambda spot: int(self.free[spot.generation][spot.nodes[0]]) if workers == 1 else 0)
        home = self.home(job)
        if home is not None and home.generation in generations and self._fits(job, home, self.free):
            found.insert(0, home)
        return found[::-1]

    def settle_down(self) -> None:
        """Now that all are picked: let running gangs go on where they are, if the others fit beside them."""
        for k in range(len(self.nodes)):
            here = [job for job, spot in self.places.items() if spot.generation == k]
            homes = {job: home for job in here if self.running[job] and (home := self.home(job)) is not None}
            stay = {job: home for job, home in homes.items() if home.generation == k}
            if all(self.places[job] == home for job, home in stay.items()):
                continue
            stay |= {job: self.places[job] for job in here if job in self.pinned}
            self._pack(k, stay, here)

    def _pack(self, k: int, stay: dict[int, Spot], jobs: list[int]) -> None:
        """Place `jobs` anew on a generation, those of `stay` there; leave all as it is where they do not fit."""
        free, found = self._capacity[k].copy(), dict(stay)
        for job, spot in stay.items():
            self._shift((free,), spot.nodes, -self.gpus[job])
        if free.min(initial=0) < 0:
            return
        rest = [job for job in jobs if job not in stay]
        for job in sorted(rest, key=lambda job: (-self.gpus[job], -self.workers[job], job)):
            home = self.home(job)
            if home is not None and home.generation == k and self._fits(job, home, {k: free}):
                spot = home
            else:
                nodes = fit(free, self.workers[job], self.gpus[job])
                if nodes is None:
                    return
                spot = Spot(k, nodes.tolist())
            self._shift((free,), spot.nodes, -self.gpus[job])
            found[job] = spot
        moved = [job for job in jobs if self.places[job] != found[job]]
        for job in moved:
            self.take_back(job)
        for job in moved:
            self.give(job, found[job])

    def _fits(self, job: int, spot: Spot, levels: Sequence[Ints] | dict[int, Ints]) -> bool:
        gpus, level = self.gpus[job], levels[spot.generation]
        if len(spot.nodes) == 1:
            return bool(level[spot.nodes[0]] >= gpus)
        return all(level[node] >= gpus * spot.nodes.count(node) for node in set(spot.nodes))

    @staticmethod
    def _shift(levels: Sequence[Ints], nodes: list[int], gpus: int) -> None:
        for level in levels:
            for node in nodes:
                level[node] += gpus


def _home_generation(cluster: Cluster, jobs: Jobs) -> Ints:
    """(J,) the generation where all workers of each gang run or ran last; NOWHERE if there is none."""
    found = np.full(len(jobs), NOWHERE, dtype=np.int64)
    count = np.diff(jobs.place_start)
    whole = np.flatnonzero((count == jobs.workers) & (count > 0))
    found[whole] = cluster.node_generation[jobs.place_node[jobs.place_start[whole]]]
    gang = np.repeat(np.arange(len(jobs)), count)
    elsewhere = cluster.node_generation[jobs.place_node] != found[gang]
    found[gang[elsewhere]] = NOWHERE
    return found
