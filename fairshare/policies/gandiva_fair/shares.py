"""Computes the entitlement, guarantee and share of each account, in GPUs of each generation averaged over time.

- The *entitlement* of an account (its private cluster) is its part of every generation. The active accounts below one
  parent divide the GPUs of the parent by tickets.
- The *guarantee* is the best use that the account's jobs can make of the entitlement: as many GPUs as they can use, on
  the generations where they are fastest.
- The *share* is the guarantee plus a part of the GPUs that others leave unused. At each level of the tree, the totals
  of accounts over all generations are weighted max-min fair. No guaranteed GPU is moved to a slower generation to
  achieve this. Gandiva_fair (EuroSys '20, section 3), in contrast, divides each generation separately.

Guarantees and shares are computed as network flows of GPUs to jobs (`network.py`). Terms of the flow:
- A *row* receives GPUs for a class of similar jobs of one leaf account. A class can have additional rows for its
  guaranteed GPUs.
- A *pool* is the GPUs of each generation that some rows share, such as the entitlement of an account.
- A *gate* limits the GPUs of one generation that some rows get together.
- A *group* is a set of adjacent rows with a lower and an upper bound on their GPUs of all generations together.

Sizes of arrays: T accounts, K generations, J jobs, C rows. The root accounts have depth 0 in the tree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fairshare.columns import across, anywhere
from fairshare.entitlement import active_tickets, by_tickets, capacity_of
from fairshare.model import NOWHERE, Accounts, Bools, Floats, Ints, Snapshot
from fairshare.policies.gandiva_fair.classes import Classes, classes_of
from fairshare.policies.gandiva_fair.families import Families
from fairshare.policies.gandiva_fair.fastest import fastest_first, open_steps, upgrade_rows
from fairshare.policies.gandiva_fair.flow import EPSILON, Flow
from fairshare.policies.gandiva_fair.gates import Gates
from fairshare.policies.gandiva_fair.network import Groups, Network
from fairshare.quotas import with_claims, within_borrowing
from fairshare.tree import Tree


@dataclass(frozen=True, slots=True)
class Shares:
    """The GPUs that each account has a right to, averaged over time. Each array is (T, K): accounts by generations."""

    entitled: Floats  # the entitlement
    guaranteed: Floats  # the part of the entitlement that the account and all accounts below it can use
    share: Floats  # the guarantee and what others leave; for an inner account the sum over those below


def share_out(snapshot: Snapshot, tree: Tree, able: Bools) -> Shares:
    """Divides the cluster among accounts and returns their entitlements, guarantees and shares.

    - `snapshot`: the policy's input.
    - `tree`: the account tree.
    - `able` (J, K): whether each job may run on each generation. It must be False for preemptible jobs, which get no
      share.
    """
    accounts, capacity = with_claims(snapshot.accounts), capacity_of(snapshot.cluster)
    classes = classes_of(snapshot.jobs, able, snapshot.cluster)
    shape = len(tree.parent), len(capacity)
    weight = active_tickets(accounts, tree, classes.leaf, classes.able.T)
    entitled = by_tickets(tree, weight, capacity)
    guaranteed = np.zeros(shape)
    if not len(classes.leaf):
        return Shares(entitled, guaranteed, np.zeros(shape))
    accounts = within_borrowing(accounts, entitled)
    means = by_tickets(tree, weight, capacity, partial(_passed_on, accounts))
    limits = _Limits.of(tree, accounts, classes)
    flow = limits.new_flow(classes, tree)
    _guarantee_leaves(means, flow, limits, guaranteed)
    sure = tree.sums(guaranteed)
    if (capacity - sure[tree.roots].sum(axis=0) <= EPSILON * (1.0 + capacity.sum())).all():
        return Shares(entitled, sure, sure)  # the guarantees use all GPUs
    flow = limits.sorted_by_account(_with_guarantee_rows(flow))
    _guarantee_inner(flow, tree, limits, means, guaranteed)
    return Shares(entitled, guaranteed, _divide(flow, tree, limits, accounts.tickets, capacity, guaranteed))


def _passed_on(accounts: Accounts, has: Floats, above: Ints) -> Floats:
    """Returns the GPUs that A parent accounts hand down to their children, of each generation, as an array (A, K).

    A parent hands down its GPUs, but no more than its own limits allow. If its limit on all generations together is
    lower than its GPUs, the GPUs of each generation are reduced by the same factor.

    - `accounts`: the limits of all accounts.
    - `has` (A, K): GPUs of each parent.
    - `above` (A,): the index of each parent among all accounts.
    """
    has = np.minimum(has, accounts.cap[above])
    total = across(has)
    part = np.divide(accounts.cap_total[above], total, out=np.ones_like(total), where=total > 0)
    return has * np.minimum(part, 1.0)[:, None]


@dataclass(frozen=True, slots=True)
class _Limits:
    """The upper limits of each account and of each class of jobs, as input of a network flow.

    The limits of an account do not include the limits of the accounts above it.
    """

    # (depths, T) the account above each account at each depth, or the account itself; NOWHERE at deeper depths
    above: Ints
    order: Ints  # (T,) positions in an order where all accounts below any account are adjacent
    total: Floats  # (T,) GPUs that each account can use in total
    each: Floats  # (T, K) limits of accounts on each generation
    kinds: Floats  # (kinds, K) GPUs of each generation that a class can use

    @classmethod
    def of(cls, tree: Tree, accounts: Accounts, classes: Classes) -> _Limits:
        above = np.full((len(tree.levels), len(tree.parent)), NOWHERE, dtype=np.int64)
        for depth, level in enumerate(tree.levels):
            above[:, level] = above[:, tree.parent[level]] if depth else NOWHERE
            above[depth, level] = level
        order = np.empty(len(tree.parent), dtype=np.int64)
        order[np.lexsort(above[::-1])] = np.arange(len(order))
        total = np.bincount(classes.leaf, classes.gpus, len(tree.parent)).astype(np.float64)
        for level in tree.levels[::-1]:
            total[level] = np.minimum(total[level], accounts.cap_total[level])
            inner = level[tree.parent[level] != NOWHERE]
            np.add.at(total, tree.parent[inner], total[inner])
        return cls(above, order, np.maximum(total, 0.0), np.maximum(accounts.cap, 0.0), classes.most)

    def new_flow(self, classes: Classes, tree: Tree) -> Flow:
        """Returns a flow with one row for each class of jobs that can use GPUs. The rows hold no GPUs yet.

        A row can get as many GPUs as its class can use, but no more than limits on single generations allow.
        """
        leaf, able, nothing = classes.leaf, classes.able, np.zeros(classes.able.shape)
        each = tree.least_on_path(self.each).take(leaf, axis=0).T
        alone = (np.minimum(each, self.kinds.T) * able).sum(axis=0)
        gpus, kept = np.minimum(classes.gpus, alone), np.zeros(len(leaf), dtype=bool)
        kind = np.arange(len(leaf))
        return self.sorted_by_account(
            Flow(leaf, kind, gpus, able, classes.step, nothing, nothing.copy(), kept)
        )

    def sorted_by_account(self, flow: Flow) -> Flow:
        """Returns a copy of the flow, sorted along the account tree, without rows that cannot use any GPUs.

        In the copy, all rows below an account are adjacent, for every account of the tree. All rows of one class of
        jobs are adjacent, too.
        """
        rows = np.flatnonzero(flow.gpus > EPSILON)
        return flow.of(rows[np.lexsort((flow.kind[rows], self.order[flow.leaf[rows]]))])

    def ancestors(self, flow: Flow, depth: int) -> Ints:
        """Returns, for each row, the ancestor of its leaf account at the given depth of the tree, as an array (C,).

        The result is the leaf account itself if it is at this depth or closer to the root.
        """
        owner = self.above[depth, flow.leaf]
        return np.where(owner == NOWHERE, flow.leaf, owner)

    def gates(self, flow: Flow, pool: Ints, gpus: Floats, depth: int) -> Gates:
        """Returns all limits on GPUs of single generations, as gates of a network flow.

        Gates are nested. From the outside to the inside, they are the GPUs of pools, the limits of accounts, and the
        limits of classes of jobs.

        - `pool` (C,): the pool of each row.
        - `gpus` (G, K): GPUs of each generation in each of G pools.
        - `depth`: a depth of the account tree. Limits of accounts closer to the root are left out.
        """
        accounts = [(self.above[at, flow.leaf], self.each) for at in range(depth, len(self.above))]
        return Gates.of(flow, pool, gpus, [*accounts, (flow.kind, self.kinds)])

    def bounds(self, flow: Flow, depth: int, guaranteed: Floats) -> dict[int, Groups]:
        """Returns the bounds of accounts on their GPUs of all generations together, as groups of rows.

        The group of an account has all rows below the account. Its lower bound is the account's guarantee, its upper
        bound the account's limit.

        The keys of the result are depths of the tree, the deepest first. The value at a depth is the groups of the
        inner accounts there. Depths where no bound has an effect are left out. The groups of all leaf accounts come
        first, at a key that is larger than all depths.

        - `depth`: the smallest depth in the result.
        - `guaranteed` (T,): guaranteed GPUs of each account in total.
        """
        leaves = Groups.of(flow.leaf, self.total)
        sure = flow.sure.sum(axis=0)
        found = {len(self.above): replace(leaves, least=leaves.sums(sure))}
        for at in range(len(self.above) - 2, depth - 1, -1):
            owner = self.ancestors(flow, at)
            groups = Groups.of(owner, self.total)
            groups = replace(groups, least=np.maximum(guaranteed[owner[groups.first]], groups.sums(sure)))
            if (groups.most < groups.sums(flow.gpus) - EPSILON).any() or (
                groups.least > groups.sums(sure) + EPSILON
            ).any():
                found[at] = groups
        return found


def _guarantee_leaves(means: Floats, flow: Flow, limits: _Limits, guaranteed: Floats) -> None:
    """Computes the guarantees of leaf accounts: the best use that each can make of its entitlement.

    - `means` (T, K): the entitlement of each account, as far as limits allow it.
    - `flow`: the rows. Each receives the guaranteed GPUs of its class of jobs.
    - `limits`: the limits of accounts and of classes of jobs.
    - `guaranteed` (T, K): receives the guaranteed GPUs of leaf accounts; other entries do not change.
    """
    leaves = Groups.of(flow.leaf, limits.total)
    accounts = flow.leaf[leaves.first]
    gates = limits.gates(flow, leaves.of_row, np.minimum(means, limits.each)[accounts], len(limits.above))
    _make_best_use(flow, gates, [leaves])
    flow.held[flow.held <= EPSILON] = 0.0
    guaranteed[accounts] = leaves.sums(flow.held).T


def _with_guarantee_rows(flow: Flow) -> Flow:
    """Returns the flow with additional rows, which keep guaranteed GPUs from being moved to slower generations.

    An additional row holds the guaranteed GPUs of one class of jobs on one generation. It may use only this generation
    and others that are at least as fast for the class. Classes that are equally fast on all generations need no such
    rows.

    `flow`: the rows, which hold exactly their guaranteed GPUs. It is changed and must not be used afterwards.
    """
    best = open_steps(flow.step, flow.able).max(axis=0)
    alike = ~((flow.step != best) & flow.able).any(axis=0)
    k, row = np.nonzero(flow.held * ~alike)
    sure = flow.of(row)
    sure.gpus, sure.is_kept = flow.held[k, row], np.ones(len(row), dtype=bool)
    sure.able &= sure.step >= flow.step[k, row]
    sure.held *= np.arange(len(flow.able))[:, None] == k
    flow.gpus, flow.base = np.where(alike, flow.gpus, flow.unmet), flow.held * alike
    flow.held = flow.base.copy()
    return flow + sure


def _make_best_use(flow: Flow, gates: Gates, bounds: list[Groups]) -> None:
    """Gives rows additional GPUs until all rows together have as many as possible, on generations where they are fast.

    The steps are:
    1. Rows get free GPUs on their fastest generations.
    2. If this makes room for more GPUs, rows change to other generations. No row gets fewer GPUs than before.
    3. If this makes room for still more GPUs, rows also lose GPUs to other rows.

    - `flow`: the rows, changed in place.
    - `gates`: limits on single generations. The outermost gates are the GPUs that can be given out.
    - `bounds`: bounds on the GPUs of groups of rows over all generations.
    """
    whole = Network(flow, gates, bounds)
    fastest_first(whole)
    # First every row keeps what it has; then rows may lose GPUs if the sum of all rows grows by that.
    for keeps_all in (True, False):
        rows = np.flatnonzero(whole.may_have_more())
        if not len(rows):
            break
        some = flow.of(rows)
        inside = [groups.of_rows(rows) for groups in bounds]
        if keeps_all:
            inside = [_keeping_totals(some), *inside]
        network = Network(some, gates.rows(rows), inside)
        network.fill()
        upgrade_rows(network)
        flow.held[:, rows] = some.held


def _keeping_totals(flow: Flow) -> Groups:
    """Returns groups that let each row keep the number of GPUs that it holds now, possibly on other generations.

    Each group has one row. Its lower bound is the row's present number of GPUs, and it has no upper bound.
    """
    rows = np.arange(len(flow.leaf))
    return Groups(rows, rows, np.full(len(rows), np.inf), flow.held.sum(axis=0))


def _guarantee_inner(flow: Flow, tree: Tree, limits: _Limits, means: Floats, guaranteed: Floats) -> None:
    """Computes the guarantees of inner accounts, and writes them to `guaranteed`.

    The guarantee of an inner account is the GPUs of its entitlement that all accounts below it can use together. It can
    be larger than the sum of their own guarantees, because what one of them leaves unused can be used by another.

    - `flow`: the rows, which hold the guarantees of leaf accounts at the start. They receive the additional guaranteed
      GPUs.
    - `tree`: the account tree.
    - `limits`: the limits of accounts and of classes of jobs.
    - `means` (T, K): the entitlement of each account, as far as limits allow it.
    - `guaranteed` (T, K): the guarantees. At the start, those of leaf accounts are filled in.
    """
    sure = tree.sums(guaranteed)  # so far only the guarantees of leaves
    lack = tree.sums(np.bincount(flow.leaf, flow.unmet, len(tree.parent)).astype(np.float64))
    left = anywhere(means - sure > EPSILON * (1.0 + across(means))[:, None])
    concerned = ~tree.is_leaf & left & (lack > EPSILON)
    guaranteed[~tree.is_leaf] = sure[~tree.is_leaf]
    for depth in range(len(limits.above) - 2, -1, -1):
        owner = limits.above[depth, flow.leaf]
        rows = np.flatnonzero((owner != NOWHERE) & concerned[owner])
        if not len(rows):
            continue
        some = flow.of(rows)
        pools = Groups.of(owner[rows], limits.total)
        accounts = owner[rows][pools.first]
        gpus = np.minimum(means, limits.each)[accounts]
        gates = limits.gates(some, pools.of_row, gpus, depth + 1)
        _make_best_use(some, gates, [*limits.bounds(some, depth, across(guaranteed)).values()])
        guaranteed[accounts], flow.held[:, rows] = pools.sums(some.held).T, some.held


def _divide(  # noqa: PLR0917 - in the order of the formula
    flow: Flow, tree: Tree, limits: _Limits, tickets: Floats, capacity: Floats, guaranteed: Floats
) -> Floats:
    """Returns the share of each account in GPUs of each generation, as an array (T, K).

    First, each account's total over all generations is computed, depth by depth from the roots down. After that, GPUs
    are moved to generations where jobs are faster, without changing the totals.

    - `flow`: the rows, which hold their guaranteed GPUs at the start, and their shares at the end.
    - `tree`: the account tree.
    - `limits`: the limits of accounts and of classes of jobs.
    - `tickets` (T,): the tickets of each account.
    - `capacity` (K,): GPUs of the cluster.
    - `guaranteed` (T, K): the guarantee of each account.
    """
    share = np.zeros_like(guaranteed)
    if not len(flow.leaf):
        return share
    everybody = np.zeros_like(flow.leaf)
    gates = limits.gates(flow, everybody, capacity[None], 0)
    start, least = flow.held.copy(), across(guaranteed)
    bounds = limits.bounds(flow, 0, least)
    network = Network(flow, gates, [*bounds.values()])
    network.spread()  # usually gives out everything
    network.fill()
    family = Groups.of(everybody, np.full(1, np.inf))
    # Without surplus beyond the guarantees of leaves, the shares are already found.
    for depth in range(len(limits.above) if (flow.held - flow.sure).sum() > EPSILON else 0):
        owner = limits.ancestors(flow, depth)
        group = Groups.of(owner, limits.total)
        here = owner[group.first]
        inside = [groups for at, groups in bounds.items() if at > depth]
        families = Families(flow, gates, inside, group, family)
        families.divide(tickets[here], least[here], start)
        family = group
    upgrade_rows(network)
    leaves = bounds[len(limits.above)]
    share[flow.leaf[leaves.first]] = leaves.sums(flow.held).T
    return tree.sums(share)
