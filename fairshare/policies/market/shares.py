"""Computes the GPUs that accounts buy with their tickets as income, for use as shares by the policy `market`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.entitlement import capacity_of, ticket_share
from fairshare.model import Bools, Floats, Ints, Snapshot
from fairshare.policies.gandiva_fair.classes import shapes_of
from fairshare.policies.market.economy import Economy, missed
from fairshare.policies.market.equilibrium import equilibrium
from fairshare.quotas import with_claims
from fairshare.tree import Tree

LEAST_GPUS = 1e-6  # fewer GPUs count as zero


@dataclass(frozen=True, slots=True)
class MarketShares:
    """The result of a market: incomes, prices, the GPUs that each account bought, and the error of the equilibrium."""

    income: Floats  # (T,) income by tickets among active siblings, level by level; the unit is the mean price of a GPU
    price: Floats  # (K,) income for a GPU
    share: Floats  # (T, K) GPUs bought by each account and all accounts below it
    missed: float  # the relative error of the equilibrium, see `economy.missed`


def market_shares(snapshot: Snapshot, tree: Tree, able: Bools) -> MarketShares:
    """Divides the cluster by a market in which tickets are income. Returns incomes, prices and shares.

    `able` (J, K): whether each job may run on each generation, False for preemptible jobs. The speeds of a job are its
    measured rates relative to its best rate. A job that was not measured on a generation counts as having its best
    speed there. No class of jobs buys more GPUs of a generation than its gangs can occupy there.

    Limits are handled in three ways:
    - Under a limit on all generations together, an account buys only as many GPUs as the limit allows. They are for the
      first jobs in the account's order.
    - A limit on one generation reduces what an account gets, but not what it pays.
    - A limit on costs applies only when gangs are picked. The GPUs that it withholds go to any account that can use
      them.
    """
    accounts, jobs = with_claims(snapshot.accounts), snapshot.jobs
    capacity = capacity_of(snapshot.cluster)
    some = np.flatnonzero((able & (capacity > 0)).any(axis=1))
    some = some[np.lexsort((some, -jobs.priority[some], jobs.account[some]))]
    gpus = _wanted(tree, jobs.account[some], (jobs.workers * jobs.gpus)[some], accounts.cap_total)
    some, gpus = some[gpus > LEAST_GPUS], gpus[gpus > LEAST_GPUS]
    active = np.bincount(jobs.account[some], minlength=len(tree.parent)).astype(np.float64)
    income: Floats = ticket_share(
        tree, accounts.tickets, tree.sums(active)[:, None] > 0, np.array([capacity.sum()])
    )[:, 0]
    share = np.zeros((len(tree.parent), len(capacity)))
    if not len(some):
        return MarketShares(income, np.zeros(len(capacity)), share, 0.0)
    rate = np.where(able[some], np.nan_to_num(jobs.rate[some]), 0.0)
    speed = np.divide(rate, rate.max(axis=1)[:, None], out=able[some].astype(np.float64), where=rate > 0)
    shape, most = shapes_of(jobs, snapshot.cluster)
    kinds, which = np.unique(
        np.column_stack((jobs.account[some], shape[some], speed)), axis=0, return_inverse=True
    )
    leaf, account = np.unique(kinds[:, 0].astype(np.int64), return_inverse=True)
    sizes: Floats = np.bincount(which.ravel(), gpus).astype(np.float64)
    economy = Economy(
        kinds[:, 2:], sizes, account, income[leaf], capacity, most[kinds[:, 1].astype(np.int64)]
    )
    found = equilibrium(economy)
    share[leaf] = economy.of_accounts(found.use)
    shares = tree.sums(share * _part(tree, share, accounts.cap))
    return MarketShares(income, found.price, shares, missed(economy, found))


def _wanted(tree: Tree, account: Ints, gpus: Ints, cap_total: Floats) -> Floats:
    """Returns how many GPUs each of N jobs may buy, as an array (N,).

    The jobs must be sorted by account, and each account's jobs in the order that the account wants. If the limits do
    not allow all of them, the first jobs get what the limits allow.

    - `account` (N,): the account of each job.
    - `gpus` (N,): the GPUs that each job needs.
    - `cap_total` (T,): the limit of each account on the GPUs of all generations together.
    """
    demand = np.bincount(account, gpus, len(tree.parent)).astype(np.float64)
    allowed = demand * _part(tree, demand, cap_total)
    before = np.cumsum(gpus) - gpus - (np.cumsum(demand) - demand)[account]
    found: Floats = np.clip(allowed[account] - before, 0.0, gpus)
    return found


def _part(tree: Tree, amount: Floats, cap: Floats) -> Floats:
    """Returns the fraction of its amount that each leaf may keep, as an array (T, …).

    If the leaves below an account together exceed its cap, all of them are reduced by the same factor. If several caps
    apply to a leaf, the lowest factor counts. `amount` (T, …): the amounts of leaves. `cap` (T, …): the limits of all
    accounts.
    """
    total = tree.sums(amount)
    return tree.least_on_path(np.minimum(1.0, cap / np.maximum(total, LEAST_GPUS)))
