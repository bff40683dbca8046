"""Chooses which GPUs of a node a gang gets: the indices of GPUs on the nodes that a round's decision names.

Frozen processes (paused, but kept in memory) can go on only on the GPUs on which they were frozen. Otherwise they are
ended, and their work since the last checkpoint is lost. So a gang gets the GPUs of its own frozen processes if it can,
and leaves those of other gangs' frozen processes alone while other GPUs will do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

Gpu = tuple[int, int]  # the id of a node, and the index of a GPU there


class NoGpus(Exception):
    """Raised if a node has too few GPUs that may be taken. `node` is its id, and `wanted` the GPUs that the gang needs
    there."""

    def __init__(self, node: int, wanted: int) -> None:
        super().__init__(f"node {node} has fewer than {wanted} GPUs that may be taken")
        self.node, self.wanted = node, wanted


class GpuNumbers:
    """The GPUs that a round may still give to gangs.

    - `open`: the indices of the GPUs that may be taken, by node.
    - `busy`: GPUs among them that stopping gangs still hold.
    - `former`: the GPUs of each job's frozen processes, by job.
    """

    def __init__(
        self, open_: Mapping[int, Iterable[int]], busy: Iterable[Gpu], former: Mapping[int, Iterable[Gpu]]
    ) -> None:
        self.open = {node: set(numbers) for node, numbers in open_.items()}
        self.busy = set(busy)
        self._former = {job: set(gpus) for job, gpus in former.items()}
        self._frozen = Counter(gpu for gpus in self._former.values() for gpu in gpus)

    def is_frozen(self, job: int) -> bool:
        return job in self._former

    def take(self, job: int, nodes: Sequence[int], gpus: int) -> list[tuple[int, Gpu]]:
        """Takes `gpus` GPUs for each worker of a job. `nodes` are the ids of the workers' nodes, by rank. Returns pairs
        (rank, GPU).

        Raises NoGpus and takes none if a node has too few GPUs that may be taken.
        """
        own = self._former.get(job, set())
        taken: list[tuple[int, Gpu]] = []
        for rank, node in enumerate(nodes):
            best = sorted(self.open.get(node, ()), key=lambda number: self._cost(own, (node, number)))[:gpus]
            if len(best) < gpus:
                for _, (where, number) in taken:
                    self.open[where].add(number)
                raise NoGpus(node, nodes.count(node) * gpus)
            self.open[node].difference_update(best)
            taken += [(rank, (node, number)) for number in best]
        return taken

    def _cost(self, own: set[Gpu], gpu: Gpu) -> tuple[bool, int, bool, int]:
        """Returns a key that orders GPUs, the best first: those of the gang's own frozen processes, then those on which
        the fewest other gangs are frozen, then free ones, then those that stopping gangs still hold."""
        return gpu not in own, self._frozen[gpu] - (gpu in own), gpu in self.busy, gpu[1]
