"""Counts GPUs on the nodes of one generation, and finds the nodes where gangs fit best.

A set of nodes is stored as an integer with one bit for each node. All nodes with the same number of GPUs form one set.
The time of a query therefore depends on the number of different GPU counts, which is small, and hardly on the number of
nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fairshare.model import Bools, Ints

ANY = -1  # the set of all nodes: every bit is set


class Room:
    """The number of available GPUs on each node of a generation. Sets of nodes are integers with one bit for each
    node."""

    def __init__(self, gpus: Ints) -> None:
        """Creates the counts from `gpus` (N,), the available GPUs of each node. A node with a negative number has no
        room."""
        self.gpus: list[int] = gpus.tolist()
        self._having: dict[int, int] = {have: _as_bits(gpus == have) for have in np.unique(gpus).tolist()}
        self._slots: dict[int, int] = {}  # results of `slots` since the last change

    def add(self, node: int, gpus: int) -> None:
        """Adds `gpus` GPUs to the node."""
        before, bit, having = self.gpus[node], 1 << node, self._having
        now = self.gpus[node] = before + gpus
        if not (rest := having[before] ^ bit):
            del having[before]
        else:
            having[before] = rest
        having[now] = having.get(now, 0) | bit
        self._slots.clear()

    def slots(self, gpus: int) -> int:
        """Returns how many workers with `gpus` GPUs each fit on all nodes together."""
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
        """Returns the nodes that have at least `gpus` GPUs, as a bit mask."""
        return sum(here for have, here in self._having.items() if have >= gpus)

    def sizes(self, least: int) -> dict[int, int]:
        """Returns the different numbers of available GPUs, each with the first node that has exactly that number.

        The numbers are in ascending order. Numbers below `least` are left out.
        """
        return {have: _first(self._having[have]) for have in sorted(self._having) if have >= least}

    def tightest(self, gpus: int, among: int = ANY) -> int | None:
        """Returns the node on which a worker of `gpus` GPUs fits most tightly; None if no node has enough available
        GPUs.

        This is the node with the fewest available GPUs among the nodes with at least `gpus`. `among`: a bit mask of the
        nodes that are considered, by default all.
        """
        fit = [have for have, nodes in self._having.items() if have >= gpus and nodes & among]
        return _first(self._having[min(fit)] & among) if fit else None

    def nodes_for(self, workers: int, gpus: int, among: int = ANY) -> list[int] | None:
        """Returns the node of each worker of a gang, or None if the gang does not fit.

        It prefers the fewest nodes, then nodes on which the fewest GPUs remain, like `placement.fit`. Only nodes in the
        bit mask `among` are considered. `gpus` is the number of GPUs of one worker.
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
        """Yields the nodes on which room for one more worker of `gpus` GPUs can be made by freeing GPUs.

        Each result is a pair: the node, and how many GPUs must be available on it in the end. This number is the next
        multiple of `gpus` above the number that is available now. It exceeds `gpus` on a node that already has room for
        a worker. Nodes on which the fewest GPUs must be freed come first.

        `capacity`: all GPUs of each node, whether available or not. Nodes whose capacity is too small are left out.
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
    """Yields the nodes of a set, given as a bit mask, in ascending order."""
    while nodes:
        node = _first(nodes)
        nodes ^= 1 << node
        yield node


def _first(nodes: int) -> int:
    return (nodes & -nodes).bit_length() - 1


def _as_bits(marks: Bools) -> int:
    return int.from_bytes(np.packbits(marks, bitorder="little").tobytes(), "little")
