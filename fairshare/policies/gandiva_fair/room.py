"""Counts the available GPUs on the nodes of one generation, and finds the nodes where gangs fit best (bin packing, best
fit).

Nodes are numbered from 0 within the generation. A set of nodes is stored as a bit mask: an integer in which bit i is 1
if node i belongs to the set.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fairshare.model import Bools, Ints

ANY = -1  # the set of all nodes: every bit is set


class Room:
    """The number of available GPUs on each of the N nodes of one generation.

    The owner of a `Room` decides which GPUs count as available, such as all GPUs that this round has not given to a
    gang.
    """

    def __init__(self, gpus: Ints) -> None:
        """Creates the counts from `gpus` (N,), the number of available GPUs of each node.

        A number may be negative. No worker fits on such a node.
        """
        self.gpus: list[int] = gpus.tolist()
        # The nodes with each number of GPUs. The time of a query hardly depends on the number of nodes.
        self._having: dict[int, int] = {have: _as_bits(gpus == have) for have in np.unique(gpus).tolist()}
        self._slots: dict[int, int] = {}  # results of `slots` since the last change

    def add(self, node: int, gpus: int) -> None:
        """Makes `gpus` more GPUs available on the node. A negative number means fewer."""
        before, bit, having = self.gpus[node], 1 << node, self._having
        now = self.gpus[node] = before + gpus
        if not (rest := having[before] ^ bit):
            del having[before]
        else:
            having[before] = rest
        having[now] = having.get(now, 0) | bit
        self._slots.clear()

    def slots(self, gpus: int) -> int:
        """Returns how many workers fit on all nodes together, if each worker needs `gpus` GPUs on one node.

        For example, three workers with 4 GPUs each fit on two nodes with 9 and 6 available GPUs: two on the first node
        and one on the second.
        """
        found = self._slots.get(gpus)
        if found is None:
            found = self._slots[gpus] = self.slots_among(ANY, gpus)
        return found

    def slots_among(self, nodes: int, gpus: int) -> int:
        found = 0
        for have, here in self._having.items():
            if have >= gpus:
                found += (here & nodes).bit_count() * (have // gpus)
        return found

    def at_least(self, gpus: int) -> int:
        """Returns the set of the nodes with at least `gpus` available GPUs, as a bit mask."""
        return sum(here for have, here in self._having.items() if have >= gpus)

    def sizes(self, least: int) -> dict[int, int]:
        """Returns each number of available GPUs that some node has, mapped to the first node with exactly that number.

        The numbers are in ascending order. Numbers below `least` are left out.
        """
        return {have: _first(self._having[have]) for have in sorted(self._having) if have >= least}

    def tightest(self, gpus: int, among: int = ANY) -> int | None:
        """Returns the node with the fewest available GPUs among those with at least `gpus`. Returns None if there is no
        such node.

        `among`: the set of nodes to choose from, as a bit mask; by default all nodes.
        """
        fit = [have for have, nodes in self._having.items() if have >= gpus and nodes & among]
        return _first(self._having[min(fit)] & among) if fit else None

    def nodes_for(self, workers: int, gpus: int, among: int = ANY) -> list[int] | None:
        """Returns the nodes for a gang's workers, as a list with one node for each worker. Returns None if the gang
        does not fit.

        It prefers the fewest nodes. Among choices with the same number of nodes, it prefers nodes on which few GPUs
        remain, like `placement.fit`.

        - `workers`: the number of workers. Several workers can be on one node.
        - `gpus`: GPUs that each worker needs on its node.
        - `among`: the set of nodes to choose from, as a bit mask; by default all nodes.
        """
        node = self.tightest(workers * gpus, among)
        if node is not None:
            return [node] * workers
        if workers == 1 or self.slots_among(among, gpus) < workers:
            return None
        found: list[int] = []
        for have in sorted(self._having, key=lambda have: (-(have // gpus), have)):
            each, nodes = have // gpus, self._having[have] & among
            while nodes and each < workers - len(found):
                node = _first(nodes)
                nodes ^= 1 << node
                found += [node] * each
            if nodes:
                break
        rest = workers - len(found)
        last = self.tightest(rest * gpus, among & ~sum(1 << node for node in set(found)))
        return None if last is None else found + [last] * rest

    def nearest(self, gpus: int, capacity: Room) -> Iterator[tuple[int, int]]:
        """Yields the nodes where one more worker of `gpus` GPUs would fit if GPUs in use were made available.

        Each result is a pair: the node, and the number of available GPUs that it needs for this. For example, with
        workers of 4 GPUs, a node with 3 available GPUs needs 4, and a node with 5 needs 8. Nodes that lack the fewest
        GPUs come first.

        `capacity`: all GPUs of each node. Nodes with less than the needed number are left out.
        """
        lacking: dict[int, int] = {}
        for have, nodes in self._having.items():
            enough = (have // gpus + 1) * gpus
            lacks = enough - have
            lacking[lacks] = lacking.get(lacks, 0) | (nodes & capacity.at_least(enough))
        for lacks in sorted(lacking):
            for node in in_order(lacking[lacks]):
                yield node, self.gpus[node] + lacks


def in_order(nodes: int) -> Iterator[int]:
    """Yields the nodes of a set in ascending order. `nodes`: the set, as a bit mask."""
    while nodes:
        node = _first(nodes)
        nodes ^= 1 << node
        yield node


def _first(nodes: int) -> int:
    return (nodes & -nodes).bit_length() - 1


def _as_bits(marks: Bools) -> int:
    return int.from_bytes(np.packbits(marks, bitorder="little").tobytes(), "little")
