"""Contains the capacities of the network flow that divides GPUs among accounts. A capacity is called a *gate*.

- A *row* is a consumer of GPUs: usually a class, which means similar jobs of one leaf account. A class can have
  additional rows, which receive only its guaranteed GPUs (`flow.py`).
- A *pool* is GPUs of each generation that are divided among some rows. Each row belongs to one pool.
- A *gate* limits how many GPUs of one generation a set of rows may have together. These rows are *behind* the gate.

Gates are nested. The outermost gates are the GPUs of the pools: one gate for each pool and generation. Inside them are
the limits of accounts, each inside the limits of the accounts above it. The limits of classes are innermost.

Sizes of arrays: M gates, C rows, K generations, G pools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fairshare.columns import lowest
from fairshare.model import NOWHERE, Bools, Floats, Ints
from fairshare.policies.gandiva_fair.flow import EPSILON, Flow, part_of

N = TypeVar("N", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Gates:
    """M nested gates. Each limits the GPUs of one generation that some rows (consumers of GPUs) may have together.

    On each generation, a row is *directly behind* one gate, its innermost gate. It is also *behind* all gates outside
    this gate, up to the gate of its pool.
    """

    most: Floats  # (M,) GPUs that the gate lets through
    up: Ints  # (M,) the next gate outside, or NOWHERE
    at: Ints  # (K, C) the innermost gate of each row
    pool: Ints  # (C,) the pool whose GPUs the row shares
    pool_of: Ints  # (M,) the pool of each gate
    nothing: Floats  # (M,) GPUs that count as rounding errors
    levels: Sequence[slice]  # slices of the gates of each level, the outermost first

    @classmethod
    def of(cls, flow: Flow, pool: Ints, gpus: Floats, inside: Sequence[tuple[Ints, Floats]]) -> Gates:
        """Creates the gates for the rows of `flow`. Limits that can have no effect get no gate.

        - `pool` (C,): the pool of each row, in ascending order.
        - `gpus` (G, K): GPUs of each generation in each pool. They become the outermost gates.
        - `inside`: all other limits, as one pair of arrays for each level of nesting, the outermost level first:
          - (C,): for each row, the index of the limit that applies to it, or NOWHERE. Rows with the same index must be
            adjacent.
          - (any number, K): the limits, in GPUs of each generation.
        """
        generations = np.arange(gpus.shape[1])[:, None]
        most, up, levels = [gpus.ravel()], [np.full(gpus.size, NOWHERE)], [slice(0, gpus.size)]
        at = pool * len(generations) + generations
        wants = flow.gpus * flow.able
        for owner, may_have in inside:
            first = np.flatnonzero(np.diff(owner, prepend=owner[:1] - 1))
            if not (lowest(may_have)[owner[first]] < np.add.reduceat(flow.gpus, first)).any():
                continue
            here = np.where(owner[first] == NOWHERE, np.inf, may_have.take(owner[first], axis=0).T)
            outside = at.take(first, axis=1)
            known = np.concatenate(most)
            # A limit has no effect if the rows cannot use more, or if the next gate outside allows no more.
            binds = here < np.minimum(np.add.reduceat(wants, first, axis=1), known[outside])
            if not binds.any():
                continue
            number = np.where(binds, len(known) + np.cumsum(binds).reshape(binds.shape) - 1, outside)
            most.append(here[binds])
            up.append(outside[binds])
            levels.append(slice(len(known), len(known) + int(binds.sum())))
            at = np.repeat(number, np.diff(np.append(first, len(owner))), axis=1)
        whole, pool_of = np.concatenate(up), np.repeat(np.arange(len(gpus)), len(generations))
        for level in levels[1:]:
            pool_of = np.append(pool_of, pool_of[whole[level]])
        nothing = EPSILON * (1.0 + gpus.sum(axis=1))
        return cls(np.concatenate(most), whole, at, pool, pool_of, nothing[pool_of], levels)

    def rows(self, rows: Ints) -> Gates:
        """Returns a copy of all gates for a network that contains only the rows with the indices in `rows`."""
        return replace(self, at=self.at.take(rows, axis=1), pool=self.pool[rows])

    def before(self, values: NDArray[N]) -> NDArray[N]:
        """Returns, for each generation and row, the value of the row's innermost gate on this generation.

        `values` (M,): one value for each gate. The result is (K, C). If all rows have the same gates, it is (K, 1),
        which numpy broadcasts to all rows.
        """
        return values[:, None] if len(self.most) == len(self.at) else values.take(self.at)

    def sums(self, values: Floats) -> Floats:
        """Returns the sum of `values` over the rows directly behind each gate, as an array (M,).

        `values` (K, C): one value for each generation and row. Each value counts only for the row's innermost gate on
        the generation, not for the gates outside it.
        """
        if len(self.most) == len(values):
            return values.sum(axis=1)  # type: ignore[no-any-return]
        found: Floats = np.bincount(self.at.ravel(), values.ravel(), len(self.most)).astype(np.float64)
        return found

    def through(self, held: Floats) -> Floats:
        """Returns the load of each gate in GPUs, as an array (M,), if the rows hold `held` (K, C).

        The load is the number of GPUs that all rows behind the gate hold, with one exception: if an inner gate is
        overloaded, only its capacity counts towards the gates outside it.
        """
        found = self.sums(held)
        for level in self.levels[:0:-1]:
            found += np.bincount(self.up[level], np.minimum(found, self.most)[level], len(found))
        return found

    def sums_outside(self, values: Floats) -> Floats:
        """Returns the sum of `values` over all rows behind each gate, as an array (M,).

        `values` (K, C): one value for each generation and row. Each value counts for the row's innermost gate on the
        generation, and for all gates outside it.
        """
        found = self.sums(values)
        for level in self.levels[:0:-1]:
            found += np.bincount(self.up[level], found[level], len(found))
        return found

    def least_outside(self, values: Floats) -> Floats:
        """Returns, for each gate, the minimum of `values` over this gate and all gates outside it, as an array (M,).

        `values` (M,): one value for each gate.
        """
        found = values.copy()
        for level in self.levels[1:]:
            found[level] = np.minimum(found[level], found[self.up[level]])
        return found

    def cut(self, wanted: Floats, left: Floats) -> Floats:
        """Returns the GPUs in `wanted`, reduced to what the gates have left, as an array (K, C).

        If the rows behind a gate want more than it has left, the wants of all these rows are multiplied by the same
        factor.

        - `wanted` (K, C): additional GPUs of each generation that each row wants.
        - `left` (M,): GPUs that each gate can still give to the rows behind it.
        """
        for level in self.levels[::-1]:
            total = self.sums_outside(wanted)
            part = np.ones_like(left)
            part[level] = np.where(total[level] > 0, part_of(left[level], total[level]), 1.0)
            wanted = wanted * self.before(self.least_outside(part))
        return wanted

    def by_pool(self, values: Floats) -> Floats:
        """Returns the sum of `values` over all gates of each pool, as an array (G,).

        `values` (M,): one value for each gate.
        """
        found: Floats = np.bincount(self.pool_of, values).astype(np.float64)
        return found

    def width(self, marks: Bools) -> float:
        """Returns the total capacity of the gates marked in `marks` (M,), in GPUs.

        A marked gate does not count if the next gate outside it is also marked, because the capacity of the outer gate
        limits both.
        """
        ends = marks & ~np.where(self.up == NOWHERE, False, marks[self.up])
        return float(self.most[ends].sum())
