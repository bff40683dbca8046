"""Amounts that entries of a queue take or leave, of the queues of many accounts at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.model import Floats, Ints

LEAST_GPUS = 1e-6  # less than this is nothing


@dataclass(frozen=True, slots=True)
class Queue:
    """N entries of L accounts, those of one account side by side; entries of one group are served together."""

    leaf: Ints  # (N,)
    head: Ints  # (G,) the first entry of each group
    group: Ints  # (N,) which group each entry is of

    @classmethod
    def of(cls, leaf: Ints, group: Ints) -> Queue:
        """`group` (N,) has the same number for entries side by side that are served together."""
        new = np.ones(len(group), dtype=bool)
        new[1:] = group[1:] != group[:-1]
        return cls(leaf, np.flatnonzero(new), np.cumsum(new) - 1)

    @classmethod
    def one_by_one(cls, leaf: Ints) -> Queue:
        each = np.arange(len(leaf))
        return cls(leaf, each, each)

    def fill(self, size: Floats, most: Floats) -> Floats:
        """(N,) what each entry takes, group after group, up to its `size` (N,), of `most` (L,) of its account.

        The group for which too little is left shares it in proportion to size.
        """
        if not len(self.head):
            return np.zeros(0)
        total = np.add.reduceat(size, self.head)
        groups = Queue.one_by_one(self.leaf[self.head])
        taken = np.clip(most[groups.leaf] - groups.before(total), 0.0, total)
        part = np.divide(taken, total, out=np.zeros_like(total), where=total > 0)
        found: Floats = size * part[self.group]
        return found

    def before(self, size: Floats) -> Floats:
        """(…, N) the sum of the sizes (…, N) of its account's entries before each."""
        before = np.cumsum(size, axis=-1) - size
        new = np.ones(len(self.leaf), dtype=bool)
        new[1:] = self.leaf[1:] != self.leaf[:-1]
        found: Floats = before - before[..., new].take(np.cumsum(new) - 1, axis=-1)
        return found

    def mean(self, of: Floats, size: Floats, leaf: Ints, depth: Floats, *, first: bool) -> Floats:
        """(M,) the mean `of` (N,) the first (or the last) entries of accounts `leaf` (M,) up to a size `depth` (M,).

        0 where an account has none.
        """
        if not len(self.head):
            return np.zeros(len(leaf))
        # Sums over groups, one account after the other; what lies `depth` from an account's begin or end is between.
        sizes, sums = (np.append(0.0, np.cumsum(np.add.reduceat(x, self.head))) for x in (size, size * of))
        heads = self.leaf[self.head]
        groups = np.bincount(heads, minlength=int(leaf.max(initial=-1)) + 1)
        end = np.cumsum(groups)[leaf]
        begin = end - groups[leaf]
        depth = np.minimum(depth, sizes[end] - sizes[begin])
        if first:
            found = np.interp(sizes[begin] + depth, sizes, sums) - sums[begin]
        else:
            found = sums[end] - np.interp(sizes[end] - depth, sizes, sums)
        mean: Floats = np.divide(found, depth, out=np.zeros(len(leaf)), where=depth > LEAST_GPUS)
        return mean
