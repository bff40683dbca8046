"""What of trades the limits of accounts allow: those that they set on trades, and those on what they may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fairshare.model import NOWHERE, Accounts, Bools, Floats, Ints
from fairshare.quotas import with_claims, within_borrowing
from fairshare.trade_limits import TradeLimits
from fairshare.tree import Tree


class Divided(Protocol):
    """What accounts have before they trade, as `share_out` divides it."""

    @property
    def entitled(self) -> Floats:
        """(T, K) GPUs that tickets earn."""

    @property
    def share(self) -> Floats:
        """(T, K) GPUs with what others leave; of an account, those of all below it together."""


@dataclass(frozen=True, slots=True)
class Part:
    """Which accounts are part of one side of trades, and how much of it each is; N of them."""

    trade: Ints  # (N,) the first trades first
    account: Ints  # (N,)
    part: Floats  # (N,)


def ration(gpus: Floats, of: Part, needs: Floats, room: Floats) -> Floats:
    """(D,) how much of each trade fits into the room of all accounts that are part of it, the first ones first.

    `needs` (N,) is what a part takes of its account's `room` (T,) for each GPU of its trade.
    """
    limited = np.flatnonzero(np.isfinite(room[of.account]) & (needs > 0))
    if not len(limited):
        return gpus
    # Of an account all parts that it has in a trade together.
    count = len(gpus)
    key, which = np.unique(of.account[limited] * count + of.trade[limited], return_inverse=True)
    account, trade = key // count, key % count
    need = np.bincount(which, (needs * of.part)[limited]) * gpus[trade]
    before = np.cumsum(need) - need
    new = np.append(True, account[1:] != account[:-1])
    before -= before[new][np.cumsum(new) - 1]
    fits = np.clip(room[account] - before, 0.0, need)
    found = gpus.copy()
    np.minimum.at(found, trade, gpus[trade] * np.divide(fits, need, out=np.ones_like(need), where=need > 0))
    return found


class Borders:
    """Counts what crosses the borders of accounts; those above both sides of a trade see nothing of it."""

    def __init__(self, accounts: Accounts, tree: Tree, entitled: Floats, limits: TradeLimits) -> None:
        """`entitled` (T, K) is what borrowing is limited by."""
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

    def deal(self, pair: tuple[int, int]) -> Bools:
        """(T,) which accounts trade a pair of generations themselves."""
        return self._limits.deal_in(np.arange(len(self._parent)), pair)

    def crossed(self, side: Part, other: Ints) -> Part:
        """The limited accounts on one side of trades that are not above `other` (D,), the party of the other side.

        Between users of one party all accounts below it are crossed.
        """
        found: list[Part] = []
        while len(side.trade):
            counts = self._is_limited[side.account] & ~self._above(side.account, other[side.trade])
            found.append(Part(side.trade[counts], side.account[counts], side.part[counts]))
            up = self._parent[side.account]
            some = up != NOWHERE
            side = Part(side.trade[some], up[some], side.part[some])
        return Part(*(np.concatenate([getattr(one, name) for one in found]) for name in Part.__slots__))

    def _above(self, account: Ints, below: Ints) -> Bools:
        """Which of the accounts are the other one, or above it."""
        found: Bools = account == below
        at = below
        while (at != NOWHERE).any():
            at = np.where(at == NOWHERE, NOWHERE, self._parent[at])
            found |= at == account
        return found

    def within(
        self, gpus: Floats, side: Part, give: tuple[int, Floats], take: tuple[int, Floats], share: Floats
    ) -> Floats:
        """(D,) how much of each trade one side's limits allow: `side` as from `crossed`, `share` (T, K) as held.

        `give` and `take` are generations and the GPUs (D,) of them for each GPU of a trade.
        """
        (gives, given), (takes, taken) = give, take
        if not len(side.trade):
            return gpus
        deals = self._limits.deals[:, gives] & self._limits.deals[:, takes]
        given, taken = given[side.trade], taken[side.trade]
        dearer = taken * self._price[takes] - given * self._price[gives]
        for needs, room in (
            (given, np.where(deals, self._limits.left[:, gives], 0.0)),
            (taken, self._cap[:, takes] - share[:, takes]),
            (taken - given, self._cap_total - share.sum(axis=1)),
            (dearer, self._cap_cost - share @ self._price),
        ):
            gpus = ration(gpus, side, needs, np.maximum(room, 0.0))
        return gpus

    def note(self, gpus: Floats, side: Part, gives: int, given: Floats) -> None:
        """One side of trades gave `given` (D,) GPUs of a generation for each of `gpus` (D,)."""
        left = self._limits.left
        np.subtract.at(left[:, gives], side.account, side.part * (given * gpus)[side.trade])
        np.maximum(left, 0.0, out=left)
