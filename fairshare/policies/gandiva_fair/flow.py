"""Rows that share GPUs of several generations: classes of jobs, or what such have for sure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.model import Bools, Floats, Ints
from fairshare.policies.gandiva_fair.classes import Steps

EPSILON = 1e-9  # GPUs; less than this is nothing


@dataclass(slots=True)
class Flow:
    """What each of C rows gets of K generations: jobs that are alike, or what such have for sure.

    A generation is a row of the arrays, as numpy is several times as fast over few long rows as over many short ones.

    A guarantee of jobs that are faster on some generations is a row of its own, which is full and stays so. Of those
    that are equally fast wherever they may run only the sum over all of a leaf is guaranteed: `base`.
    """

    leaf: Ints  # (C,) whose jobs they are
    kind: Ints  # (C,) number of their class
    gpus: Floats  # (C,) that it can use in all
    able: Bools  # (K, C)
    step: Steps  # (K, C) speed; a higher step is faster
    held: Floats  # (K, C)
    base: Floats  # (K, C) what of it counts for the guarantee of the leaf; 0 of rows that are kept whole
    is_kept: Bools  # (C,) whether it has all that it can use, and keeps it, on one generation or another

    @property
    def unmet(self) -> Floats:
        """(C,) GPUs that it could still use."""
        return self.beside(self.held.sum(axis=0))

    def beside(self, has: Floats) -> Floats:
        """(C,) GPUs that it could use beside what it has in all (C,)."""
        left: Floats = np.maximum(self.gpus - has, 0.0) * ~self.is_kept
        return left

    @property
    def sure(self) -> Floats:
        """(K, C) what is guaranteed."""
        found: Floats = self.base + self.held * self.is_kept
        return found

    def of(self, rows: Ints) -> Flow:
        """A copy of some rows."""
        return Flow(*(getattr(self, name).take(rows, axis=-1) for name in self.__slots__))

    def __add__(self, other: Flow) -> Flow:
        """The rows of both."""
        parts = ((getattr(self, name), getattr(other, name)) for name in self.__slots__)
        return Flow(*(np.concatenate(both, axis=-1) for both in parts))


def part_of(amount: Floats, of: Floats) -> Floats:
    """`amount` / `of`, at most 1; 0 of nothing."""
    found: Floats = np.minimum(np.divide(amount, of, out=np.zeros_like(of), where=of > 0), 1.0)
    return found
