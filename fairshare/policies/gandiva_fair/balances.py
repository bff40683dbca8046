"""What each account is owed: the memory of the scheduler between rounds.

An account's guaranteed time and its surplus have balances of their own. Time is charged to the guaranteed
balance first; that balance never falls below zero, so that surplus which was lent is no debt of who used it
within a guarantee, and total time is compared only where surplus is divided.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.model import Bools, Floats, Settings
from fairshare.policies.gandiva_fair.shares import Shares
from fairshare.tree import Tree


@dataclass(frozen=True, slots=True)
class Balances:
    """GPU-seconds due minus received of every account of the tree."""

    guaranteed: Floats  # (T,) of guaranteed time, never negative
    total: Floats  # (T,) of guaranteed time and surplus together
    owed: Floats  # (T, K) by generation, of leaves; others 0

    @classmethod
    def none(cls, accounts: int, generations: int) -> Balances:
        return cls(np.zeros(accounts), np.zeros(accounts), np.zeros((accounts, generations)))


def tier_one(shares: Shares) -> Floats:
    """(T, K) guaranteed GPUs, scaled down where trades left an account fewer but faster ones."""
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
    """Returns the balances after `dt` seconds in which leaves `received` (T, K) GPU-seconds.

    `active` (T,) marks accounts with jobs below; the others begin again at zero, as absence earns no credit.
    `largest` (T,) is the size in GPUs of the largest gang below each account: balances may grow to two
    quanta of it even where `settings.memory` seconds of the share are less.

    Dues shrink to what there was: where all together received less of a generation than their shares, nobody
    is owed the time that nobody had.
    """
    due, leaves = shares.share * dt, tree.is_leaf[:, None]
    received = np.where(leaves, received, 0.0)
    got, first = tree.sums(received).sum(axis=1), tier_one(shares) * dt
    of_leaves = np.where(leaves, due, 0.0)
    within = _within_guarantee(balances, received, first.sum(axis=1), of_leaves)
    earned = np.maximum(of_leaves * _part_there_was(of_leaves, within, received), within)

    gang = 2 * settings.quantum * largest
    limit = np.maximum(settings.memory * shares.share.sum(axis=1), gang)
    total = _limited(balances.total + tree.sums(earned).sum(axis=1) - got, balances.total, limit, got)

    plain = _part_there_was(of_leaves, np.zeros_like(of_leaves), received)
    guaranteed = np.maximum(balances.guaranteed + (first * plain).sum(axis=1) - got, 0.0)
    most = np.maximum(settings.memory * tier_one(shares).sum(axis=1), gang)
    guaranteed = np.minimum(guaranteed, np.maximum(balances.guaranteed, most))

    owed = _limited(balances.owed + earned - received, balances.owed, limit[:, None], received)
    return Balances(
        guaranteed=np.where(active, guaranteed, 0.0),
        total=np.where(active, total, 0.0),
        owed=np.where(active[:, None], owed, 0.0),
    )


def _within_guarantee(balances: Balances, received: Floats, first: Floats, due: Floats) -> Floats:
    """(T, K) GPU-seconds that leaves are credited with at least: time within a guarantee makes no debt."""
    got = received.sum(axis=1)
    no_surplus = got <= balances.guaranteed + first + 1e-6
    least = np.where(no_surplus, np.maximum(got - np.maximum(balances.total, 0.0), 0.0), 0.0)
    part = np.divide(least, got, out=np.zeros_like(got), where=got > 0)
    credited: Floats = np.minimum(received * part[:, None], due)
    return credited


def _part_there_was(due: Floats, within: Floats, received: Floats) -> Floats:
    """(K,) the part r ≤ 1 of their dues that accounts are credited with, so that Σ max(r due, within) = Σ received.

    All are in GPU-seconds of leaves (T, K).
    """
    full = np.zeros(due.shape, dtype=bool)
    there_was = received.sum(axis=0)
    while True:
        rest, weight = (
            there_was - np.where(full, within, 0.0).sum(axis=0),
            np.where(full, 0.0, due).sum(axis=0),
        )
        part: Floats = np.clip(np.divide(rest, weight, out=np.ones_like(rest), where=weight > 0), 0.0, 1.0)
        more = ~full & (within > due * part * (1 + 1e-12))
        if not more.any():
            return part
        full |= more


def _limited(balance: Floats, before: Floats, limit: Floats, received: Floats) -> Floats:
    """Within `limit`; a share that shrinks does not wipe out a debt, but stops it from growing."""
    limited: Floats = np.clip(balance, np.minimum(before, -limit - received), np.maximum(before, limit))
    return limited
