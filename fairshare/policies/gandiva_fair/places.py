"""Tracks which GPUs of each node are taken while a round is decided, and finds nodes for gangs (bin packing).

Each worker of a gang gets its GPUs on one node. All workers of a gang are on nodes of one generation, and on as few
nodes as possible.

A round picks gangs one after another. Meanwhile, each GPU is in one of three states:
- *given*: a gang that was picked in this round gets the GPU.
- *held*: a running gang uses the GPU and may keep it, but is not picked yet. A gang that is not picked at all will be
  preempted.
- *unheld*: neither given nor held.

Held and unheld GPUs are together called *free*, because the round may still give them to any gang.

When new nodes are sought for a gang, it gets GPUs in this order of preference:
1. Unheld GPUs.
2. GPUs held by gangs that run beyond their guarantee, except services and sessions.
3. Other held GPUs. The gangs that hold them are called *settled*.

The *spot* of a gang is its generation together with the node of each worker.

Sizes of arrays: J jobs, N nodes, K generations. A gang is identified by the index of its job.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fairshare.model import NOWHERE, Bools, Cluster, Ints, Jobs
from fairshare.policies.gandiva_fair.facts import Facts
from fairshare.policies.gandiva_fair.room import Room


class Spot(NamedTuple):
    """The spot of one gang: a generation, and the node of each of the gang's workers.

    A node is given by its position among the nodes of the generation, from 0.
    """

    generation: int
    nodes: list[int]  # node of each worker, by rank, as a position within the generation


class Places:
    """The state of all GPUs (given, held or unheld) while a round is decided, and the spots of the gangs that were
    given GPUs.

    GPUs are counted by `Room` objects. A `Room` has a number of available GPUs for each node of one generation.
    """

    def __init__(self, facts: Facts, holds: Bools, settled: Bools) -> None:
        """Starts with no GPU given. The GPUs of running gangs that may keep them are held.

        - `facts`: the input of the decision.
        - `holds` (J,): True for running gangs that may keep their GPUs.
        - `settled` (J,): True for gangs whose GPUs are the last to be given to other gangs.
        """
        cluster, jobs = facts.snapshot.cluster, facts.jobs
        self.facts, self._gpus = facts, facts.gpus
        self.nodes = [np.flatnonzero(cluster.node_generation == k) for k in range(len(cluster.generations))]
        capacity = [cluster.capacity[nodes] for nodes in self.nodes]
        self.capacity = [Room(gpus) for gpus in capacity]
        self.free = [Room(gpus) for gpus in capacity]  # GPUs not given in this round
        self.free_gpus = [int(gpus.sum()) for gpus in capacity]
        self.places: dict[int, Spot] = {}
        self.pinned: set[int] = set()  # gangs that stay where they are
        # picked gangs on each node
        self.on: list[list[set[int]]] = [[set() for _ in nodes] for nodes in self.nodes]
        position = np.full(len(cluster.node_generation), -1, dtype=np.int64)
        for nodes in self.nodes:
            position[nodes] = np.arange(len(nodes))
        self._spots: list[int] = position[jobs.place_node].tolist()
        self._bounds: list[int] = jobs.place_start.tolist()
        home = _home_generation(cluster, jobs)
        self.home_of: list[int] = home.tolist()
        self.running: Bools = holds & (jobs.running_on != NOWHERE) & (home == jobs.running_on)
        self._held: set[int] = set(
            np.flatnonzero(self.running).tolist()
        )  # running gangs that are not picked yet
        self._settled: set[int] = set(np.flatnonzero(self.running & settled).tolist())
        self.unheld = self._without(self.running)
        # GPUs that no gang holds, or only gangs that are not settled.
        self._unsettled = self._without(self.running & settled)

    def _without(self, gangs: Bools) -> list[Room]:
        """Returns the GPUs of each node that are not held by the marked gangs, as a list with one `Room` for each
        generation.

        `gangs` (J,): True for the running gangs whose GPUs are subtracted from the capacity of the nodes.
        """
        cluster, jobs = self.facts.snapshot.cluster, self.facts.jobs
        workers = np.repeat(gangs, np.diff(jobs.place_start))
        gpus = np.repeat(jobs.gpus, np.diff(jobs.place_start))[workers]
        held = np.bincount(jobs.place_node[workers], gpus, len(cluster.capacity)).astype(np.int64)
        return [Room((cluster.capacity - held)[nodes]) for nodes in self.nodes]

    def home(self, job: int) -> Spot | None:
        """Returns the spot where the gang runs, or where it ran last if it is waiting now.

        Returns None if the gang never ran, or if its workers were not all on nodes of one generation.
        """
        k = self.home_of[job]
        if k == NOWHERE:
            return None
        return Spot(k, self._spots[self._bounds[job] : self._bounds[job + 1]])

    def go_home(self, job: int) -> bool:
        """Gives the gang the GPUs of the nodes where it runs, or where it ran last. Returns whether this was possible.

        A gang that holds GPUs there keeps them, unless they were given to other gangs meanwhile. Any other gang needs
        unheld GPUs there. If it is not possible, nothing changes.
        """
        spot = self.home(job)
        if spot is None:
            return False
        k = spot.generation
        if job not in self._held:
            if not self.fits(job, spot, self.unheld[k]):
                return False
            self.give(job, spot)
            return True
        if not self.fits(job, spot, self.free[k]):
            return False
        # The GPUs count as given instead of held, which changes nothing for gangs that avoid them anyway.
        self._held.remove(job)
        counts = (self.free[k],) if job in self._settled else (self.free[k], self._unsettled[k])
        self._take(job, spot, counts)
        return True

    def stay(self, job: int) -> bool:
        """Gives the gang the GPUs of the nodes where it runs or ran last, and pins it there. Returns whether this was
        possible.

        A pinned gang is not moved to other nodes in this round. If the GPUs are not available, nothing changes.
        """
        if not self.go_home(job):
            return False
        self.pinned.add(job)
        return True

    def close(self, closed: Bools) -> None:
        """Closes nodes: from now on, this round gives no GPUs there to gangs.

        Gangs that were already given GPUs there keep them. A gang that holds GPUs there stops holding GPUs, also on its
        other nodes.

        `closed` (N,): True for the nodes to close.
        """
        for job in sorted(self._held):
            spot = self.home(job)
            if spot is not None and closed[self.nodes[spot.generation][spot.nodes]].any():
                self._end_hold(job)
        for k, nodes in enumerate(self.nodes):
            for node in np.flatnonzero(closed[nodes]).tolist():
                self.capacity[k].add(node, -self.free[k].gpus[node])
                for count in (self.free[k], self.unheld[k], self._unsettled[k]):
                    count.add(node, -max(count.gpus[node], 0))
            self.free_gpus[k] = sum(self.free[k].gpus)

    def has_room(self, job: int, k: int) -> bool:
        """Returns whether the free GPUs of generation `k`, held ones included, are enough for the gang.

        Each worker needs its GPUs on one node.
        """
        if self.facts.size[job] > self.free_gpus[k]:
            return False
        return self.free[k].slots(self._gpus[job]) >= self.facts.workers[job]

    def place(self, job: int, generations: Iterable[int], *, held: bool) -> bool:
        """Gives the gang GPUs on nodes of one of `generations`. Returns False and changes nothing if the gang does not
        fit.

        - `generations`: the generations to try, in order of preference.
        - `held`: whether the gang may also get GPUs that other gangs hold. Unheld GPUs of a later generation in the
          list are preferred to held GPUs of an earlier one.
        """
        roomy = [k for k in generations if self.has_room(job, k)]
        if not roomy:
            return False
        workers, gpus = self.facts.workers[job], self._gpus[job]
        choice = (self.unheld, self._unsettled, self.free) if held else (self.unheld,)
        for counts in choice:
            for k in roomy:
                if (home := self._home_on(job, k)) is not None and self.fits(job, home, counts[k]):
                    self.give(job, home)
                    return True
                nodes = counts[k].nodes_for(workers, gpus)
                if nodes is not None:
                    self.give(job, Spot(k, nodes))
                    return True
        return False

    def _home_on(self, job: int, k: int) -> Spot | None:
        return self.home(job) if self.home_of[job] == k else None

    def give(self, job: int, spot: Spot) -> None:
        if job in self._held:
            self._end_hold(job)
        k = spot.generation
        self._take(job, spot, (self.free[k], self.unheld[k], self._unsettled[k]))

    def _take(self, job: int, spot: Spot, counts: Iterable[Room]) -> None:
        self._add_gpus(spot, -self._gpus[job], counts)
        self.places[job] = spot
        on = self.on[spot.generation]
        for node in spot.nodes:
            on[node].add(job)

    def take_back(self, job: int) -> Spot:
        """Takes the given GPUs back from a gang, so that they are unheld. Returns the spot that the gang had."""
        spot = self.places.pop(job)
        k = spot.generation
        self._add_gpus(spot, self._gpus[job], (self.free[k], self.unheld[k], self._unsettled[k]))
        on = self.on[spot.generation]
        for node in spot.nodes:
            on[node].discard(job)
        return spot

    def _add_gpus(self, spot: Spot, gpus: int, counts: Iterable[Room]) -> None:
        """Adds `gpus` available GPUs for each worker of the spot, on the worker's node. A negative number removes GPUs.

        `counts`: the `Room` objects to change. They must belong to the spot's generation. `free_gpus` changes, too.
        """
        k, nodes = spot
        for count in counts:
            for node in nodes:
                count.add(node, gpus)
        self.free_gpus[k] += gpus * len(nodes)

    def _end_hold(self, job: int) -> None:
        """Changes the GPUs that a running gang holds from held to unheld."""
        self._held.remove(job)
        k, gpus, settled = self.home_of[job], self._gpus[job], job in self._settled
        for node in self._spots[self._bounds[job] : self._bounds[job + 1]]:
            self.unheld[k].add(node, gpus)
            if settled:
                self._unsettled[k].add(node, gpus)

    def fits(self, job: int, spot: Spot, available: Room) -> bool:
        """Returns whether each node of the spot has enough available GPUs for the gang's workers there.

        `available`: the GPUs that count as available on the nodes of the spot's generation, such as all free or all
        unheld ones.
        """
        gpus, nodes = self._gpus[job], spot.nodes
        if len(nodes) == 1:
            return available.gpus[nodes[0]] >= gpus
        return all(available.gpus[node] >= gpus * nodes.count(node) for node in set(nodes))


def _home_generation(cluster: Cluster, jobs: Jobs) -> Ints:
    """Returns the generation on which each gang runs, or ran last if it is waiting now, as an array (J,).

    The result is NOWHERE for a gang that never ran, or whose workers were not all on nodes of one generation.
    """
    found = np.full(len(jobs), NOWHERE, dtype=np.int64)
    count = np.diff(jobs.place_start)
    whole = np.flatnonzero((count == jobs.workers) & (count > 0))
    found[whole] = cluster.node_generation[jobs.place_node[jobs.place_start[whole]]]
    gang = np.repeat(np.arange(len(jobs)), count)
    elsewhere = cluster.node_generation[jobs.place_node] != found[gang]
    found[gang[elsewhere]] = NOWHERE
    return found
