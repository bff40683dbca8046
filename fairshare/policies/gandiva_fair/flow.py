"""Contains the rows that share GPUs of several generations: classes of jobs, or their guarantees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.model import Bools, Floats, Ints
from fairshare.policies.gandiva_fair.classes import Steps

EPSILON = 1e-9  # GPUs; less counts as zero


@dataclass(slots=True)
class Flow:
    """The GPUs of K generations that each of C rows gets. A row is a class of jobs, or the guarantee of a class.

    Arrays are (K, C), because numpy is several times as fast over few long rows as over many short ones.

    The guarantee of jobs that are faster on some generations is a separate row, which is full and stays full. For
    jobs that are equally fast on all generations where they may run, only the sum over each leaf is guaranteed:
    `base`.
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
        """Returns the GPUs that each row could still use, as an array (C,)."""
        return self.beside(self.held.sum(axis=0))

    def beside(self, has: Floats) -> Floats:
        """Returns the GPUs that each row could use besides the total `has` (C,), as an array (C,)."""
        left: Floats = np.maximum(self.gpus - has, 0.0) * ~self.is_kept
        return left

    @property
    def sure(self) -> Floats:
        """Returns the guaranteed GPUs, as an array (K, C)."""
        found: Floats = self.base + self.held * self.is_kept
        return found

    def of(self, rows: Ints) -> Flow:
        """Returns a copy with only the rows at these indices."""
        return Flow(*(getattr(self, name).take(rows, axis=-1) for name in self.__slots__))

    def __add__(self, other: Flow) -> Flow:
        """Returns the rows of both flows, one after the other."""
        parts = ((getattr(self, name), getattr(other, name)) for name in self.__slots__)
        return Flow(*(np.concatenate(both, axis=-1) for both in parts))


def part_of(amount: Floats, of: Floats) -> Floats:
    """Returns `amount` / `of`, at most 1; 0 where `of` is 0."""
    found: Floats = np.minimum(np.divide(amount, of, out=np.zeros_like(of), where=of > 0), 1.0)
    return found
