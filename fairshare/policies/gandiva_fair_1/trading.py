"""Trades of GPU time between teams across generations, each strictly better off by its own speeds.

Gandiva_fair (EuroSys '20), automatic trading: the team with the lowest speed-up from a slow to a
fast generation sells time on the fast one to the team with the highest, for more time on the slow
one. The paper's price is the second-highest speed-up; with two teams that is the seller's own, so
that the whole gain is the buyer's. The price "between" lets both gain: the second-highest where it
is a third party's and lies strictly between, else the geometric mean of the two.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np

from fairshare.demand import EPSILON, room
from fairshare.model import Bools, Floats, Ints, Jobs, Settings, Trade
from fairshare.policies.gandiva_fair_1.filling import Filling
from fairshare.policies.gandiva_fair_1.speed import speed_ups
from fairshare.trading.limits import TradeLimits, parties_of

# Less than this part of a GPU is not worth a line in the trade book.
LEAST_GPUS = 1e-6


def trade(
    filling: Filling, trades: Bools, jobs: Jobs, able: Bools, settings: Settings, *, limits: TradeLimits
) -> tuple[Trade, ...]:
    """Trade what `filling` holds between teams, then divide each team's holdings anew among its users."""
    parties, member = parties_of(filling.tree, trades)
    party = member[jobs.account]
    market = _Market(filling, settings, limits)
    for slow, fast in _pairs(able.shape[1]):
        pair = slow, fast
        speed_up = speed_ups(jobs, able, party, len(parties), pair)
        if np.nansum(np.log(speed_up)) < 0:  # name the generations as most teams find them
            pair = fast, slow
            speed_up = speed_ups(jobs, able, party, len(parties), pair)
        known = np.isfinite(speed_up) & limits.deal_in(parties, pair)
        market.open(parties[known], speed_up[known], pair)
    for account in sorted({side for one in market.done for side in (one.seller, one.buyer)}):
        filling.replace(account, filling.held[account].copy())
    return tuple(market.done)


def _pairs(generations: int) -> list[tuple[int, int]]:
    """Slow ascending, within it fast descending, as in the paper."""
    return sorted(combinations(range(generations), 2), key=lambda pair: (pair[0], -pair[1]))


class _Market:
    """Makes trades; changes what `filling` holds of the parties and of those above them."""

    def __init__(self, filling: Filling, settings: Settings, limits: TradeLimits) -> None:
        self.filling, self.settings, self.limits = filling, settings, limits
        self.done: list[Trade] = []

    def open(self, parties: Ints, speed_up: Floats, pair: tuple[int, int]) -> None:
        """All trades of one pair of generations: highest speed-ups buy from the lowest."""
        held, (slow, fast) = self.filling.held, pair
        ranked = np.argsort(speed_up, kind="stable")
        accounts, speeds = parties[ranked].tolist(), speed_up[ranked].tolist()
        sellers = list(range(len(accounts)))
        for buyer in range(len(accounts) - 1, 0, -1):
            sellers = [s for s in sellers if s < buyer and held[accounts[s], fast] > LEAST_GPUS]
            for seller in sellers:
                low, high = speeds[seller], speeds[buyer]
                gain = high / low
                if gain <= 1 or gain < self.settings.least_gain or held[accounts[buyer], slow] <= LEAST_GPUS:
                    break
                price = _price(low, high, speeds[buyer - 1], buyer - 1 != seller, self.settings.pricing)
                gpus = self._exchange(accounts[seller], accounts[buyer], pair, price)
                if gpus > 0:
                    self.done.append(
                        Trade(
                            seller=accounts[seller],
                            buyer=accounts[buyer],
                            slow=slow,
                            fast=fast,
                            fast_gpus=gpus,
                            slow_gpus=gpus * price,
                            price=price,
                            seller_speedup=low,
                            buyer_speedup=high,
                        )
                    )

    def _exchange(self, seller: int, buyer: int, pair: tuple[int, int], price: float) -> float:
        """Move as much as both have, can use and may give; returns the GPUs of the fast generation, 0 for none."""
        held, rank, tree = self.filling.held, self.filling.rank, self.filling.tree
        slow, fast = pair
        gpus = min(float(held[seller, fast]), float(held[buyer, slow]) / price)
        step = np.zeros(held.shape[1])  # what the seller's side gets for each GPU that it gives
        step[slow] = price
        step[fast] = -1.0
        above_seller, above_buyer = tree.path(seller), tree.path(buyer)
        common = set(above_seller) & set(above_buyer)
        # Accounts above both see no change; all others must be able to use theirs, quotas included.
        givers = [account for account in above_seller if account not in common]
        takers = [account for account in above_buyer if account not in common]
        gpus = min(gpus, self.limits.room(givers, fast, slow), self.limits.room(takers, slow, fast) / price)
        changes = [(account, step) for account in givers] + [(account, -step) for account in takers]
        for account, change in changes:
            gpus = min(gpus, room(rank[account], held[account], change))
        if gpus <= LEAST_GPUS:
            return 0.0
        for account, change in changes:
            after = held[account] + gpus * change
            held[account] = np.where(after > EPSILON, after, 0.0)
        self.limits.note(givers, fast, gpus)
        self.limits.note(takers, slow, gpus * price)
        return gpus


def _price(low: float, high: float, second: float, is_third: bool, pricing: str) -> float:
    """GPUs of the slow generation for one of the fast, between a seller's `low` and a buyer's `high`."""
    if pricing == "second_price":
        return second
    return second if is_third and low < second < high else math.sqrt(low * high)
