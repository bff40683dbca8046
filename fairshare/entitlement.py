"""What tickets earn: entitlement among active accounts.

Gandiva_fair (EuroSys '20) gives each user a share of every generation in proportion to its tickets;
here tickets work at each level of a tree.
"""

from __future__ import annotations

import numpy as np

from fairshare.model import Bools, Cluster, Floats
from fairshare.tree import Tree


def capacity_of(cluster: Cluster) -> Floats:
    """(K,) GPUs of each generation that may be given out now."""
    gpus: Floats = np.bincount(cluster.node_generation, cluster.capacity, len(cluster.generations)).astype(
        np.float64
    )
    return gpus


def ticket_share(tree: Tree, tickets: Floats, active: Bools, capacity: Floats) -> Floats:
    """(T, K) GPUs: capacity times the part of the tickets among active siblings, level by level.

    `active` (T, K): a job below the account may run on the generation.
    """
    entitled = np.zeros(active.shape)
    weight = tickets[:, None] * active
    for siblings, amount in [(tree.roots, capacity)] if len(tree.roots) else []:
        entitled[siblings] = split(weight[siblings], amount)
    for account, siblings in enumerate(tree.children):
        if len(siblings):
            entitled[siblings] = split(weight[siblings], entitled[account])
    return entitled


def split(weight: Floats, amount: Floats) -> Floats:
    """`amount` (K,) in proportion to the weights (C, K); nothing where all weights are zero."""
    total = weight.sum(axis=0)
    a_ticket: Floats = np.divide(amount, total, out=np.zeros_like(total), where=total > 0)
    return weight * a_ticket
