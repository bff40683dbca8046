"""Defines a market for GPU time, and measures how far prices and purchases are from a competitive equilibrium.

Each account has an income and buys the GPUs that are best for its jobs. A job cannot use more GPUs than its workers
have. This is a Fisher market with linear utilities and with caps on demand, as in Hylland and Zeckhauser, "The
Efficient Allocation of Individuals to Positions", Journal of Political Economy 87 (1979). In an equilibrium, an account
that could use more GPUs spends all of its income. No account envies another account of equal income, because it could
have bought the same GPUs. Each account can afford at least its part of every generation, in proportion to its income.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairshare.model import Floats, Ints


@dataclass(frozen=True)
class Economy:
    """The demand and the supply of a market: L accounts with C classes of equal jobs, and the GPUs of K generations."""

    speed: Floats  # (C, K) relative to the class's best generation; 0 where the jobs may not run
    gpus: Floats  # (C,) GPUs that the jobs of the class can use together
    account: Ints  # (C,) account of the class: ascending, and each of the L accounts occurs
    income: Floats  # (L,) > 0
    capacity: Floats  # (K,) GPUs
    # (C, K) GPUs of a generation that the class can use, since gangs of its shape may not fill nodes; None: all GPUs.
    most: Floats | None = None

    @cached_property
    def _first(self) -> Ints:
        """Returns the index of each account's first class, as an array (L,)."""
        return np.searchsorted(self.account, np.arange(len(self.income)))

    @cached_property
    def room(self) -> Floats:
        """Returns how many GPUs of each generation each class can use at most, as an array (C, K)."""
        return np.broadcast_to(self.capacity, self.speed.shape) if self.most is None else self.most

    def of_accounts(self, amount: Floats) -> Floats:
        """Returns the sum of `amount` (C, …) over the classes of each account, as an array (L, …)."""
        total: Floats = np.add.reduceat(amount, self._first, axis=0)
        return total


@dataclass(frozen=True, slots=True)
class Equilibrium:
    """A computed equilibrium: prices of GPUs, the GPUs that each class buys, and the value of income to each account.

    The value of income is the progress that one more unit of income would gain for the account.
    """

    price: Floats  # (K,) income for a GPU
    use: Floats  # (C, K) GPUs
    worth: Floats  # (L,) GPUs of full speed that another unit of income gains for each account


def missed(economy: Economy, found: Equilibrium) -> float:
    """Returns the largest relative error of computed prices and purchases; 0 means an exact equilibrium.

    The following errors are compared:

    - GPUs of a generation sold in excess of those that exist;
    - the cost of unsold GPUs, as a fraction of all income;
    - what an account spends in excess of its income;
    - GPUs that a class buys in excess of those that it can use;
    - additional progress that an account could make with its income at these prices. This is an upper bound, from the
      dual of the account's linear program.
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
    """Returns an upper bound on the progress that each account could buy at these prices, as an array (L,).

    Progress is in GPUs of full speed. `worth` (L,): the progress that one more unit of income would gain for each
    account. Any value ≥ 0 gives a valid bound.
    """
    gain = np.maximum(economy.speed - worth[economy.account, None] * price, 0.0) * (economy.speed > 0)
    by = np.argsort(-gain, axis=1)
    best, room = np.take_along_axis(gain, by, axis=1), np.take_along_axis(economy.room, by, axis=1)
    use = np.clip(economy.gpus[:, None] - (np.cumsum(room, axis=1) - room), 0.0, room)
    found: Floats = worth * economy.income + economy.of_accounts((best * use).sum(axis=1))
    return found
