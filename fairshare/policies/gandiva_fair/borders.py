"""What of a trade the limits of accounts allow: those that they set on trades, and those on what they may hold."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fairshare.model import Accounts, Bools, Floats
from fairshare.quotas import with_claims, within_borrowing
from fairshare.trade_limits import TradeLimits
from fairshare.tree import Tree

# Accounts with jobs (indices among L), and the part that each has in a trade.
Parts = tuple[tuple[int, float], ...]
# A party, and those for which it trades.
Side = tuple[int, Parts]


class Divided(Protocol):
    """What accounts have before they trade, as `share_out` divides it."""

    @property
    def entitled(self) -> Floats:
        """(T, K) GPUs that tickets earn."""

    @property
    def share(self) -> Floats:
        """(T, K) GPUs with what others leave; of an account, those of all below it together."""


class Borders:
    """Counts what crosses the borders of accounts; those above both sides of a trade see nothing of it."""

    def __init__(
        self,
        accounts: Accounts,
        tree: Tree,
        shares: Divided,
        limits: TradeLimits,
        *,
        leaves: list[int],
    ) -> None:
        """`shares` are what accounts have at first, `leaves` the L accounts with jobs."""
        capped = within_borrowing(with_claims(accounts), shares.entitled)
        cost = np.full(len(accounts.parent), np.inf) if capped.cap_cost is None else capped.cap_cost
        self._price = np.zeros(shares.share.shape[1]) if capped.price is None else capped.price
        self._cap, self._cap_total, self._cap_cost = capped.cap, capped.cap_total, cost
        self._is_capped = (
            np.isfinite(capped.cap).any(axis=1) | np.isfinite(capped.cap_total) | np.isfinite(cost)
        )
        self._limits, self._tree, self._leaves = limits, tree, leaves
        self.any = bool(self._is_capped.any() or not limits.deals.all() or np.isfinite(limits.left).any())
        self._held = shares.share.copy()
        self._paths: dict[int, list[int]] = {}

    def deal(self, pair: tuple[int, int]) -> Bools:
        """(T,) which accounts trade a pair of generations themselves."""
        return self._limits.deal_in(np.arange(len(self._tree.parent)), pair)

    def room(
        self, seller: Side, buyer: Side, pair: tuple[int, int], price: float, most: tuple[float, float]
    ) -> tuple[float, float]:
        """How many GPUs of the fast generation the one may sell and the other buy, `most` at most."""
        slow, fast = pair
        givers, takers = self._crossed(seller, buyer)
        offered = min(most[0], *(self._room(*one, (fast, 1.0), (slow, price)) for one in givers.items()))
        wanted = min(most[1], *(self._room(*one, (slow, price), (fast, 1.0)) for one in takers.items()))
        return offered, wanted

    def note(self, seller: Side, buyer: Side, pair: tuple[int, int], price: float, gpus: float) -> None:
        """The one sold `gpus` of the fast generation to the other."""
        slow, fast = pair
        for crossed, gives, given, takes, taken in zip(
            self._crossed(seller, buyer),
            (fast, slow),
            (gpus, gpus * price),
            (slow, fast),
            (gpus * price, gpus),
            strict=True,
        ):
            for account, part in crossed.items():
                self._limits.note([account], gives, given * part)
                self._held[account, gives] -= given * part
                self._held[account, takes] += taken * part

    def _crossed(self, seller: Side, buyer: Side) -> tuple[dict[int, float], dict[int, float]]:
        """The accounts on each side that are not above both, and the part that each has in the trade."""
        common = set(self._path(seller[0])) & set(self._path(buyer[0]))
        found: list[dict[int, float]] = []
        for _, parts in (seller, buyer):
            crossed: dict[int, float] = {}
            for leaf, part in parts:
                for account in self._path(self._leaves[leaf]):
                    if account not in common:
                        crossed[account] = crossed.get(account, 0.0) + part
            found.append(crossed)
        return found[0], found[1]

    def _path(self, account: int) -> list[int]:
        path = self._paths.get(account)
        if path is None:
            path = self._paths[account] = self._tree.path(account)
        return path

    def _room(self, account: int, part: float, give: tuple[int, float], take: tuple[int, float]) -> float:
        """How often the account may give and take so many GPUs of a generation, times its part."""
        (gives, given), (takes, taken) = give, take
        most = self._limits.room([account], gives, takes) / given
        if self._is_capped[account]:
            held, price = self._held[account], self._price
            most = min(most, (self._cap[account, takes] - held[takes]) / taken)
            if taken > given:
                most = min(most, (self._cap_total[account] - held.sum()) / (taken - given))
            dearer = taken * price[takes] - given * price[gives]
            if dearer > 0:
                most = min(most, (self._cap_cost[account] - held @ price) / dearer)
        return max(float(most), 0.0) / part
