"""Places gangs on nodes: each worker on one node, each gang on one generation and on as few nodes as possible.

While a round is decided, a GPU is either *given* to a gang picked in this round, or free. A free GPU may still be
*held* by a running gang that is not picked yet. New gangs avoid held GPUs if they can, so that a running gang that
continues finds its nodes unchanged.
"""

from __future__ import annotations

import numpy as np

from fairshare.model import Bools, Cluster, Ints, Jobs

_NO_NODE = np.iinfo(np.int64).max  # more than any node can have free: marks nodes that cannot hold the gang


def fit(free: Ints, workers: int, gpus: int) -> Ints | None:
    """Returns the node of each worker of a gang, as positions in `free`, an array (workers,). None if the gang does not
    fit.

    `free` has the free GPUs of each node; a negative number counts as 0. Each worker needs `gpus` GPUs on one node. The
    function prefers the fewest nodes, then nodes on which the fewest GPUs remain free.
    """
    if not len(free):
        return None
    left = np.where(free >= workers * gpus, free, _NO_NODE)
    best = int(left.argmin())
    if left[best] != _NO_NODE:
        return np.full(workers, best)
    if workers == 1:
        return None
    slots = np.maximum(free // gpus, 0)
    if int(slots.sum()) < workers:
        return None
    ordered = np.lexsort((free, -slots))
    reach = np.cumsum(slots[ordered])
    full = int(np.searchsorted(reach, workers))  # number of nodes that are filled with workers
    rest = workers - (int(reach[full - 1]) if full else 0)
    others = ordered[full:]
    last = others[np.where(slots[others] >= rest, free[others], _NO_NODE).argmin()]
    found: Ints = np.append(np.repeat(ordered[:full], slots[ordered[:full]]), np.full(rest, last))
    return found


def _take(free: Ints, spot: Ints, gpus: int) -> None:
    """Subtracts `gpus` from `free` for each worker at its position in `spot`. A position may occur several times."""
    if len(spot) == 1:  # most gangs have one worker, and `np.subtract.at` is many times slower
        free[spot[0]] -= gpus
    else:
        np.subtract.at(free, spot, gpus)


class Packing:
    """The placement of gangs on the nodes of one generation while a round is decided.

    A *position* in this class is an index into `nodes`.
    """

    def __init__(self, cluster: Cluster, generation: int, jobs: Jobs, holds: Bools) -> None:
        """Reads the nodes of the generation, and the running gangs there. `holds` (J,) marks gangs that may keep their
        GPUs."""
        self.nodes = np.flatnonzero(cluster.node_generation == generation)
        self.free = cluster.capacity[self.nodes]  # GPUs not given in this round
        self.free_gpus = int(self.free.sum())
        self.places: dict[int, Ints] = {}  # for each picked gang, the position of each worker
        self._capacity = self.free.copy()
        self._jobs = jobs
        position = np.full(len(cluster.node_generation), -1, dtype=np.int64)
        position[self.nodes] = np.arange(len(self.nodes))
        # Computed for all gangs at once, because a loop is slow for thousands of gangs.
        self._spots = position[jobs.place_node]
        self._bounds: list[int] = jobs.place_start.tolist()
        elsewhere = np.concatenate([[0], np.cumsum(self._spots < 0)])[jobs.place_start]
        is_whole = (np.diff(jobs.place_start) == jobs.workers) & (np.diff(elsewhere) == 0)
        self._is_whole: list[bool] = is_whole.tolist()
        self.pinned: set[int] = set()  # gangs that stay where they are
        here = np.flatnonzero(holds & (jobs.running_on == generation)).tolist()
        self._running = {job for job in here if self._home(job) is not None}
        self._held = np.zeros_like(self.free)  # GPUs of running gangs that are not picked yet
        self._holders: set[int] = set()
        for job in self._running:
            self._hold(job, True)

    def stay(self, job: int) -> bool:
        """Gives a running gang the GPUs that it holds and pins it there, so that it is not moved to make room.

        Returns False if these GPUs are not available, for example because a node is down.
        """
        home = self._home(job)
        if home is None or not self._fits(job, home, self.free):
            return False
        self._give(job, home)
        self.pinned.add(job)
        return True

    def close(self, closed: Bools) -> None:
        """Closes the nodes marked in `closed` (N,): no gang gets their free GPUs. Gangs already given GPUs there
        stay."""
        here = closed[self.nodes]
        self._capacity[here] -= self.free[here]
        self.free[here] = 0
        self.free_gpus = int(self.free.sum())

    def place(self, job: int, *, may_move: bool = True) -> bool:
        """Gives the gang GPUs. Returns False if it does not fit.

        The choices are tried in this order: the nodes where the gang runs or ran last; GPUs that no gang holds; GPUs
        held by running gangs that are not picked yet; and, with `may_move`, room made by moving picked gangs.
        """
        workers, gpus = int(self._jobs.workers[job]), int(self._jobs.gpus[job])
        if workers * gpus > self.free_gpus:
            return False
        unheld = np.maximum(self.free - self._held, 0)
        home, spot = self._home(job), None
        if home is not None and self._fits(job, home, self.free if job in self._running else unheld):
            spot = home
        if spot is None:
            spot = fit(unheld, workers, gpus)
        if spot is None:
            spot = fit(self.free, workers, gpus)
        if spot is None:
            return may_move and self._make_room(job)
        self._give(job, spot)
        return True

    def leave(self, job: int) -> None:
        """Frees the GPUs that a running gang holds on this generation, because it continues on another generation."""
        self._hold(job, False)

    def settle_down(self) -> None:
        """Puts moved gangs back on the nodes where they ran before this round, if all picked gangs still fit.

        Other picked gangs may be moved for this. If not all picked gangs fit, nothing changes. Call this once all gangs
        are picked.
        """
        homes = {job: self._home(job) for job in self.places if job in self._running}
        stay = {job: home for job, home in homes.items() if home is not None}
        if all(np.array_equal(self.places[job], home) for job, home in stay.items()):
            return
        stay |= {job: self.places[job] for job in self.pinned}
        resumed = {job: spot for job, spot in self.places.items() if self._is_home(job, spot)}
        _ = self._pack(resumed | stay, list(self.places)) or self._pack(stay, list(self.places))

    def nodes_of(self, job: int) -> Ints:
        """Returns the node of each worker of a picked gang, by rank, as an array (workers,)."""
        return self.nodes[self.places[job]]

    def _make_room(self, job: int) -> bool:
        """Places `job` by moving gangs that were picked before. Returns False and changes nothing if this is
        impossible.

        First only the smallest gangs may be moved, then gradually larger ones, until `job` fits. Pinned gangs are never
        moved.
        """
        size = {other: self._gpus(other) for other in self.places}
        for largest in sorted(set(size.values())):
            keep = {o: at for o, at in self.places.items() if size[o] > largest or o in self.pinned}
            if len(keep) < len(self.places) and self._pack(keep, [*self.places, job]):
                return True
        return False

    def _pack(self, keep: dict[int, Ints], jobs: list[int]) -> bool:
        """Places all `jobs` from scratch: those in `keep` at the given positions, then the others, largest first.

        Returns False and changes nothing if they do not all fit.
        """
        free, places = self._capacity.copy(), dict(keep)
        for job, spot in keep.items():
            _take(free, spot, int(self._jobs.gpus[job]))
        if free.min(initial=0) < 0:
            return False
        rest = [job for job in jobs if job not in keep]
        for job in sorted(rest, key=lambda job: (-self._jobs.gpus[job], -self._jobs.workers[job], job)):
            found = fit(free, int(self._jobs.workers[job]), int(self._jobs.gpus[job]))
            if found is None:
                return False
            _take(free, found, int(self._jobs.gpus[job]))
            places[job] = found
        for job in rest:
            self._hold(job, False)
        self.free, self.free_gpus, self.places = free, int(free.sum()), places
        return True

    def _give(self, job: int, spot: Ints) -> None:
        self._hold(job, False)
        _take(self.free, spot, int(self._jobs.gpus[job]))
        self.free_gpus -= self._gpus(job)
        self.places[job] = spot

    def _hold(self, job: int, holds: bool) -> None:
        """Marks the GPUs of a running gang as held by it, or as not held if `holds` is false."""
        home = self._home(job)
        if home is None or job not in self._running or holds == (job in self._holders):
            return
        _take(self._held, home, int(self._jobs.gpus[job]) * (-1 if holds else 1))
        (self._holders.add if holds else self._holders.remove)(job)

    def _home(self, job: int) -> Ints | None:
        """Returns the node positions where the gang's workers run or ran last, or None if some are on another
        generation."""
        return self._spots[self._bounds[job] : self._bounds[job + 1]] if self._is_whole[job] else None

    def _is_home(self, job: int, spot: Ints) -> bool:
        home = self._home(job)
        return home is not None and np.array_equal(spot, home)

    def _fits(self, job: int, spot: Ints, free: Ints) -> bool:
        gpus = int(self._jobs.gpus[job])
        if len(spot) == 1:
            return bool(free[spot[0]] >= gpus)
        used, workers = np.unique(spot, return_counts=True)
        return bool((free[used] >= workers * gpus).all())

    def _gpus(self, job: int) -> int:
        return int(self._jobs.workers[job] * self._jobs.gpus[job])
