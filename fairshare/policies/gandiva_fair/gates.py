"""Contains gates: capacities of a network flow, each a limit on the GPUs of one generation for a group of rows.

Gates are nested: an account's limit lies inside the limits of the accounts above it.
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
    """M nested limits on the GPUs of single generations. A row (class of jobs) is *behind* a gate if the gate limits
    it.

    The outermost gates stand for the GPUs of pools. All rows of a pool share its GPUs.
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
        """Creates the gates (limits on the GPUs of one generation for a group of rows).

        A pool is a number of GPUs of each generation that a set of rows (classes of jobs) shares. The outermost gates
        are the GPUs of the pools. Each further gate is a limit for some rows of one pool.

        - `pool` (C,): the pool of each row, in ascending order.
        - `gpus` (G, K): GPUs of each generation in each pool.
        - `inside`: a pair of arrays for each level of the further limits, the outermost level first. The first array
          (C,) has the owner of each row, or NOWHERE if this level does not limit the row. Rows of one owner are
          adjacent. The second array has the GPUs of each generation that each owner may have.
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
        """Returns a copy of the gates (limits) that covers only the given rows (classes of jobs)."""
        return replace(self, at=self.at.take(rows, axis=1), pool=self.pool[rows])

    def before(self, values: NDArray[N]) -> NDArray[N]:
        """Returns, for each generation and row (class of jobs), the value of the innermost gate (limit) of the row.

        `values` (M,) has one value for each gate. The result is (K, C), or (K, 1) if all rows have the same gates.
        """
        return values[:, None] if len(self.most) == len(self.at) else values.take(self.at)

    def sums(self, values: Floats) -> Floats:
        """Returns, for each gate (limit), a sum over the rows (classes of jobs) directly behind it, as an array (M,).

        A row is directly behind the innermost gate that limits it. `values` (K, C): the values to add, for each
        generation and row.
        """
        if len(self.most) == len(values):
            return values.sum(axis=1)  # type: ignore[no-any-return]
        found: Floats = np.bincount(self.at.ravel(), values.ravel(), len(self.most)).astype(np.float64)
        return found

    def through(self, held: Floats) -> Floats:
        """Returns the GPUs that count against each gate (limit) if rows (classes of jobs) hold `held` (K, C), as an
        array (M,).

        These are the GPUs of all rows behind the gate, with one exception: if the rows behind an inner gate hold more
        than its capacity, only its capacity counts against the gates outside it.
        """
        found = self.sums(held)
        for level in self.levels[:0:-1]:
            found += np.bincount(self.up[level], np.minimum(found, self.most)[level], len(found))
        return found

    def sums_outside(self, values: Floats) -> Floats:
        """Returns, for each gate (limit), the sum of values of all rows (classes of jobs) behind it, as an array (M,).

        `values` (K, C) has one value for each generation and row.
        """
        found = self.sums(values)
        for level in self.levels[:0:-1]:
            found += np.bincount(self.up[level], found[level], len(found))
        return found

    def least_outside(self, values: Floats) -> Floats:
        """Returns, for each gate (limit), the lowest value among the gate itself and all gates outside it, as an array
        (M,).

        `values` (M,) has one value for each gate.
        """
        found = values.copy()
        for level in self.levels[1:]:
            found[level] = np.minimum(found[level], found[self.up[level]])
        return found

    def cut(self, wanted: Floats, left: Floats) -> Floats:
        """Returns `wanted`, reduced so that the rows behind each gate together get no more than the gate has left, as
        an array (K, C).

        `wanted` (K, C): additional GPUs that each row (class of jobs) wants of each generation. `left` (M,): GPUs that
        each gate (limit) can still give to the rows behind it.
        """
        for level in self.levels[::-1]:
            total = self.sums_outside(wanted)
            part = np.ones_like(left)
            part[level] = np.where(total[level] > 0, part_of(left[level], total[level]), 1.0)
            wanted = wanted * self.before(self.least_outside(part))
        return wanted

    def by_pool(self, values: Floats) -> Floats:
        """Returns the sum of `values` over the gates (limits) of each pool, as an array (G,).

        A pool is the GPUs that a set of rows (classes of jobs) shares. `values` (M,) has one value for each gate.
        """
        found: Floats = np.bincount(self.pool_of, values).astype(np.float64)
        return found

    def width(self, marks: Bools) -> float:
        """Returns how many GPUs the gates marked in `marks` (M,) admit together: the sum of their capacities.

        If the next gate outside a marked gate is also marked, only the outer gate is counted, because it limits both.
        """
        ends = marks & ~np.where(self.up == NOWHERE, False, marks[self.up])
        return float(self.most[ends].sum())
