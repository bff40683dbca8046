"""Computes the entitlement of active accounts from tickets, in the same way for every policy.

Gandiva_fair (EuroSys '20) gives each user a share of every generation in proportion to its tickets. Here tickets
work at each level of a tree.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fairshare.model import Accounts, Bools, Cluster, Floats, Ints, Snapshot
from fairshare.quotas import with_claims
from fairshare.reasons import may_run
from fairshare.tree import Tree


def entitlements(view: Snapshot) -> Floats:
    """Returns the GPUs of each account's private cluster, as an array (T, K).

    At each level of the tree an account gets a part of every generation: by tickets among its active siblings.
    """
    tree = Tree.of(view.accounts.parent)
    able, _ = may_run(view, tree)
    entitled: Floats = np.round(private_clusters(view, tree, view.jobs.sharing(able)), 9)
    return entitled


def private_clusters(view: Snapshot, tree: Tree, able: Bools) -> Floats:
    """Returns the GPUs of each account's private cluster as an array (T, K), like `entitlements` but without rounding.

    `able` (J, K) says where the jobs that take part in the sharing may run.
    """
    weight = active_tickets(with_claims(view.accounts), tree, view.jobs.account, able)
    return by_tickets(tree, weight, capacity_of(view.cluster))


def active_tickets(accounts: Accounts, tree: Tree, leaf: Ints, able: Bools) -> Floats:
    """Returns the tickets of active accounts, and 0 for all others, as an array (T,).

    An account is active when a job below it takes part in the sharing and may run on a generation of which limits up
    the tree leave something. `leaf` (C,) has the accounts of jobs, or of classes of jobs, and `able` (C, K) says
    where they may run.
    """
    each, total = tree.least_on_path(accounts.cap), tree.least_on_path(accounts.cap_total)
    some = (able & (each[leaf] > 0)).any(axis=1) & (total[leaf] > 0)
    active = np.bincount(leaf[some], minlength=len(tree.parent)).astype(np.float64)
    weight: Floats = accounts.tickets * (tree.sums(active) > 0)
    return weight


def by_tickets(
    tree: Tree, weight: Floats, capacity: Floats, passes_on: Callable[[Floats, Ints], Floats] | None = None
) -> Floats:
    """Divides `capacity` (K,) by `weight` (T,) among siblings, level by level, and returns the GPUs of each account, as
    an array (T, K).

    `passes_on` gets the GPUs (A, K) of accounts (A,) and returns the GPUs that they hand down; by default all of
    them.
    """
    found = np.zeros((len(weight), len(capacity)))
    for depth, level in enumerate(tree.levels):
        above = tree.parent[level] if depth else np.zeros(len(level), dtype=np.int64)
        has = found[above] if depth else np.broadcast_to(capacity, (len(level), len(capacity)))
        if passes_on is not None and depth:
            has = passes_on(has, above)
        beside = np.bincount(above, weight[level], len(weight) + 1)[above]
        found[level] = (
            has * np.divide(weight[level], beside, out=np.zeros(len(level)), where=beside > 0)[:, None]
        )
    return found


def capacity_of(cluster: Cluster) -> Floats:
    """Returns the GPUs of each generation that may be given out now, as an array (K,)."""
    gpus: Floats = np.bincount(cluster.node_generation, cluster.capacity, len(cluster.generations)).astype(
        np.float64
    )
    return gpus


def ticket_share(tree: Tree, tickets: Floats, active: Bools, capacity: Floats) -> Floats:
    """Divides `capacity` (K,) by tickets among active siblings, level by level, and returns each account's GPUs, as an
    array (T, K).

    `active` (T, K) says whether a job below the account may run on the generation.
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
    """Divides `amount` (K,) in proportion to the weights (C, K) and returns the parts, as an array (C, K); zeros where
    all weights are zero."""
    total = weight.sum(axis=0)
    a_ticket: Floats = np.divide(amount, total, out=np.zeros_like(total), where=total > 0)
    return weight * a_ticket
