"""Applies the limits of accounts to trades: limits on trades, and limits on what accounts may hold."""

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
    """The GPUs that accounts have before they trade, as `share_out` divides them."""

    @property
    def entitled(self) -> Floats:
        """Returns the entitlement of each account in GPUs, as an array (T, K)."""

    @property
    def share(self) -> Floats:
        """Returns each account's GPUs, surplus included, as an array (T, K); for inner accounts the sum over all
        accounts below them."""


@dataclass(frozen=True, slots=True)
class Legs:
    """The legs of trades: what one account on one side of one trade gives and takes. There are N legs."""

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
        """Returns the GPUs that accounts gain or lose by `gpus` (D,) of each trade, as an array (accounts, K)."""
        found = np.zeros(accounts * generations)
        for k, amount in ((self.gives, -self.given), (self.takes, self.taken)):
            found += np.bincount(self.account * generations + k, amount * gpus[self.trade], len(found))
        return found.reshape(accounts, generations)


def ration(gpus: Floats, trade: Ints, room_of: Ints, needs: Floats, room: Floats) -> Floats:
    """Returns how much of each trade fits into the room, as an array (D,). The first trades are served first.

    Need n takes `needs[n]` for each GPU of trade `trade[n]` from the room `room[room_of[n]]`.
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
    """The limits of accounts, applied to the GPUs that trades move across the accounts' borders.

    A trade does not cross the border of an account that is above both sides.
    """

    def __init__(self, accounts: Accounts, tree: Tree, entitled: Floats, limits: TradeLimits) -> None:
        """Reads the limits of accounts. Limits on borrowing are relative to the entitlement `entitled` (T, K)."""
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
        """Returns the legs of all limited accounts whose border a trade crosses.

        These are the trading account and the accounts above it, up to the first account that is also above the other
        side. A trade between users of one party crosses the borders of accounts below the party only.
        """
        legs = legs[self._is_below[legs.account]]
        found = legs[:0]
        while len(legs.trade):
            found += legs[self._is_limited[legs.account] & ~self._above(legs.account, legs.other)]
            up = replace(legs, account=self._parent[legs.account])
            legs = up[up.account != NOWHERE]
        return found

    def _above(self, account: Ints, below: Ints) -> Bools:
        """Returns a mask of the entries of `account` that equal the entry of `below` or are above it."""
        found: Bools = account == below
        at = below
        while (at != NOWHERE).any():
            at = np.where(at == NOWHERE, NOWHERE, self._parent[at])
            found |= at == account
        return found

    def within(self, gpus: Floats, crossed: Legs, share: Floats) -> Floats:
        """Returns the GPUs of each trade that the limits allow to accounts that hold `share` (T, K), as an array
        (D,)."""
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
        """Subtracts the GPUs that accounts give away by `gpus` (D,) of the trades from the GPUs that they may still
        give away."""
        left = self._limits.left
        np.subtract.at(left, (crossed.account, crossed.gives), crossed.given * gpus[crossed.trade])
        np.maximum(left, 0.0, out=left)
