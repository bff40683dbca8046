"""Computes the shares of the policy `market`: the GPUs that accounts buy in a market where tickets are their income.

The buyers are leaf accounts, usually users. The goods are the GPUs of each generation. `economy.py` describes the
market, and `equilibrium.py` finds its prices. Dimensions of arrays: T accounts, K generations, J jobs.
"""

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
    """The result of the market: incomes, prices, the GPUs that accounts bought, and how exact the equilibrium is."""

    income: Floats  # (T,) income by tickets among active siblings, level by level; the unit is the mean price of a GPU
    price: Floats  # (K,) income for a GPU
    share: Floats  # (T, K) GPUs bought by each account and all accounts below it
    missed: float  # the relative error of the equilibrium, see `economy.missed`


def market_shares(snapshot: Snapshot, tree: Tree, able: Bools) -> MarketShares:
    """Divides the cluster by a market in which tickets are income. Returns the accounts' incomes, the prices and the
    shares.

    `able` (J, K): whether each job may run on each generation; False for preemptible jobs, which do not take part.

    The speed of a job on a generation is its measured rate, relative to its best rate. On a generation where it was not
    measured, it counts as having its best speed. Jobs do not buy more GPUs of a generation than their gangs can occupy
    on its nodes.

    Limits of accounts:
    - A limit on the GPUs of all generations together limits how many GPUs the account buys. The first jobs in the
      account's order get them.
    - A limit on one generation reduces what the account gets, but not what it pays.
    - A limit on costs is ignored here. It applies later, when gangs are picked.
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

    A job may buy as many GPUs as it needs. If limits do not allow this for all jobs of an account, its first jobs get
    what the limits allow. The jobs must be sorted by account, and within an account in the order in which the account
    wants them.

    - `account` (N,): the account of each job.
    - `gpus` (N,): the GPUs that each job needs.
    - `cap_total` (T,): the limit of each account on its GPUs of all generations together.
    """
    demand = np.bincount(account, gpus, len(tree.parent)).astype(np.float64)
    allowed = demand * _part(tree, demand, cap_total)
    before = np.cumsum(gpus) - gpus - (np.cumsum(demand) - demand)[account]
    found: Floats = np.clip(allowed[account] - before, 0.0, gpus)
    return found


def _part(tree: Tree, amount: Floats, cap: Floats) -> Floats:
    """Returns the fraction of its amount that each leaf account may keep within limits, as an array (T, …).

    If all leaves below an account together exceed the account's limit, their amounts are reduced by the same factor.
    Example: a team may have 6 GPUs, and its users want 4 and 8. Each of them may keep a half. If several accounts above
    a leaf have limits, the lowest fraction counts.

    - `amount` (T, …): the amounts of leaves.
    - `cap` (T, …): the limit of each account.
    """
    total = tree.sums(amount)
    return tree.least_on_path(np.minimum(1.0, cap / np.maximum(total, LEAST_GPUS)))
