"""Finds the services and sessions of a plan that run on borrowed GPUs, beyond the guarantees of their accounts."""

from __future__ import annotations

import numpy as np

from fairshare.model import Bools, Decision, Floats, Snapshot
from fairshare.tree import Tree

# Guarantees are sums of rounded numbers, so comparisons need this tolerance.
ROUNDING = 1e-6


def lent_to(view: Snapshot, plan: Decision) -> Bools:
    """Returns which services and sessions of the plan run on borrowed GPUs, as a mask (J,).

    Services and sessions use up the guarantees in the order of priority. Those of equal priority follow in the order of
    the view. A service or session runs on borrowed GPUs if too little is left of the guarantee of its account, or of
    any account above it. Preemptible jobs are never marked. If the policy guarantees nothing, no job is marked.
    """
    jobs = view.jobs
    lent = np.zeros(len(jobs), dtype=bool)
    if plan.guaranteed is None or jobs.keeps is None:
        return lent
    # Other jobs take nothing from the guarantees: they are preempted before services and sessions.
    picked = plan.run[jobs.keeps[plan.run]]
    if jobs.preemptible is not None:  # guarantees do not cover preemptible jobs
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
    """Returns the GPUs of the gangs marked in `jobs` (J,), summed for each account and all accounts below it, as
    (T,)."""
    held = np.zeros(len(view.accounts.parent))
    np.add.at(held, view.jobs.account[jobs], (view.jobs.workers * view.jobs.gpus)[jobs])
    sums: Floats = Tree.of(view.accounts.parent).sums(held)
    return sums
