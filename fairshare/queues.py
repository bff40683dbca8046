"""The jobs of each account, in the order in which its owner wants them, grouped by what they ask for.

Jobs of one group are alike to the scheduler: when the first cannot be placed, nor can the others, and
a hundred thousand of them cost no more than one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fairshare.demand import sets_of
from fairshare.model import Bools, Ints, Jobs


@dataclass(slots=True)
class Group:
    """Jobs of one account with one shape, one choice of generations, all waiting or all on one of them."""

    jobs: list[int]
    workers: int
    gpus: int  # of a worker
    accepts: int  # bits of the generations
    running_on: int
    head: int = 0

    @property
    def size(self) -> int:
        """GPUs of a gang."""
        return self.workers * self.gpus


@dataclass(slots=True)
class Queue:
    """One account's candidates for one generation: the groups that still have a chance there."""

    groups: list[Group]

    def first(self, order: list[int], taken: bytearray) -> list[tuple[int, Group]]:
        """The first job left of each group, best first; groups without one are dropped for good."""
        found = []
        for group in self.groups:
            jobs, head = group.jobs, group.head
            while head < len(jobs) and taken[jobs[head]]:
                head += 1
            group.head = head
            if head < len(jobs):
                found.append((order[jobs[head]], group))
        self.groups = [group for _, group in found]
        if len(found) > 1:
            found.sort(key=lambda entry: entry[0])
        return found


@dataclass(slots=True)
class Queues:
    """All candidates of a round, by account and generation."""

    order: list[int]  # of each job, its rank: higher priority first, then as listed
    by_account: dict[tuple[int, int], Queue] = field(default_factory=dict)


def job_order(jobs: Jobs) -> Ints:
    """(J,) the rank of each job: higher priority first, then as listed."""
    rank = np.empty(len(jobs), dtype=np.int64)
    rank[np.lexsort((np.arange(len(jobs)), -jobs.priority))] = np.arange(len(jobs))
    return rank


def queues_of(jobs: Jobs, able: Bools, order: Ints) -> Queues:
    """Queues of the jobs that may run somewhere; `able` (J, K) says where."""
    queues = Queues(order.tolist())
    accepts = sets_of(able)
    some = np.flatnonzero(accepts)
    keys = (order, jobs.running_on, accepts, jobs.gpus, jobs.workers, jobs.account)
    ordered = some[np.lexsort([key[some] for key in keys])]
    alike = np.ones(len(ordered), dtype=bool)
    for key in keys[1:]:
        alike[1:] &= key[ordered[1:]] == key[ordered[:-1]]
    starts = np.flatnonzero(~alike | (np.arange(len(ordered)) == 0)).tolist()
    for start, end in zip(starts, [*starts[1:], len(ordered)], strict=True):
        one = int(ordered[start])
        group = Group(
            jobs=ordered[start:end].tolist(),
            workers=int(jobs.workers[one]),
            gpus=int(jobs.gpus[one]),
            accepts=int(accepts[one]),
            running_on=int(jobs.running_on[one]),
        )
        for k in range(able.shape[1]):
            if group.accepts >> k & 1:
                key = (int(jobs.account[one]), k)
                queues.by_account.setdefault(key, Queue([])).groups.append(group)
    return queues
