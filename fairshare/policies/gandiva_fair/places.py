"""Places gangs on nodes: each worker on one node, each gang on one generation and on as few nodes as possible.

While a round is decided, a GPU is either *given* to a gang picked in this round, or free. A free GPU may still be
*held* by a running gang that is not picked yet. A new gang preferably gets GPUs that no gang holds. Its second choice
is GPUs held by gangs beyond their guarantee, except services and sessions. GPUs held by other gangs are the last
choice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fairshare.model import NOWHERE, Bools, Cluster, Ints, Jobs
from fairshare.policies.gandiva_fair.facts import Facts
from fairshare.policies.gandiva_fair.room import Room


class Spot(NamedTuple):
    """The place of one gang: its generation, and the node of each worker."""

    generation: int
    nodes: list[int]  # node of each worker, by rank, as a position within the generation


class Places:
    """The given, held and free GPUs of all nodes, and the places of picked gangs, while a round is decided."""

    def __init__(self, facts: Facts, holds: Bools, settled: Bools) -> None:
        """Creates the places before any gang is placed.

        `holds` (J,): marks running gangs that may keep their GPUs. `settled` (J,): marks gangs whose GPUs go to other
        gangs only if no other GPUs are free.
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

    def _without(self, chosen: Bools) -> list[Room]:
        """Returns, for each generation, how many GPUs of each node are not held by gangs in `chosen`.

        `chosen` (J,): marks running gangs.
        """
        cluster, jobs = self.facts.snapshot.cluster, self.facts.jobs
        workers = np.repeat(chosen, np.diff(jobs.place_start))
        gpus = np.repeat(jobs.gpus, np.diff(jobs.place_start))[workers]
        held = np.bincount(jobs.place_node[workers], gpus, len(cluster.capacity)).astype(np.int64)
        return [Room((cluster.capacity - held)[nodes]) for nodes in self.nodes]

    def home(self, job: int) -> Spot | None:
        """Returns the place where the gang runs or ran last. Returns None if its workers are not all on one
        generation."""
        k = self.home_of[job]
        if k == NOWHERE:
            return None
        return Spot(k, self._spots[self._bounds[job] : self._bounds[job + 1]])

    def go_home(self, job: int) -> bool:
        """Places the gang where it runs or ran last. Returns False and changes nothing if these GPUs are not available.

        For a waiting gang, GPUs that another gang holds are not available.
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
        levels = (self.free[k],) if job in self._settled else (self.free[k], self._unsettled[k])
        self._take(job, spot, levels)
        return True

    def stay(self, job: int) -> bool:
        """Places the gang where it runs or ran last, and pins it there, so that it is not moved to make room.

        Returns False and changes nothing if these GPUs are not available.
        """
        if not self.go_home(job):
            return False
        self.pinned.add(job)
        return True

    def close(self, closed: Bools) -> None:
        """Closes the nodes marked in `closed` (N,): no further gang can be placed there. Gangs already placed there
        stay."""
        for job in sorted(self._held):
            spot = self.home(job)
            if spot is not None and closed[self.nodes[spot.generation][spot.nodes]].any():
                self._let_go(job)
        for k, nodes in enumerate(self.nodes):
            for node in np.flatnonzero(closed[nodes]).tolist():
                self.capacity[k].add(node, -self.free[k].gpus[node])
                for level in (self.free[k], self.unheld[k], self._unsettled[k]):
                    level.add(node, -max(level.gpus[node], 0))
            self.free_gpus[k] = sum(self.free[k].gpus)

    def has_room(self, job: int, k: int) -> bool:
        """Returns whether the gang fits into the free GPUs of generation `k`, including GPUs that running gangs
        hold."""
        if self.facts.size[job] > self.free_gpus[k]:
            return False
        return self.free[k].slots(self._gpus[job]) >= self.facts.workers[job]

    def place(self, job: int, generations: Iterable[int], *, held: bool) -> bool:
        """Places the gang on the first of `generations` that has room. Returns False and changes nothing if none has.

        GPUs that other gangs hold are used only with `held`, and only if no generation has enough other GPUs.
        """
        roomy = [k for k in generations if self.has_room(job, k)]
        if not roomy:
            return False
        workers, gpus = self.facts.workers[job], self._gpus[job]
        choice = (self.unheld, self._unsettled, self.free) if held else (self.unheld,)
        for levels in choice:
            for k in roomy:
                nodes = levels[k].nodes_for(workers, gpus)
                if nodes is not None:
                    self.give(job, Spot(k, nodes))
                    return True
        return False

    def give(self, job: int, spot: Spot) -> None:
        if job in self._held:
            self._let_go(job)
        k = spot.generation
        self._take(job, spot, (self.free[k], self.unheld[k], self._unsettled[k]))

    def _take(self, job: int, spot: Spot, levels: Iterable[Room]) -> None:
        self._shift(spot, -self._gpus[job], levels)
        self.places[job] = spot
        on = self.on[spot.generation]
        for node in spot.nodes:
            on[node].add(job)

    def take_back(self, job: int) -> Spot:
        """Takes back the GPUs of a placed gang and returns its place."""
        spot = self.places.pop(job)
        k = spot.generation
        self._shift(spot, self._gpus[job], (self.free[k], self.unheld[k], self._unsettled[k]))
        on = self.on[spot.generation]
        for node in spot.nodes:
            on[node].discard(job)
        return spot

    def _shift(self, spot: Spot, gpus: int, levels: Iterable[Room]) -> None:
        """Makes `gpus` more GPUs available for each worker at the place `spot`, in all of `levels`. A negative number
        means fewer.

        A level is a `Room`: one count of the GPUs that are available on each node.
        """
        k, nodes = spot
        for level in levels:
            for node in nodes:
                level.add(node, gpus)
        self.free_gpus[k] += gpus * len(nodes)

    def _let_go(self, job: int) -> None:
        """Records that a running gang no longer holds its GPUs, so that other gangs may get them.

        This happens when the gang has been placed elsewhere, or may not keep these GPUs.
        """
        self._held.remove(job)
        k, gpus, settled = self.home_of[job], self._gpus[job], job in self._settled
        for node in self._spots[self._bounds[job] : self._bounds[job + 1]]:
            self.unheld[k].add(node, gpus)
            if settled:
                self._unsettled[k].add(node, gpus)

    def fits(self, job: int, spot: Spot, level: Room) -> bool:
        """Returns whether `level` has enough GPUs on each node for the gang to be placed at the spot.

        A level is a `Room`: one count of the GPUs that are available on each node.
        """
        gpus, nodes = self._gpus[job], spot.nodes
        if len(nodes) == 1:
            return level.gpus[nodes[0]] >= gpus
        return all(level.gpus[node] >= gpus * nodes.count(node) for node in set(nodes))


def _home_generation(cluster: Cluster, jobs: Jobs) -> Ints:
    """Returns the generation on which each gang runs or ran last, as an array (J,).

    The result is NOWHERE for a gang that never ran, or whose workers are not all on one generation.
    """
    found = np.full(len(jobs), NOWHERE, dtype=np.int64)
    count = np.diff(jobs.place_start)
    whole = np.flatnonzero((count == jobs.workers) & (count > 0))
    found[whole] = cluster.node_generation[jobs.place_node[jobs.place_start[whole]]]
    gang = np.repeat(np.arange(len(jobs)), count)
    elsewhere = cluster.node_generation[jobs.place_node] != found[gang]
    found[gang[elsewhere]] = NOWHERE
    return found
