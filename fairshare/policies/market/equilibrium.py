"""Competitive equilibrium of a market for GPU time: a price for each generation, at which all that is wanted is there.

Each account has an income, and buys what is best for its jobs; a job cannot use more GPUs than it has workers for.
This is a Fisher market with linear utilities, and with demand caps as in Hylland and Zeckhauser, "The Efficient
Allocation of Individuals to Positions", Journal of Political Economy 87 (1979). Whoever could use more spends all of
its income; nobody wants what another of the same income has, as it could have bought that; and a part of each
generation as large as the account's part of all income costs no more than its income.

With caps an equilibrium is no longer the maximum of a concave function. It is found by Newton's method on the few
prices, where demand is made smooth. Linear buyers jump from one generation to another as prices cross, so they choose
with a little noise: the entropy of their choice counts as well. And a little of each income stays unspent, and of each
generation unsold, the more the less it is worth, as in interior-point methods (Nocedal and Wright, "Numerical
Optimization", chapter 14). Both go down until they no longer matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairshare.model import Bools, Floats, Ints

# The noise: full-speed GPUs that entropy counts for. A choice is at most this, times log(K + 1), from the best one.
MOST_NOISE, LEAST_NOISE = 1.0, 0.0002
# The part of income or of a generation that stays unspent or unsold, where it is worth one; at first, of the noise.
SLACK, LEAST_SLACK = 0.3, 1e-6
SETTLED = 1e-3  # by so little may demand miss what is there before the noise goes on down
# Full-speed GPUs that a unit of income is worth even to whoever has too much of it, so that it buys what is cheap.
LEAST_WORTH = 0.005
MOST_WORTH = 1e5
LEAST_PRICE = 1e-9
STEPS = 60  # of Newton's method, for each noise
EXACT = 1e-7  # the part of a generation by which demand may miss what is there


@dataclass(frozen=True)
class Economy:
    """Who wants what: L accounts with C classes of jobs that are alike."""

    speed: Floats  # (C, K) over the best one; 0 where the jobs may not run
    gpus: Floats  # (C,) that the jobs of the class can use together
    account: Ints  # (C,) to which the class belongs: ascending, each of the L at least once
    income: Floats  # (L,) > 0
    capacity: Floats  # (K,) GPUs

    @cached_property
    def _first(self) -> Ints:
        """(L,) the first class of each account."""
        return np.searchsorted(self.account, np.arange(len(self.income)))

    def of_accounts(self, amount: Floats) -> Floats:
        """(…, L) the sums of amounts (…, C) over the classes of each account."""
        total: Floats = np.add.reduceat(amount, self._first, axis=-1)
        return total


@dataclass(frozen=True, slots=True)
class Equilibrium:
    """What everything costs, and who gets what."""

    price: Floats  # (K,) income for a GPU; 0 where there is more than anybody wants
    use: Floats  # (C, K) GPUs
    missed: float  # the part of a generation by which demand misses what is there


def equilibrium(economy: Economy) -> Equilibrium:
    """Returns prices and purchases, as exact as Newton's method gets: see `missed` and LEAST_NOISE."""
    has = economy.capacity > 0
    if not has.any() or not len(economy.gpus):
        return Equilibrium(np.zeros(len(has)), np.zeros(economy.speed.shape), 0.0)
    market = _Market(economy, has)
    market.settle()
    price, use = np.zeros(len(has)), np.zeros(economy.speed.shape)
    price[has], use[:, has] = market.price, market.bought.T
    price[price < LEAST_NOISE * economy.income.sum() / economy.capacity.sum()] = 0.0
    return Equilibrium(price, use, market.missed)


class _Market:
    """The search: prices, and what income is worth to each account at these; arrays (K, C), as few are K."""

    def __init__(self, economy: Economy, has: Bools) -> None:
        self._economy, self._capacity = economy, economy.capacity[has]
        self._speed = np.ascontiguousarray(np.where(economy.speed > 0, economy.speed, -np.inf)[:, has].T)
        self._usual = economy.income.sum() / economy.capacity.sum()
        self.price = np.full(int(has.sum()), self._usual)
        self._worth = np.ones(len(economy.income))
        self._noise, self._slack = MOST_NOISE, MOST_NOISE * SLACK
        self.bought = np.zeros(self._speed.shape)
        self._worth_by_price: Floats = np.zeros((len(self.price), len(economy.income)))

    @property
    def missed(self) -> float:
        """The part of a generation that is wanted too much, or too little while it has a price."""
        excess = self.bought.sum(axis=1) / self._capacity - 1
        return float(np.where(excess > 0, excess, np.minimum(-excess, self.price / self._usual)).max())

    def settle(self) -> None:
        """Turns the noise down as fast as Newton's method can follow."""
        self._solve(MOST_NOISE)
        less = 4.0
        while self._noise > LEAST_NOISE and less > 1.1:
            less = min(less**2, 4.0) if self._follows(max(self._noise / less, LEAST_NOISE)) else less**0.5
        while self._slack > LEAST_SLACK and self._follows(self._noise, max(self._slack / 8, LEAST_SLACK)):
            pass

    def _follows(self, noise: float, slack: float | None = None) -> bool:
        """Goes on with less noise or slack; returns whether there is a solution, and stays where it is if not."""
        before = self._noise, self._slack, self.price, self._worth, self.bought
        if self._solve(noise, slack) < SETTLED:
            return True
        self._noise, self._slack, self.price, self._worth, self.bought = before
        return False

    def _solve(self, noise: float, slack: float | None = None) -> float:
        """Newton's method on the logarithms of the prices, by halves where it goes too far; returns what it misses."""
        self._noise, self._slack = noise, noise * SLACK if slack is None else slack
        self._buy()
        for _ in range(STEPS):
            excess = self._excess()
            before = float(np.abs(excess).max())
            if before < EXACT or not self._try(self._newton(excess), before):
                break
        return float(np.abs(self._excess()).max())

    def _try(self, step: Floats, before: float) -> bool:
        """Goes as far along the step as demand comes closer to what is there; returns whether it does."""
        price, worth, bought = self.price, self._worth, self.bought
        for part in 0.5 ** np.arange(12):
            self.price = np.maximum(price * np.exp(np.clip(step * part, -2.0, 2.0)), LEAST_PRICE)
            near = worth + (self.price - price) @ self._worth_by_price
            self._worth = np.clip(near, LEAST_WORTH + (worth - LEAST_WORTH) / 8, worth * 8)
            self._buy()
            if np.abs(self._excess()).max() < before * (1 - 1e-3 * part):
                return True
        self.price, self._worth, self.bought = price, worth, bought
        return False

    def _excess(self) -> Floats:
        """(K,) the part of a generation that is wanted too much; what has next to no price counts as sold."""
        found: Floats = self.bought.sum(axis=1) / self._capacity - 1 + self._slack * self._usual / self.price
        return found

    def _chances(self) -> Floats:
        """(K, C) the part of each class that runs on each generation, by what it gains there after what it pays."""
        gain = (self._speed - self.price[:, None] * self._worth[self._economy.account]) / self._noise
        most = np.maximum(gain.max(axis=0), 0.0)
        found: Floats = np.exp(gain - most)
        found /= np.exp(-most) + found.sum(axis=0)
        return found

    def _buy(self) -> None:
        """Finds what income is worth to each account, so that it spends all of it or buys all that it can use."""
        economy, gpus, income = self._economy, self._economy.gpus, self._economy.income
        low, high = np.full(len(income), LEAST_WORTH), np.full(len(income), MOST_WORTH)
        for _ in range(60):
            chance, left = self._chances(), self._left()
            mean = self.price @ chance
            spent, slope = economy.of_accounts(np.stack((mean, (self.price**2 @ chance - mean**2))) * gpus)
            over = spent + left - income
            done = np.abs(over) < 1e-9 * income
            if done.all():
                break
            low, high = np.where(over > 0, self._worth, low), np.where(over <= 0, self._worth, high)
            near = self._worth + over / (slope / self._noise + left / (self._worth - LEAST_WORTH))
            half = LEAST_WORTH + np.sqrt(np.maximum(low - LEAST_WORTH, 1e-9) * (high - LEAST_WORTH))
            self._worth = np.where(done, self._worth, np.where((near > low) & (near < high), near, half))
        self.bought = gpus * chance

    def _left(self) -> Floats:
        """(L,) the income that stays unspent; all of it where income is worth next to nothing."""
        found: Floats = self._slack * self._economy.income / (self._worth - LEAST_WORTH)
        return found

    def _newton(self, excess: Floats) -> Floats:
        """(K,) by how much the logarithms of prices must change, if demand were linear in them."""
        economy, price = self._economy, self.price
        chance = self.bought / economy.gpus
        # How the demand of each account changes with the net gain of a generation: (K, K, L).
        by_gain = np.stack([economy.of_accounts(-self.bought * one) for one in chance])
        bought = economy.of_accounts(self.bought)
        each = np.arange(len(price))
        by_gain[each, each] += bought
        by_gain /= self._noise
        by_worth: Floats = np.tensordot(price, by_gain, axes=1)  # (K, L)
        slope = price @ by_worth + self._left() / (self._worth - LEAST_WORTH)
        self._worth_by_price = (bought - self._worth * by_worth) / slope
        by_price = -(by_gain @ self._worth) - by_worth @ self._worth_by_price.T
        change = by_price * price / self._capacity[:, None]
        change[each, each] -= self._slack * self._usual / price
        step: Floats = np.linalg.lstsq(change, -excess, rcond=1e-12)[0]
        return step
