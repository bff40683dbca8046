"""Contains the consumers of the network flow that divides GPUs among accounts.

`shares.py` computes the guarantees and shares of accounts as a flow: GPUs flow from pools, through capacities
(`gates.py`), to consumers. A pool is the GPUs of each generation that some consumers share, such as the entitlement of
an account. A consumer is called a *row*. It is usually a class of similar jobs (`classes.py`). A class can have
additional rows, which receive only its guaranteed GPUs.

C is the number of rows, K the number of generations. Arrays are (K, C) instead of (C, K), because numpy is several
times as fast if the last axis is long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.model import Bools, Floats, Ints
from fairshare.policies.gandiva_fair.classes import Steps

EPSILON = 1e-9  # GPUs; less counts as zero


@dataclass(slots=True)
class Flow:
    """C rows, and the GPUs of each generation that they may use and hold.

    A row is usually a class of similar jobs of one leaf account. Its guaranteed GPUs are protected in one of two ways:

    - If the jobs are faster on some generations than on others, additional rows hold the guaranteed GPUs, one row for
      each generation. An additional row always keeps its number of GPUs. They may be exchanged for GPUs of another
      generation on which the jobs are at least as fast.
    - If the jobs are equally fast on all generations that they accept, the guaranteed GPUs stay in the row of the
      class, and `base` counts them. They may be exchanged for GPUs of any generation, and may go to other classes of
      the same leaf account: only the sum of `base` over the account is protected.
    """

    leaf: Ints  # (C,) the leaf account
    kind: Ints  # (C,) number of the class
    gpus: Floats  # (C,) GPUs that the row can use in total
    able: Bools  # (K, C)
    step: Steps  # (K, C) speed; a higher step is faster
    held: Floats  # (K, C)
    base: Floats  # (K, C) what of `held` counts towards the leaf's guarantee; 0 for rows that are kept whole
    is_kept: Bools  # (C,) whether the row is a guarantee, which stays full on one generation or another

    @property
    def unmet(self) -> Floats:
        """Returns how many GPUs each row can use in addition to those that it holds, as an array (C,).

        The result is 0 for a row that consists of guaranteed GPUs.
        """
        return self.unmet_beyond(self.held.sum(axis=0))

    def unmet_beyond(self, has: Floats) -> Floats:
        """Returns how many GPUs each row could use in addition if it had `has` (C,) GPUs, as an array (C,).

        The result is 0 for a row that consists of guaranteed GPUs.
        """
        left: Floats = np.maximum(self.gpus - has, 0.0) * ~self.is_kept
        return left

    @property
    def sure(self) -> Floats:
        """Returns the guaranteed GPUs of each row on each generation, as an array (K, C).

        For a class of jobs, these are the GPUs in `base`. For a row that consists of guaranteed GPUs, these are all
        GPUs that it holds.
        """
        found: Floats = self.base + self.held * self.is_kept
        return found

    def of(self, rows: Ints) -> Flow:
        """Returns a copy that contains only the rows with the indices in `rows`."""
        return Flow(*(getattr(self, name).take(rows, axis=-1) for name in self.__slots__))

    def __add__(self, other: Flow) -> Flow:
        """Returns a flow that contains the rows of `self`, followed by the rows of `other`."""
        parts = ((getattr(self, name), getattr(other, name)) for name in self.__slots__)
        return Flow(*(np.concatenate(both, axis=-1) for both in parts))


def part_of(amount: Floats, of: Floats) -> Floats:
    """Returns the ratio `amount` / `of` for each element, but at most 1. The ratio is 0 where `of` is 0."""
    found: Floats = np.minimum(np.divide(amount, of, out=np.zeros_like(of), where=of > 0), 1.0)
    return found
