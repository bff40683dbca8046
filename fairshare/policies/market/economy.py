"""A market for GPU time, and a measure of how close its prices and purchases are to a competitive equilibrium.

The market is a Fisher market. The buyers are L accounts, each with an income. The goods are the GPUs of K generations,
of which there is a fixed number. An account has classes of jobs with equal speeds; all accounts together have C
classes.

The progress of a class is the sum of the speeds of its GPUs. It is counted in *GPUs of full speed*: a GPU of the
generation on which the class is fastest counts as 1, a GPU on which it is half as fast as 0.5. A class cannot use more
GPUs than its jobs need. Markets with such caps on demand are studied by Hylland and Zeckhauser, "The Efficient
Allocation of Individuals to Positions", Journal of Political Economy 87 (1979).

In a competitive equilibrium, each account buys the GPUs on which its jobs make most progress, among all purchases that
its income can pay for, and no more GPUs are bought than exist. An account that could use more GPUs spends all of its
income. No account prefers the purchase of another account of equal income, because it could have bought the same GPUs.
Each account can afford at least its part of every generation, in proportion to its income.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairshare.model import Floats, Ints


@dataclass(frozen=True)
class Economy:
    """The demand and the supply of a market: L accounts with C classes of jobs, and the GPUs of K generations."""

    speed: Floats  # (C, K) relative to the class's best generation; 0 where the jobs may not run
    gpus: Floats  # (C,) GPUs that the jobs of the class can use together
    account: Ints  # (C,) account of the class: ascending, and each of the L accounts occurs
    income: Floats  # (L,) > 0
    capacity: Floats  # (K,) GPUs
    # (C, K) GPUs of a generation that the class can use, since gangs of its shape may not fill nodes; None: all GPUs.
    most: Floats | None = None

    @cached_property
    def _first(self) -> Ints:
        """Returns the index of each account's first class, as an array (L,). The classes of an account are adjacent."""
        return np.searchsorted(self.account, np.arange(len(self.income)))

    @cached_property
    def room(self) -> Floats:
        """Returns how many GPUs of each generation each class can use at most, as an array (C, K).

        This is `most`, or all GPUs of the generation if `most` is None.
        """
        return np.broadcast_to(self.capacity, self.speed.shape) if self.most is None else self.most

    def of_accounts(self, amount: Floats) -> Floats:
        """Returns the sum over the classes of each account, as an array (L, …).

        `amount` (C, …): the amount of each class.
        """
        total: Floats = np.add.reduceat(amount, self._first, axis=0)
        return total


@dataclass(frozen=True, slots=True)
class Equilibrium:
    """The computed solution of a market: the prices of GPUs, the GPUs that each class buys, and the value of income.

    The value of income to an account is the progress that one more unit of income would gain for it. It is the
    account's shadow price of income.
    """

    price: Floats  # (K,) income for a GPU
    use: Floats  # (C, K) GPUs
    worth: Floats  # (L,) GPUs of full speed that another unit of income gains for each account


def missed(economy: Economy, found: Equilibrium) -> float:
    """Returns how far prices and purchases are from an equilibrium, as a relative error. 0 means an exact equilibrium.

    The result is the largest of these errors:
    - the GPUs sold beyond those that exist, relative to those that exist (for each generation);
    - the price of a generation's unsold GPUs, relative to the income of all accounts;
    - what an account spends beyond its income, relative to its income;
    - the GPUs that a class buys beyond those that it can use, relative to those that it can use (in total, and for each
      generation);
    - the progress that an account misses because it does not make best use of its income, relative to its best
      progress. An upper bound on the best progress is used (see `_could`).
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
    """Returns an upper bound on the progress that each account could buy with its income, as an array (L,).

    The bound is the value of the dual of the account's linear program. Progress is in GPUs of full speed.

    - `price` (K,): the price of a GPU of each generation.
    - `worth` (L,): an estimate of the progress that one more unit of income gains for each account (the dual variable).
      The bound is valid for every `worth` ≥ 0, and tightest for the true value.
    """
    gain = np.maximum(economy.speed - worth[economy.account, None] * price, 0.0) * (economy.speed > 0)
    by = np.argsort(-gain, axis=1)
    best, room = np.take_along_axis(gain, by, axis=1), np.take_along_axis(economy.room, by, axis=1)
    use = np.clip(economy.gpus[:, None] - (np.cumsum(room, axis=1) - room), 0.0, room)
    found: Floats = worth * economy.income + economy.of_accounts((best * use).sum(axis=1))
    return found
