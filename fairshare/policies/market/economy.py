"""Defines a market for GPU time: what accounts want, and how far prices and purchases are from a competitive
equilibrium.

Each account has an income and buys what is best for its jobs; a job cannot use more GPUs than its workers have. This
is a Fisher market with linear utilities and with demand caps as in Hylland and Zeckhauser, "The Efficient Allocation
of Individuals to Positions", Journal of Political Economy 87 (1979). An account that could use more GPUs spends all
of its income. No account envies another of equal income, since it could have bought the same. Each account can
afford a part of each generation as large as its part of all income.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairshare.model import Floats, Ints


@dataclass(frozen=True)
class Economy:
    """The demand in a market: L accounts with C classes of equal jobs."""

    speed: Floats  # (C, K) relative to the class's best generation; 0 where the jobs may not run
    gpus: Floats  # (C,) GPUs that the jobs of the class can use together
    account: Ints  # (C,) account of the class: ascending, and each of the L accounts occurs
    income: Floats  # (L,) > 0
    capacity: Floats  # (K,) GPUs
    # (C, K) GPUs of a generation that the class can use, since gangs of its shape may not fill nodes; None: all GPUs.
    most: Floats | None = None

    @cached_property
    def _first(self) -> Ints:
        """Returns the first class of each account, as an array (L,)."""
        return np.searchsorted(self.account, np.arange(len(self.income)))

    @cached_property
    def room(self) -> Floats:
        """Returns the GPUs of each generation that each class can use, as an array (C, K)."""
        return np.broadcast_to(self.capacity, self.speed.shape) if self.most is None else self.most

    def of_accounts(self, amount: Floats) -> Floats:
        """Returns the sums of `amount` (C, …) over the classes of each account, as an array (L, …)."""
        total: Floats = np.add.reduceat(amount, self._first, axis=0)
        return total


@dataclass(frozen=True, slots=True)
class Equilibrium:
    """The prices, the GPUs that each class buys, and the worth of income to each account."""

    price: Floats  # (K,) income for a GPU
    use: Floats  # (C, K) GPUs
    worth: Floats  # (L,) GPUs of full speed that another unit of income gains for each account


def missed(economy: Economy, found: Equilibrium) -> float:
    """Returns the largest relative error of prices and purchases, compared with an equilibrium.

    It is the largest of these: the GPUs of a generation sold beyond those that exist; the part of all income that
    unsold GPUs would cost; what an account spends beyond its income; what a class uses beyond what it can use; and
    the additional progress that an account could make with its income at these prices. The last is bounded by the
    dual of the account's linear program, with the worth of income as found, or zero.
    """
    use, sold, bought = found.use, found.use.sum(axis=0), economy.of_accounts(found.use)
    makes = economy.of_accounts((use * economy.speed).sum(axis=1))
    could = np.minimum(
        _could(economy, found.price, found.worth), _could(economy, found.price, 0.0 * found.worth)
    )
    parts = (
        (sold - economy.capacity, economy.capacity),
        (found.price * (economy.capacity - sold), economy.income.sum()),
        (bought @ found.price - economy.income, economy.income),
        (use.sum(axis=1) - economy.gpus, economy.gpus),
        (use - economy.room, economy.room),
        (could - makes, could),
    )
    return max(float(np.divide(over, of, out=np.zeros_like(over), where=of > 0).max()) for over, of in parts)


def _could(economy: Economy, price: Floats, worth: Floats) -> Floats:
    """Returns an upper bound on the GPUs of full speed that each account could make at these prices, as an array
    (L,)."""
    gain = np.maximum(economy.speed - worth[economy.account, None] * price, 0.0) * (economy.speed > 0)
    by = np.argsort(-gain, axis=1)
    best, room = np.take_along_axis(gain, by, axis=1), np.take_along_axis(economy.room, by, axis=1)
    use = np.clip(economy.gpus[:, None] - (np.cumsum(room, axis=1) - room), 0.0, room)
    found: Floats = worth * economy.income + economy.of_accounts((best * use).sum(axis=1))
    return found
