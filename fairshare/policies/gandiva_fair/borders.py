"""Applies the limits of accounts to trades: limits on trades, and limits on the GPUs that accounts may hold.

A trade crosses the *border* of an account if exactly one of its two sides is the account or below it. Only such trades
count towards the account's limits.
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
    """A division of GPUs among accounts before trades, such as the result of `share_out`."""

    @property
    def entitled(self) -> Floats:
        """Returns each account's entitlement in GPUs of each generation, as an array (T, K)."""

    @property
    def share(self) -> Floats:
        """Returns each account's GPUs of each generation, surplus included, as an array (T, K).

        An inner account has the sum over all accounts below it.
        """


@dataclass(frozen=True, slots=True)
class Legs:
    """N legs of trades. A leg is what one account gives and takes in one trade."""

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
        """Returns the GPUs of each generation that each account gains (or loses, if negative), as an array (accounts,
        K).

        `gpus` (D,): the size of each of D trades, in GPUs of the fast generation. `accounts` and `generations`: the
        numbers of accounts and of generations.
        """
        found = np.zeros(accounts * generations)
        for k, amount in ((self.gives, -self.given), (self.takes, self.taken)):
            found += np.bincount(self.account * generations + k, amount * gpus[self.trade], len(found))
        return found.reshape(accounts, generations)


def ration(gpus: Floats, trade: Ints, room_of: Ints, needs: Floats, room: Floats) -> Floats:
    """Returns the size of each of D trades in GPUs, reduced to what limited capacities allow, as an array (D,).

    A capacity is an amount on which several trades draw, such as the GPUs that an account may still give away. A trade
    may draw on several capacities. If a capacity does not suffice for all trades, earlier trades are served first.

    - `gpus` (D,): the size of each trade before the reduction.
    - `trade`, `room_of` and `needs`: three arrays of the same length. The entries at the same index say which trade
      draws on which capacity, and how much it draws for each GPU of the trade.
    - `room`: the available amount of each capacity.
    """
    some = np.flatnonzero(np.isfinite(room[room_of]) & (needs > 0))
    if not len(some):
        return gpus
    # All needs of one trade for the same room are served together.
    key, which = np.unique(room_of[some] * len(gpus) + trade[some], return_inverse=True)
    at, of = key // len(gpus), key % len(gpus)
    need = np.bincount(which, needs[some]) * gpus[of]
    fits = Queue.one_by_one(at).fill(need, np.maximum(room, 0.0))
    found = gpus.copy()
    np.minimum.at(found, of, gpus[of] * np.divide(fits, need, out=np.ones_like(need), where=need > 0))
    return found


class Borders:
    """The limits of accounts on the GPUs that trades move into or out of the account (across its border).

    Trades between two accounts below the same account do not change what that account holds, and do not count towards
    its limits.
    """

    def __init__(self, accounts: Accounts, tree: Tree, entitled: Floats, limits: TradeLimits) -> None:
        """Reads the limits of accounts.

        `entitled` (T, K): the entitlement of each account in GPUs. A limit on borrowing restricts the GPUs beyond the
        entitlement. `limits`: limits on trades.
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
        """Returns the legs of trades that count towards limits. A leg is what one account gives and takes in one trade.

        A trade counts towards the limits of an account if exactly one of its two sides is the account or below it. For
        example, a trade between two users of one team does not count towards the limits of the team.

        A leg in `legs` can count towards the limits of several accounts, such as a user and its team. The result then
        has one copy of the leg for each of these accounts, with this account in place of the leg's own.
        """
        legs = legs[self._is_below[legs.account]]
        found = legs[:0]
        while len(legs.trade):
            found += legs[self._is_limited[legs.account] & ~self._above(legs.account, legs.other)]
            up = replace(legs, account=self._parent[legs.account])
            legs = up[up.account != NOWHERE]
        return found

    def _above(self, account: Ints, below: Ints) -> Bools:
        """Returns, for each index i, whether account `account[i]` is `below[i]` itself or is above it, as a mask."""
        found: Bools = account == below
        at = below
        while (at != NOWHERE).any():
            at = np.where(at == NOWHERE, NOWHERE, self._parent[at])
            found |= at == account
        return found

    def within(self, gpus: Floats, crossed: Legs, share: Floats) -> Floats:
        """Returns the sizes of D trades in GPUs, reduced to what limits allow, as an array (D,).

        - `gpus` (D,): the size of each trade before the reduction.
        - `crossed`: the legs that count towards limits, as the method `crossed` returns them.
        - `share` (T, K): the GPUs that accounts hold before the trades.
        """
        legs, kinds = crossed, share.shape[1]
        given = np.where(self._limits.deals, self._limits.left, 0.0)
        deals = np.where(self._limits.deals, np.inf, 0.0)
        gives, takes = legs.account * kinds + legs.gives, legs.account * kinds + legs.takes
        cost = legs.taken * self._price[legs.takes] - legs.given * self._price[legs.gives]
        for room_of, needs, room in (
            (gives, legs.given, given),
            (takes, legs.taken, np.minimum(self._cap - share, deals)),
            (legs.account, legs.taken - legs.given, self._cap_total - across(share)),
            (legs.account, cost, self._cap_cost - np.einsum("tk,k->t", share, self._price)),
        ):
            gpus = ration(gpus, legs.trade, room_of, needs, room.ravel())
        return gpus

    def note(self, gpus: Floats, crossed: Legs) -> None:
        """Records trades: subtracts the GPUs that each account gives away in the trades from the GPUs that it may still
        give away.

        `gpus` (D,): the size of each of D trades. `crossed`: the legs of these trades that count towards limits, as the
        method `crossed` returns them.
        """
        left = self._limits.left
        np.subtract.at(left, (crossed.account, crossed.gives), crossed.given * gpus[crossed.trade])
        np.maximum(left, 0.0, out=left)
