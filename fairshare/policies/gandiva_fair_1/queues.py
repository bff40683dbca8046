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
    turns: list[int]  # of each job: its rank, with room above those of its priority for as many jobs again
    workers: int
    gpus: int  # of a worker
    running_on: int  # the generation where they hold GPUs, or NOWHERE
    suspended_on: int  # the generation where their processes sleep, or NOWHERE
    head: int = 0

    @property
    def size(self) -> int:
        """GPUs of a gang."""
        return self.workers * self.gpus

    @property
    def first(self) -> int:
        return self.jobs[self.head]

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
        ended = False
        for group in self.groups:
            jobs, head = group.jobs, group.head
            while head < len(jobs) and taken[jobs[head]]:
                head += 1
            group.head = head
            ended = ended or head == len(jobs)
        if ended:
            self.groups = [group for group in self.groups if group.head < len(group.jobs)]


def job_order(jobs: Jobs) -> Ints:
    """(J,) the rank of each job: higher priority first, then as listed."""
    rank = np.empty(len(jobs), dtype=np.int64)
    rank[np.lexsort((np.arange(len(jobs)), -jobs.priority))] = np.arange(len(jobs))
    return rank


def suspended_on(jobs: Jobs, node_generation: Ints) -> Ints:
    """(J,) the generation where each job's processes sleep; NOWHERE if it runs or has none."""
    where = np.full(len(jobs), NOWHERE, dtype=np.int64)
    asleep = np.flatnonzero((jobs.running_on == NOWHERE) & (np.diff(jobs.place_start) > 0))
    where[asleep] = node_generation[jobs.place_node[jobs.place_start[asleep]]]
    return where


def queues_of(jobs: Jobs, able: Bools, order: Ints, asleep: Ints) -> dict[tuple[int, int], Queue]:
    """By account and generation, the jobs that may run there: `able` (J, K).

    `order` as from job_order, `asleep` as from suspended_on.
    """
    accepts = sets_of(able)
    some = np.flatnonzero(accepts)
    looks = (jobs.running_on, asleep, accepts, jobs.gpus, jobs.workers, jobs.account)
    alike = looks if jobs.preemptible is None else (jobs.preemptible.astype(np.int64), *looks)
    ordered = some[np.lexsort([key[some] for key in (order, *alike)])]
    begins = np.ones(len(ordered), dtype=bool)
    begins[1:] = np.any([key[ordered[1:]] != key[ordered[:-1]] for key in alike], axis=0)
    starts = np.flatnonzero(begins)
    first = ordered[starts]
    columns = (jobs.account, jobs.workers, jobs.gpus, jobs.running_on, asleep)
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    bounds = [*starts.tolist(), len(ordered)]
    _, level = np.unique(-jobs.priority, return_inverse=True)
    turns = order + level * 2 * len(jobs)
    listed, ranks, generations = ordered.tolist(), order[ordered].tolist(), able[first].tolist()
    turn_of = turns[ordered].tolist()
    queues: dict[tuple[int, int], Queue] = {}
    for i, (account, *shape) in enumerate(rows):
        members = slice(bounds[i], bounds[i + 1])
        group = Group(listed[members], ranks[members], turn_of[members], *shape)
        for k, may in enumerate(generations[i]):
            if may:
                queues.setdefault((account, k), Queue([])).groups.append(group)
    return queues
