"""The jobs of each account, in the order in which its owner wants them, grouped by what they ask for.

Jobs of one group are alike to the scheduler: when the first cannot be placed, nor can the others, and
a hundred thousand of them cost no more than one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.demand import sets_of
from fairshare.model import NOWHERE, Bools, Ints, Jobs


@dataclass(slots=True)
class Group:
    """Jobs of one account with one shape, one choice of generations, all waiting or all on one of them."""

    jobs: list[int]
    ranks: list[int]  # of each job, in the account's order
    workers: int
    gpus: int  # of a worker
    running_on: int  # the generation where they hold GPUs, or NOWHERE
    at: int  # the generation where their processes are, running or suspended, or NOWHERE
    head: int = 0

    @property
    def size(self) -> int:
        """GPUs of a gang."""
        return self.workers * self.gpus

    @property
    def first(self) -> int:
        return self.jobs[self.head]

    def is_suspended_off(self, generation: int) -> bool:
        """Whether the processes sleep on another generation."""
        return self.running_on == NOWHERE and self.at not in {NOWHERE, generation}

    @property
    def rank(self) -> int:
        """Of the first job, in the account's order."""
        return self.ranks[self.head]


@dataclass(slots=True)
class Queue:
    """One account's candidates for one generation: the groups that still have a chance there."""

    groups: list[Group]

    def drop(self, taken: bytearray) -> None:
        """Pass over the jobs that are `taken`, and forget groups of which none is left."""
        for group in self.groups:
            while group.head < len(group.jobs) and taken[group.jobs[group.head]]:
                group.head += 1
        self.groups = [group for group in self.groups if group.head < len(group.jobs)]


def job_order(jobs: Jobs) -> Ints:
    """(J,) the rank of each job: higher priority first, then as listed."""
    rank = np.empty(len(jobs), dtype=np.int64)
    rank[np.lexsort((np.arange(len(jobs)), -jobs.priority))] = np.arange(len(jobs))
    return rank


def whereabouts(jobs: Jobs, node_generation: Ints) -> Ints:
    """(J,) the generation where each job's processes are, running or suspended; NOWHERE if it has none."""
    at = jobs.running_on.copy()
    suspended = np.flatnonzero((at == NOWHERE) & (np.diff(jobs.place_start) > 0))
    at[suspended] = node_generation[jobs.place_node[jobs.place_start[suspended]]]
    return at


def queues_of(jobs: Jobs, able: Bools, order: Ints, at: Ints) -> dict[tuple[int, int], Queue]:
    """By account and generation, the jobs that may run there: `able` (J, K).

    `order` as from job_order, `at` as from whereabouts.
    """
    accepts = sets_of(able)
    some = np.flatnonzero(accepts)
    alike = (jobs.running_on, at, accepts, jobs.gpus, jobs.workers, jobs.account)
    ordered = some[np.lexsort([key[some] for key in (order, *alike)])]
    begins = np.ones(len(ordered), dtype=bool)
    begins[1:] = np.any([key[ordered[1:]] != key[ordered[:-1]] for key in alike], axis=0)
    starts = np.flatnonzero(begins)
    first = ordered[starts]
    columns = (jobs.account, jobs.workers, jobs.gpus, jobs.running_on, at)
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    bounds = [*starts.tolist(), len(ordered)]
    listed, ranks, generations = ordered.tolist(), order[ordered].tolist(), able[first].tolist()
    queues: dict[tuple[int, int], Queue] = {}
    for i, (account, *alike_in) in enumerate(rows):
        members = slice(bounds[i], bounds[i + 1])
        group = Group(listed[members], ranks[members], *alike_in)
        for k, may in enumerate(generations[i]):
            if may:
                queues.setdefault((account, k), Queue([])).groups.append(group)
    return queues
