"""Tracks the GPU time that each account is owed from round to round, like the counters of deficit round robin.

A balance is the GPU-seconds that an account was due (its GPUs in the plan, times the seconds) minus the GPU-seconds
that it received. If it is positive, the account is behind, and later rounds make up for that. Each account has three
balances:
- `guaranteed`: only guaranteed GPUs count as due. With time saved here, an account can run a gang that is larger than
  its guarantee. This balance is never negative, so that nobody has to pay back surplus.
- `total`: all GPUs of the account's share count as due, guaranteed GPUs and surplus. It decides the order of accounts:
  the account furthest behind relative to its share goes first.
- `owed`: like `total`, but separate for each generation. It decides on which generation a gang runs.

Sizes of arrays: T accounts, K generations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.model import Bools, Floats, Settings
from fairshare.policies.gandiva_fair.shares import Shares
from fairshare.tree import Tree


@dataclass(frozen=True, slots=True)
class Balances:
    """The balances of T accounts: the GPU-seconds that each account was due minus the GPU-seconds that it received."""

    guaranteed: Floats  # (T,) of guaranteed time, never negative
    total: Floats  # (T,) of guaranteed time and surplus together; for inner accounts the sum over leaves
    owed: Floats  # (T, K) by generation; 0 except for leaves

    @classmethod
    def none(cls, accounts: int, generations: int) -> Balances:
        return cls(np.zeros(accounts), np.zeros(accounts), np.zeros((accounts, generations)))


def guaranteed_after_trades(shares: Shares) -> Floats:
    """Returns the guaranteed GPUs that each account still has after trades, by generation, as an array (T, K).

    A trade can leave an account with fewer but faster GPUs. If its share is then smaller than its guarantee (in GPUs of
    all generations), the guarantee is scaled down to the size of the share.
    """
    due, most = shares.guaranteed.sum(axis=1), shares.share.sum(axis=1)
    part = np.divide(most, due, out=np.ones_like(due), where=due > most)
    scaled: Floats = shares.guaranteed * part[:, None]
    return scaled


def settle(  # noqa: PLR0917 - in the order of the formula
    balances: Balances,
    shares: Shares,
    tree: Tree,
    received: Floats,
    dt: float,
    settings: Settings,
    active: Bools,
    largest: Floats,
) -> Balances:
    """Returns the balances after `dt` more seconds.

    Each account earns its GPUs times `dt`, and what it received is subtracted. If all accounts together received less
    time of a generation than they were due, they earn less there. First, what they earn from surplus is reduced, then
    what they earn from guaranteed time, each in proportion.

    A balance stops growing at the larger of two amounts:
    - `settings.memory` seconds times the account's GPUs (for `guaranteed`, its guaranteed GPUs; otherwise its share)
    - the GPU time that its largest gang uses in two quanta

    Parameters:
    - `balances`: the balances before.
    - `shares`: the shares of accounts in these seconds, by the last plan.
    - `received` (T, K): GPU-seconds of each generation that each leaf account received in these seconds.
    - `settings`: only `quantum` and `memory` are used, both in seconds.
    - `active` (T,): whether the account, or an account below it, has jobs. The balances of all other accounts become
      zero.
    - `largest` (T,): GPUs of the largest gang of the account and of all accounts below it.
    """
    leaves = tree.is_leaf[:, None]
    received = np.where(leaves, received, 0.0)
    first, due = guaranteed_after_trades(shares) * dt, np.where(leaves, shares.share, 0.0) * dt
    claims, available = np.minimum(first, due), received.sum(axis=0)
    part = _available_fraction(claims.sum(axis=0), available)
    rest = _available_fraction((due - claims).sum(axis=0), available - claims.sum(axis=0))
    earned, got = claims * part + (due - claims) * rest, received.sum(axis=1)

    gang = 2 * settings.quantum * largest
    limit = np.maximum(settings.memory * shares.share.sum(axis=1), gang)
    total = _limited(balances.total + earned.sum(axis=1) - got, balances.total, limit, got)
    # An account earns no credit while it has no jobs.
    total = np.where(active & tree.is_leaf, total, 0.0)
    owed = _limited(balances.owed + earned - received, balances.owed, limit[:, None], received)

    saved = balances.guaranteed + (first * part - tree.sums(received)).sum(axis=1)
    most = np.maximum(settings.memory * guaranteed_after_trades(shares).sum(axis=1), gang)
    guaranteed = np.clip(saved, 0.0, np.maximum(balances.guaranteed, most))
    return Balances(
        guaranteed=np.where(active, guaranteed, 0.0),
        total=tree.sums(total[:, None])[:, 0],
        owed=np.where(active[:, None], owed, 0.0),
    )


def _available_fraction(due: Floats, available: Floats) -> Floats:
    """Returns the fraction of the due GPU time that was available, for each generation, as an array (K,).

    `due` (K,): GPU-seconds that all accounts together were due. `available` (K,): GPU-seconds that were available for
    them. With 4 GPU-seconds due and 3 available, the fraction is 0.75. It is at least 0 and at most 1, and is 1 if
    nothing is due.
    """
    met: Floats = np.clip(np.divide(available, due, out=np.ones_like(due), where=due > 0), 0.0, 1.0)
    return met


def _limited(balance: Floats, before: Floats, limit: Floats, received: Floats) -> Floats:
    """Returns `balance`, limited to the range from -(`limit` + `received`) to `limit`. All arguments are GPU-seconds.

    - `before`: the balance before this step. If it was outside the range, the range is extended to include it.
    - `received`: what the account received in this step.
    """
    limited: Floats = np.clip(balance, np.minimum(before, -limit - received), np.maximum(before, limit))
    return limited
