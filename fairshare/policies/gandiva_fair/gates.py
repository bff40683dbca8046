"""Contains gates: limits on GPUs of single generations, each with a capacity that all rows behind it share."""

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
    """A forest of M gates, each for one generation. The outermost gates stand for the GPUs of a pool."""

    most: Floats  # (M,) GPUs that the gate lets through
    up: Ints  # (M,) the next gate outside, or NOWHERE
    at: Ints  # (K, C) the innermost gate of each row
    pool: Ints  # (C,) the pool whose GPUs the row shares
    pool_of: Ints  # (M,) the pool of each gate
    nothing: Floats  # (M,) GPUs that count as rounding errors
    levels: Sequence[slice]  # slices of the gates of each level, the outermost first

    @classmethod
    def of(cls, flow: Flow, pool: Ints, gpus: Floats, inside: Sequence[tuple[Ints, Floats]]) -> Gates:
        """Returns the gates of pools and of limits inside them.

        `pool` (C,) ascends; `gpus` (G, K) has the GPUs of each pool. `inside` has pairs for further limits, the
        outermost first: the owner of each row, (C,), or NOWHERE, where rows of the same owner are adjacent; and the
        GPUs that each owner may have, (…, K).
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
        """Returns the same gates with only the given rows."""
        return replace(self, at=self.at.take(rows, axis=1), pool=self.pool[rows])

    def before(self, values: NDArray[N]) -> NDArray[N]:
        """Returns the value (M,) of the innermost gate of each row: (K, C), or (K, 1) where all rows have the same
        gates."""
        return values[:, None] if len(self.most) == len(self.at) else values.take(self.at)

    def sums(self, values: Floats) -> Floats:
        """Returns, for each gate, the sum of the values (K, C) of the rows whose innermost gate it is, as an array
        (M,)."""
        if len(self.most) == len(values):
            return values.sum(axis=1)  # type: ignore[no-any-return]
        found: Floats = np.bincount(self.at.ravel(), values.ravel(), len(self.most)).astype(np.float64)
        return found

    def through(self, held: Floats) -> Floats:
        """Returns the GPUs that reach each gate when rows hold `held` (K, C), as an array (M,).

        A gate passes on no more than it may.
        """
        found = self.sums(held)
        for level in self.levels[:0:-1]:
            found += np.bincount(self.up[level], np.minimum(found, self.most)[level], len(found))
        return found

    def sums_outside(self, values: Floats) -> Floats:
        """Returns, for each gate, the sum of the values (K, C) of all rows behind it, as an array (M,)."""
        found = self.sums(values)
        for level in self.levels[:0:-1]:
            found += np.bincount(self.up[level], found[level], len(found))
        return found

    def least_outside(self, values: Floats) -> Floats:
        """Returns, for each gate, the lowest of the values (M,) of the gate and of all gates outside it, as an array
        (M,)."""
        found = values.copy()
        for level in self.levels[1:]:
            found[level] = np.minimum(found[level], found[self.up[level]])
        return found

    def cut(self, wanted: Floats, left: Floats) -> Floats:
        """Returns `wanted` (K, C) reduced until no gate has to pass more than its part of `left` (M,)."""
        for level in self.levels[::-1]:
            total = self.sums_outside(wanted)
            part = np.ones_like(left)
            part[level] = np.where(total[level] > 0, part_of(left[level], total[level]), 1.0)
            wanted = wanted * self.before(self.least_outside(part))
        return wanted

    def by_pool(self, values: Floats) -> Floats:
        """Returns the sum of the values (M,) of the gates of each pool, as an array (G,)."""
        found: Floats = np.bincount(self.pool_of, values).astype(np.float64)
        return found

    def width(self, marks: Bools) -> float:
        """Returns the capacity of the marked gates (M,) towards the outside: the sum over those with no marked gate
        outside."""
        ends = marks & ~np.where(self.up == NOWHERE, False, marks[self.up])
        return float(self.most[ends].sum())
