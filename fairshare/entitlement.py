"""Computes the entitlements of accounts from tickets: the GPUs of each generation that an account has a right to.

The computation is the same for every policy. Only active accounts are entitled to GPUs, that is, accounts with a job
that can run. As in Gandiva_fair (EuroSys '20), each account gets a part of every generation in proportion to its
tickets. Here this is applied at each level of the account tree.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fairshare.model import Accounts, Bools, Cluster, Floats, Ints, Snapshot
from fairshare.quotas import with_claims
from fairshare.reasons import may_run
from fairshare.tree import Tree


def entitlements(view: Snapshot) -> Floats:
    """Returns each account's entitlement (private cluster): its GPUs of each generation, as an array (T, K).

    At each level of the tree, an account's GPUs of every generation are divided among its active children by tickets.
    """
    tree = Tree.of(view.accounts.parent)
    able, _ = may_run(view, tree)
    entitled: Floats = np.round(private_clusters(view, tree, view.jobs.sharing(able)), 9)
    return entitled


def private_clusters(view: Snapshot, tree: Tree, able: Bools) -> Floats:
    """Returns the same as `entitlements`, but not rounded: each account's GPUs of each generation, as an array (T, K).

    `able` (J, K): whether each job may run on each generation; False for preemptible jobs, which earn no entitlement.
    """
    weight = active_tickets(with_claims(view.accounts), tree, view.jobs.account, able)
    return by_tickets(tree, weight, capacity_of(view.cluster))


def active_tickets(accounts: Accounts, tree: Tree, leaf: Ints, able: Bools) -> Floats:
    """Returns the tickets of each account as an array (T,), with 0 for accounts that are not active.

    An account is active if it, or an account below it, has a job that can run on some generation. The limits of the
    job's accounts must allow at least some GPUs of that generation.

    `leaf` (C,): the account of each job, or of each class of jobs. `able` (C, K): the generations where they may run;
    False for preemptible jobs.
    """
    each, total = tree.least_on_path(accounts.cap), tree.least_on_path(accounts.cap_total)
    some = (able & (each[leaf] > 0)).any(axis=1) & (total[leaf] > 0)
    active = np.bincount(leaf[some], minlength=len(tree.parent)).astype(np.float64)
    weight: Floats = accounts.tickets * (tree.sums(active) > 0)
    return weight


def by_tickets(
    tree: Tree, weight: Floats, capacity: Floats, passes_on: Callable[[Floats, Ints], Floats] | None = None
) -> Floats:
    """Divides GPUs among accounts by weight, level by level of the tree. Returns each account's GPUs, as an array (T,
    K).

    - `weight` (T,): the weight of each account among its siblings.
    - `capacity` (K,): the GPUs of each generation that the roots share.
    - `passes_on`: called for A parents at once, with their GPUs (A, K) and their indices (A,). It returns the GPUs
      (A, K) that each parent hands down to its children. By default parents hand down all GPUs.
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
    """Returns the GPUs of each generation that the scheduler may give out now, as an array (K,)."""
    gpus: Floats = np.bincount(cluster.node_generation, cluster.capacity, len(cluster.generations)).astype(
        np.float64
    )
    return gpus


def ticket_share(tree: Tree, tickets: Floats, active: Bools, capacity: Floats) -> Floats:
    """Divides GPUs among active accounts by tickets, level by level of the tree. Returns each account's GPUs, (T, K).

    `capacity` (K,): the GPUs of each generation. `active` (T, K): whether a job of the account, or of an account below
    it, may run on the generation. Each generation is divided only among siblings active there.
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
    """Divides `amount` (K,) among C siblings in proportion to `weight` (C, K). Returns the parts, as an array (C, K).

    A generation for which all weights are zero is given to nobody.
    """
    total = weight.sum(axis=0)
    a_ticket: Floats = np.divide(amount, total, out=np.zeros_like(total), where=total > 0)
    return weight * a_ticket
