"""Contains the rows of a network flow: classes of jobs, or their guarantees, and the GPUs that each row gets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.model import Bools, Floats, Ints
from fairshare.policies.gandiva_fair.classes import Steps

EPSILON = 1e-9  # GPUs; less counts as zero


@dataclass(slots=True)
class Flow:
    """The GPUs of K generations that each of C rows gets. A row is a class of jobs, or the guarantee of a class.

    How a class keeps its guaranteed GPUs depends on its jobs:
    - If the jobs are faster on some generations than on others, the guarantee has its own row. This row always holds
      all GPUs of the guarantee.
    - If the jobs are equally fast wherever they may run, the guarantee has no row. The leaf account then keeps only the
      total of its guaranteed GPUs: they may move to other generations and to other classes of the account. `base` has
      the guaranteed GPUs of the class, which are its part of this total.

    Arrays are (K, C) instead of (C, K), because numpy is several times as fast if the last axis is long.
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
        """Returns the GPUs that each row (class of jobs) could use in addition to those that it holds, as an array
        (C,)."""
        return self.beside(self.held.sum(axis=0))

    def beside(self, has: Floats) -> Floats:
        """Returns the GPUs that each row (class of jobs) could use in addition to a total of `has` (C,), as an array
        (C,)."""
        left: Floats = np.maximum(self.gpus - has, 0.0) * ~self.is_kept
        return left

    @property
    def sure(self) -> Floats:
        """Returns the guaranteed GPUs of each row (class of jobs) on each generation, as an array (K, C)."""
        found: Floats = self.base + self.held * self.is_kept
        return found

    def of(self, rows: Ints) -> Flow:
        """Returns a copy that contains only the given rows (classes of jobs)."""
        return Flow(*(getattr(self, name).take(rows, axis=-1) for name in self.__slots__))

    def __add__(self, other: Flow) -> Flow:
        """Returns a flow with the rows (classes of jobs) of both flows, first those of `self`."""
        parts = ((getattr(self, name), getattr(other, name)) for name in self.__slots__)
        return Flow(*(np.concatenate(both, axis=-1) for both in parts))


def part_of(amount: Floats, of: Floats) -> Floats:
    """Returns `amount` / `of`, but at most 1, and 0 where `of` is 0."""
    found: Floats = np.minimum(np.divide(amount, of, out=np.zeros_like(of), where=of > 0), 1.0)
    return found
