"""Where gangs go: each worker's GPUs on one node, a gang on one generation, on the fewest nodes.

Within a round a generation's GPUs are *given* (to gangs picked in this round) or free; of the free
ones some are still *held* by running gangs that were not picked yet. New gangs go beside them while
they can, so that a gang which goes on finds its nodes as it left them.
"""

from __future__ import annotations

import numpy as np

from fairshare.model import Bools, Cluster, Ints, Jobs

_NO_NODE = np.iinfo(np.int64).max  # as what would be left on a node that cannot hold the gang


def fit(free: Ints, workers: int, gpus: int) -> Ints | None:
    """(workers,) positions in `free` for workers of `gpus` each, rank by rank; None if they do not fit.

    Fewest nodes, and of these the ones that leave the least behind. Where `free` is negative there is nothing.
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
    full = int(np.searchsorted(reach, workers))  # nodes that are filled with workers
    rest = workers - (int(reach[full - 1]) if full else 0)
    others = ordered[full:]
    last = others[np.where(slots[others] >= rest, free[others], _NO_NODE).argmin()]
    found: Ints = np.append(np.repeat(ordered[:full], slots[ordered[:full]]), np.full(rest, last))
    return found


def _take(free: Ints, spot: Ints, gpus: int) -> None:
    """Takes `gpus` away at each position of `spot`, as often as it is there."""
    if len(spot) == 1:  # most gangs; `at` takes many times as long
        free[spot[0]] -= gpus
    else:
        np.subtract.at(free, spot, gpus)


class Packing:
    """The nodes of one generation while a round is decided. Positions count within `nodes`."""

    def __init__(self, cluster: Cluster, generation: int, jobs: Jobs, holds: Bools) -> None:
        """`holds` (J,) marks the gangs that have GPUs and may go on with them."""
        self.nodes = np.flatnonzero(cluster.node_generation == generation)
        self.free = cluster.capacity[self.nodes]  # not given in this round
        self.free_gpus = int(self.free.sum())
        self.places: dict[int, Ints] = {}  # of each picked gang, the position of each worker
        self._capacity = self.free.copy()
        self._jobs = jobs
        position = np.full(len(cluster.node_generation), -1, dtype=np.int64)
        position[self.nodes] = np.arange(len(self.nodes))
        # Of all gangs at once, which takes less time than of some thousands one after the other.
        self._spots = position[jobs.place_node]
        self._bounds: list[int] = jobs.place_start.tolist()
        elsewhere = np.concatenate([[0], np.cumsum(self._spots < 0)])[jobs.place_start]
        is_whole = (np.diff(jobs.place_start) == jobs.workers) & (np.diff(elsewhere) == 0)
        self._is_whole: list[bool] = is_whole.tolist()
        self.pinned: set[int] = set()  # gangs that stay where they are
        here = np.flatnonzero(holds & (jobs.running_on == generation)).tolist()
        self._running = {job for job in here if self._home(job) is not None}
        self._held = np.zeros_like(self.free)  # by running gangs that were not picked yet
        self._holders: set[int] = set()
        for job in self._running:
            self._hold(job, True)

    def stay(self, job: int) -> bool:
        """Give a running gang what it has, and never move it; False where its nodes are not up any more."""
        home = self._home(job)
        if home is None or not self._fits(job, home, self.free):
            return False
        self._give(job, home)
        self.pinned.add(job)
        return True

    def close(self, closed: Bools) -> None:
        """Leave of the nodes marked in `closed` (N,) only what the gangs have that stay there."""
        here = closed[self.nodes]
        self._capacity[here] -= self.free[here]
        self.free[here] = 0
        self.free_gpus = int(self.free.sum())

    def place(self, job: int, *, may_move: bool = True) -> bool:
        """Give the gang GPUs, and with `may_move` move other picked ones if it must be; False if in vain.

        First the nodes where it runs or ran last, then what nobody holds, then what only gangs hold that
        were not picked, then room made by packing the picked gangs anew.
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
        """The gang goes on elsewhere: what it has here is nobody's."""
        self._hold(job, False)

    def settle_down(self) -> None:
        """Now that all are picked: let running gangs go on where they are, if the others fit beside them."""
        homes = {job: self._home(job) for job in self.places if job in self._running}
        stay = {job: home for job, home in homes.items() if home is not None}
        if all(np.array_equal(self.places[job], home) for job, home in stay.items()):
            return
        stay |= {job: self.places[job] for job in self.pinned}
        resumed = {job: spot for job, spot in self.places.items() if self._is_home(job, spot)}
        _ = self._pack(resumed | stay, list(self.places)) or self._pack(stay, list(self.places))

    def nodes_of(self, job: int) -> Ints:
        """(workers,) the node of each worker of a picked gang, rank by rank."""
        return self.nodes[self.places[job]]

    def _make_room(self, job: int) -> bool:
        """Pack anew with `job` among them, moving only gangs below a size, as small a size as will do."""
        size = {other: self._gpus(other) for other in self.places}
        for largest in sorted(set(size.values())):
            keep = {o: at for o, at in self.places.items() if size[o] > largest or o in self.pinned}
            if len(keep) < len(self.places) and self._pack(keep, [*self.places, job]):
                return True
        return False

    def _pack(self, keep: dict[int, Ints], jobs: list[int]) -> bool:
        """Place all `jobs`, those of `keep` there, the others largest first; False, and no change, in vain."""
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
        """Count what a running gang has as held, or no longer."""
        home = self._home(job)
        if home is None or job not in self._running or holds == (job in self._holders):
            return
        _take(self._held, home, int(self._jobs.gpus[job]) * (-1 if holds else 1))
        (self._holders.add if holds else self._holders.remove)(job)

    def _home(self, job: int) -> Ints | None:
        """Positions of the gang's workers where it runs or ran last, if that was on this generation."""
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
