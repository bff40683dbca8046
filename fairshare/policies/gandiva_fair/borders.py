"""Reduces trades to what the limits of accounts allow: limits on trading, and limits on the GPUs that accounts hold.

In a trade, a seller gives GPUs of a fast generation, and a buyer pays with GPUs of a slow generation.
- The *size* of a trade is its number of fast GPUs.
- The *sides* of a trade are its seller and its buyer. A side is a team, or another account that is set to trade.
- A *leg* is what one user account of a side gives and takes in one trade.

A trade *crosses the border* of an account if exactly one side is the account or below it in the tree. Only trades that
cross its border count towards the limits of an account. For example, a trade between two teams of a department does not
count towards the limits of the department, because the GPUs stay inside.

Sizes of arrays: D trades, N legs, T accounts, K generations.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Protocol

import numpy as np

from fairshare.columns import across
from fairshare.model import NOWHERE, Accounts, Bools, Floats, Ints
from fairshare.policies.gandiva_fair.queues import Queue
from fairshare.quotas import with_claims, within_borrowing
from fairshare.trading.limits import TradeLimits
from fairshare.tree import Tree


class Divided(Protocol):
    """A division of GPUs among accounts before trades. The result of `share_out` is one."""

    @property
    def entitled(self) -> Floats:
        """Returns each account's entitlement in GPUs of each generation, as an array (T, K)."""

    @property
    def share(self) -> Floats:
        """Returns each account's share in GPUs of each generation, surplus included, as an array (T, K).

        The share of an inner account of the tree is the sum over all accounts below it.
        """


@dataclass(frozen=True, slots=True)
class Legs:
    """N legs of trades. Each field is an array (N,) with one entry for each leg.

    `given` and `taken` are numbers of GPUs for each fast GPU of the trade. They must be multiplied by the size of the
    trade.
    """

    trade: Ints  # (N,)
    account: Ints  # (N,)
    other: Ints  # (N,) the account on the other side of the trade
    gives: Ints  # (N,) a generation
    given: Floats  # (N,) GPUs of it for each GPU of the trade
    takes: Ints  # (N,) a generation
    taken: Floats  # (N,) GPUs of it for each GPU of the trade

    def __getitem__(self, some: Bools | slice) -> Legs:
        return Legs(*(getattr(self, one.name)[some] for one in fields(self)))

    def __add__(self, more: Legs) -> Legs:
        both = (np.concatenate([getattr(self, one.name), getattr(more, one.name)]) for one in fields(self))
        return Legs(*both)

    def changes(self, gpus: Floats, accounts: int, generations: int) -> Floats:
        """Returns how many GPUs of each generation each account gains by these legs, as an array (T, K). Negative
        numbers are losses.

        - `gpus` (D,): the size of each trade, in fast GPUs.
        - `accounts` and `generations`: T and K, the numbers of accounts and of generations.
        """
        found = np.zeros(accounts * generations)
        for k, amount in ((self.gives, -self.given), (self.takes, self.taken)):
            found += np.bincount(self.account * generations + k, amount * gpus[self.trade], len(found))
        return found.reshape(accounts, generations)


def ration(gpus: Floats, trade: Ints, capacity_of: Ints, needs: Floats, capacity: Floats) -> Floats:
    """Returns the sizes of D trades, reduced so that no capacity is exceeded, as an array (D,).

    A capacity is an amount that several trades use up, such as the GPUs that an account may still give away. Earlier
    trades are served first. For example, if trades of 3 and 2 GPUs share a capacity of 4 GPUs, their new sizes are 3
    and 1.

    - `gpus` (D,): the sizes before.
    - `trade`, `capacity_of` and `needs`: three arrays of equal length. Each GPU of the trade `trade[i]` uses `needs[i]`
      units of the capacity `capacity_of[i]`. The first two arrays contain indices.
    - `capacity`: the available units of each capacity. Infinite means unlimited; negative numbers count as 0.
    """
    some = np.flatnonzero(np.isfinite(capacity[capacity_of]) & (needs > 0))
    if not len(some):
        return gpus
    # All needs of one trade for the same room are served together.
    key, which = np.unique(capacity_of[some] * len(gpus) + trade[some], return_inverse=True)
    at, of = key // len(gpus), key % len(gpus)
    need = np.bincount(which, needs[some]) * gpus[of]
    fits = Queue.one_by_one(at).fill(need, np.maximum(capacity, 0.0))
    found = gpus.copy()
    np.minimum.at(found, of, gpus[of] * np.divide(fits, need, out=np.ones_like(need), where=need > 0))
    return found


class Borders:
    """The limits of all accounts. They apply to trades that cross the border of their account."""

    def __init__(self, accounts: Accounts, tree: Tree, entitled: Floats, limits: TradeLimits) -> None:
        """Collects the limits of accounts.

        - `accounts`: the limits on the GPUs that accounts may hold, and on their cost.
        - `entitled` (T, K): each account's entitlement in GPUs. A limit on borrowing counts the GPUs beyond it.
        - `limits`: the limits on trading: which generations each account trades, and how many GPUs it may still give
          away. The method `note` changes this object.
        """
        capped = within_borrowing(with_claims(accounts), entitled)
        self._cap, self._cap_total = capped.cap, capped.cap_total
        self._cap_cost = np.full(len(accounts.parent), np.inf) if capped.cap_cost is None else capped.cap_cost
        self._price = np.zeros(entitled.shape[1]) if capped.price is None else capped.price
        self._limits, self._parent = limits, tree.parent
        self._is_limited = (
            np.isfinite(capped.cap).any(axis=1)
            | np.isfinite(capped.cap_total)
            | np.isfinite(self._cap_cost)
            | np.isfinite(limits.left).any(axis=1)
            | ~limits.deals.all(axis=1)
        )
        # Whether the account, or an account above it, is limited.
        self._is_below = tree.least_on_path(np.where(self._is_limited, 0.0, 1.0)) < 1

    def crossed(self, legs: Legs) -> Legs:
        """Returns the legs that count towards limits, each with the account whose limits it counts towards.

        A leg of a user counts towards the limits of the user, and of each account above the user whose border the trade
        crosses. For each of these accounts that has limits, the result has a copy of the leg, whose field `account` is
        that account.
        """
        legs = legs[self._is_below[legs.account]]
        found = legs[:0]
        while len(legs.trade):
            found += legs[self._is_limited[legs.account] & ~self._is_same_or_above(legs.account, legs.other)]
            up = replace(legs, account=self._parent[legs.account])
            legs = up[up.account != NOWHERE]
        return found

    def _is_same_or_above(self, account: Ints, below: Ints) -> Bools:
        """Returns whether `account[i]` is the same account as `below[i]`, or is above it in the tree, as a mask (N,).

        Both arguments are arrays (N,) of indices of accounts.
        """
        found: Bools = account == below
        at = below
        while (at != NOWHERE).any():
            at = np.where(at == NOWHERE, NOWHERE, self._parent[at])
            found |= at == account
        return found

    def within(self, gpus: Floats, crossed: Legs, share: Floats) -> Floats:
        """Returns the sizes of D trades, reduced so that all limits are kept, as an array (D,).

        Four amounts of each account can be limited: the GPUs that it gives away, its GPUs of each generation, its GPUs
        in total, and their cost.

        - `gpus` (D,): the size of each trade before, in fast GPUs.
        - `crossed`: the legs that count towards limits, as the method `crossed` returns them.
        - `share` (T, K): the GPUs that accounts hold before the trades.
        """
        legs, kinds = crossed, share.shape[1]
        given = np.where(self._limits.deals, self._limits.left, 0.0)
        deals = np.where(self._limits.deals, np.inf, 0.0)
        gives, takes = legs.account * kinds + legs.gives, legs.account * kinds + legs.takes
        cost = legs.taken * self._price[legs.takes] - legs.given * self._price[legs.gives]
        for capacity_of, needs, capacity in (
            (gives, legs.given, given),
            (takes, legs.taken, np.minimum(self._cap - share, deals)),
            (legs.account, legs.taken - legs.given, self._cap_total - across(share)),
            (legs.account, cost, self._cap_cost - np.einsum("tk,k->t", share, self._price)),
        ):
            gpus = ration(gpus, legs.trade, capacity_of, needs, capacity.ravel())
        return gpus

    def note(self, gpus: Floats, crossed: Legs) -> None:
        """Records trades that were made: lowers the numbers of GPUs that accounts may still give away.

        - `gpus` (D,): the size of each trade, in fast GPUs.
        - `crossed`: the legs of these trades that count towards limits, as the method `crossed` returns them.
        """
        left = self._limits.left
        np.subtract.at(left, (crossed.account, crossed.gives), crossed.given * gpus[crossed.trade])
        np.maximum(left, 0.0, out=left)
