"""Finds the gangs of a plan that run on borrowed GPUs, beyond the guarantees of their accounts."""

from __future__ import annotations

import numpy as np

from fairshare.model import Bools, Decision, Floats, Snapshot
from fairshare.tree import Tree

# Guarantees are sums of rounded numbers.
ROUNDING = 1e-6


def lent_to(view: Snapshot, plan: Decision) -> Bools:
    """Returns (J,) the picked services and sessions that the guarantees of their accounts, up the tree, do not cover.

    An account's guarantee covers its services and sessions in its own order (priority, then as listed), before its
    other jobs, because these are preempted last. A policy without guarantees lends nothing.
    """
    jobs = view.jobs
    lent = np.zeros(len(jobs), dtype=bool)
    if plan.guaranteed is None or jobs.keeps is None:
        return lent
    picked = plan.run[jobs.keeps[plan.run]]
    if jobs.preemptible is not None:  # preemptible jobs are not covered
        picked = picked[~jobs.preemptible[picked]]
    left, tree = plan.guaranteed.sum(axis=1), Tree.of(view.accounts.parent)
    for job in sorted(picked.tolist(), key=lambda job: (-int(jobs.priority[job]), job)):
        size = int(jobs.workers[job] * jobs.gpus[job])
        path = tree.path(int(jobs.account[job]))
        lent[job] = left[path].min() < size - ROUNDING
        if not lent[job]:
            left[path] -= size
    return lent


def held_by(view: Snapshot, jobs: Bools) -> Floats:
    """Returns (T,) the GPUs of the gangs marked in `jobs` (J,), for each account with all accounts below it."""
    held = np.zeros(len(view.accounts.parent))
    np.add.at(held, view.jobs.account[jobs], (view.jobs.workers * view.jobs.gpus)[jobs])
    sums: Floats = Tree.of(view.accounts.parent).sums(held)
    return sums
