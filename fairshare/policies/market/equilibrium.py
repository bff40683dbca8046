"""Competitive equilibrium of a market for GPU time: a price for each generation, at which all that is wanted is there.

Each account has an income, and buys what is best for its jobs; a job cannot use more GPUs than it has workers for.
This is a Fisher market with linear utilities, and with demand caps as in Hylland and Zeckhauser, "The Efficient
Allocation of Individuals to Positions", Journal of Political Economy 87 (1979). Whoever could use more spends all of
its income; nobody wants what another of the same income has, as it could have bought that; and a part of each
generation as large as the account's part of all income costs no more than its income.

With caps an equilibrium is no longer the maximum of a concave function. It is found by Newton's method on the few
prices. Linear buyers jump from one generation to another as prices cross; so they first choose with a little noise
(the entropy of their choice counts as well), and this goes down until it no longer matters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.model import Bools, Floats, Ints

# The noise: full-speed GPUs that entropy counts for. A choice is at most this, times log(K + 1), from the best one.
MOST_NOISE, LEAST_NOISE = 0.2, 0.0002
SETTLED = 1e-4  # by so little may demand miss what is there before the noise goes on down
# Full-speed GPUs that a unit of income is worth even to whoever has too much of it, so that it buys what is cheap.
LEAST_WORTH = 0.005
MOST_WORTH = 1e5
LEAST_PRICE = 1e-6
STEPS = 60  # of Newton's method, for each noise
TATONNEMENT = 200  # steps where that finds no way
EXACT = 1e-7  # the part of a generation by which demand may miss what is there


@dataclass(frozen=True, slots=True)
class Economy:
    """Who wants what: L accounts with C classes of jobs that are alike."""

    speed: Floats  # (C, K) over the best one; 0 where the jobs may not run
    gpus: Floats  # (C,) that the jobs of the class can use together
    account: Ints  # (C,) to which the class belongs: ascending, each of the L at least once
    income: Floats  # (L,) > 0
    capacity: Floats  # (K,) GPUs

    def of_accounts(self, amount: Floats) -> Floats:
        """(…, L) the sums of amounts (…, C) over the classes of each account."""
        first = np.searchsorted(self.account, np.arange(len(self.income)))
        total: Floats = np.add.reduceat(amount, first, axis=-1)
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
    price[price <= 2 * LEAST_PRICE] = 0.0
    return Equilibrium(price, use, market.missed)


class _Market:
    """The search: prices, and what income is worth to each account at these; arrays (K, C), as few are K."""

    def __init__(self, economy: Economy, has: Bools) -> None:
        self._economy, self._capacity = economy, economy.capacity[has]
        self._speed = np.ascontiguousarray(np.where(economy.speed > 0, economy.speed, -np.inf)[:, has].T)
        self._usual = economy.income.sum() / economy.capacity.sum()
        self.price = np.full(int(has.sum()), self._usual)
        self._worth = np.ones(len(economy.income))
        self._noise = MOST_NOISE
        self.bought = np.zeros(self._speed.shape)

    @property
    def missed(self) -> float:
        """The part of a generation that is wanted too much, or too little while it has a price."""
        excess = self._excess()
        return float(np.where(excess > 0, excess, np.minimum(-excess, self.price / self._usual)).max())

    def settle(self) -> None:
        """Turns the noise down as fast as Newton's method can follow."""
        self._solve(MOST_NOISE)
        less = 4.0
        while self._noise > LEAST_NOISE and less > 1.1:
            before = self._noise, self.price, self._worth, self.bought
            self._solve(max(self._noise / less, LEAST_NOISE))
            if self.missed < SETTLED:
                less = min(less**2, 4.0)
            else:
                self._noise, self.price, self._worth, self.bought = before
                less = less**0.5

    def _solve(self, noise: float) -> None:
        """Newton's method on the logarithms of the prices, by halves where it goes too far."""
        self._noise = noise
        self._buy()
        for _ in range(STEPS):
            before, excess = self.missed, self._excess()
            if before < EXACT:
                break
            if not self._try(self._newton(excess), before) and not self._grope():
                break

    def _grope(self) -> bool:
        """Raises what is wanted too much and lowers the rest, by less and less; returns whether that came nearer.

        Where an account has just enough income the demand has an edge, and a step along its slope leads nowhere.
        """
        best = self.missed, self.price, self._worth, self.bought
        before = best[0]
        for turn in range(TATONNEMENT):
            self.price = self.price * np.exp(np.clip(self._excess(), -1.0, 1.0) * 4 / (4 + turn))
            self.price, self._worth = np.maximum(self.price, LEAST_PRICE), self._worth.copy()
            self._buy()
            if self.missed < best[0]:
                best = self.missed, self.price, self._worth, self.bought
        _, self.price, self._worth, self.bought = best
        return best[0] < before * 0.9

    def _try(self, step: Floats, before: float) -> bool:
        """Goes as far along the step as demand comes closer to what is there; returns whether it does."""
        price, worth, bought = self.price, self._worth, self.bought
        for part in 0.5 ** np.arange(12):
            self.price = np.maximum(price * np.exp(np.clip(step * part, -2.0, 2.0)), LEAST_PRICE)
            self._worth = worth.copy()
            self._buy()
            if self.missed < before * (1 - 1e-3 * part):
                return True
        self.price, self._worth, self.bought = price, worth, bought
        return False

    def _excess(self) -> Floats:
        found: Floats = self.bought.sum(axis=1) / self._capacity - 1
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
        economy, gpus = self._economy, self._economy.gpus
        low, high = np.full(len(economy.income), LEAST_WORTH), np.full(len(economy.income), MOST_WORTH)
        for _ in range(60):
            chance = self._chances()
            mean = self.price @ chance
            over = economy.of_accounts(gpus * mean) - economy.income
            done = (np.abs(over) < 1e-9 * economy.income) | ((self._worth <= LEAST_WORTH) & (over <= 0))
            if done.all():
                break
            low, high = np.where(over > 0, self._worth, low), np.where(over <= 0, self._worth, high)
            slope = economy.of_accounts(gpus * (self.price**2 @ chance - mean**2)) / self._noise
            near = self._worth + np.divide(over, slope, out=np.full_like(over, np.inf), where=slope > 1e-12)
            inside = (near > low) & (near < high)
            self._worth = np.where(done, self._worth, np.where(inside, near, np.sqrt(low * high)))
            self._worth[high <= LEAST_WORTH * (1 + 1e-12)] = LEAST_WORTH
        self.bought = gpus * self._chances()

    def _newton(self, excess: Floats) -> Floats:
        """(K,) by how much the logarithms of prices must change, if demand were linear in them."""
        economy, price = self._economy, self.price
        chance = self.bought / economy.gpus
        # How the demand of each account changes with the net gain of a generation: (K, K, L).
        by_gain = np.stack([economy.of_accounts(-self.bought * one) for one in chance])
        bought = economy.of_accounts(self.bought)
        by_gain[np.arange(len(price)), np.arange(len(price))] += bought
        by_gain /= self._noise
        by_worth = np.tensordot(price, by_gain, axes=1)  # (K, L)
        slope = price @ by_worth
        binds = (self._worth > LEAST_WORTH * (1 + 1e-9)) & (slope > 1e-12)
        worth_by_price = np.where(binds, (bought - self._worth * by_worth) / np.where(binds, slope, 1.0), 0.0)
        change = (-(by_gain @ self._worth) - by_worth @ worth_by_price.T) * price / self._capacity[:, None]
        # Generations that are there for everybody keep their price.
        some = np.flatnonzero((price > LEAST_PRICE) | (excess > 0))
        step: Floats = np.clip(excess, -1, 1) * 0.3
        step[some] = np.linalg.lstsq(change[np.ix_(some, some)], -excess[some], rcond=1e-10)[0]
        return step
