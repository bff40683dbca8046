"""Tracks the GPU time that each account is owed, from round to round.

An account has two balances: one of guaranteed time only, and one of guaranteed time and surplus together. The first
never falls below zero, so that an account does not have to pay back surplus that others lent it. The second only
decides the order of accounts: the account furthest behind relative to its share goes first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.model import Bools, Floats, Settings
from fairshare.policies.gandiva_fair.shares import Shares
from fairshare.tree import Tree


@dataclass(frozen=True, slots=True)
class Balances:
    """The GPU-seconds that each account was due minus the GPU-seconds that it received."""

    guaranteed: Floats  # (T,) of guaranteed time, never negative
    total: Floats  # (T,) of guaranteed time and surplus together; for inner accounts the sum over leaves
    owed: Floats  # (T, K) by generation; 0 except for leaves

    @classmethod
    def none(cls, accounts: int, generations: int) -> Balances:
        return cls(np.zeros(accounts), np.zeros(accounts), np.zeros((accounts, generations)))


def tier_one(shares: Shares) -> Floats:
    """Returns each account's guaranteed GPUs of each generation, as an array (T, K).

    A trade can leave an account with fewer but faster GPUs. If its share then has fewer GPUs in total than its
    guarantee, the guarantee is scaled down to the total of the share.
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
    """Returns the balances `dt` seconds later.

    - `received` (T, K): GPU-seconds of each generation that the leaf accounts received in these `dt` seconds.
    - `active` (T,): whether the account, or an account below it, has jobs. If not, its balances are reset to zero,
      because an account earns no credit while it has no jobs.
    - `largest` (T,): GPUs of the largest gang of the account and of all accounts below it.

    Each balance has an upper limit, the larger of two amounts:
    - The account's GPUs times `settings.memory` seconds. For the balance `guaranteed`, only its guaranteed GPUs count.
      For the balances `total` and `owed`, all GPUs of its share count.
    - The GPU time that the account's largest gang uses in two quanta.
    """
    leaves = tree.is_leaf[:, None]
    received = np.where(leaves, received, 0.0)
    first, due = tier_one(shares) * dt, np.where(leaves, shares.share, 0.0) * dt
    claims, there_was = np.minimum(first, due), received.sum(axis=0)
    part = _part(claims.sum(axis=0), there_was)
    rest = _part((due - claims).sum(axis=0), there_was - claims.sum(axis=0))
    earned, got = claims * part + (due - claims) * rest, received.sum(axis=1)

    gang = 2 * settings.quantum * largest
    limit = np.maximum(settings.memory * shares.share.sum(axis=1), gang)
    total = _limited(balances.total + earned.sum(axis=1) - got, balances.total, limit, got)
    total = np.where(active & tree.is_leaf, total, 0.0)
    owed = _limited(balances.owed + earned - received, balances.owed, limit[:, None], received)

    saved = balances.guaranteed + (first * part - tree.sums(received)).sum(axis=1)
    most = np.maximum(settings.memory * tier_one(shares).sum(axis=1), gang)
    guaranteed = np.clip(saved, 0.0, np.maximum(balances.guaranteed, most))
    return Balances(
        guaranteed=np.where(active, guaranteed, 0.0),
        total=tree.sums(total[:, None])[:, 0],
        owed=np.where(active[:, None], owed, 0.0),
    )


def _part(due: Floats, there_was: Floats) -> Floats:
    """Returns the fraction of the due GPU time that was available, for each generation, as an array (K,).

    `due` (K,): GPU-seconds that accounts were due. `there_was` (K,): GPU-seconds that were available for this. A
    fraction is between 0 and 1, and is 1 where nothing is due.
    """
    met: Floats = np.clip(np.divide(there_was, due, out=np.ones_like(due), where=due > 0), 0.0, 1.0)
    return met


def _limited(balance: Floats, before: Floats, limit: Floats, received: Floats) -> Floats:
    """Returns the new `balance` in GPU-seconds, cut to a range from -(`limit` + `received`) to `limit`.

    - `before`: the balance before this step. If it was outside the range, the range is extended to it.
    - `received`: GPU-seconds that the account received in this step.
    """
    limited: Floats = np.clip(balance, np.minimum(before, -limit - received), np.maximum(before, limit))
    return limited
