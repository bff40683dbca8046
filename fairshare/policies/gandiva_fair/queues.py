"""Computes what entries of queues take or leave, for the queues of many accounts at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.model import Floats, Ints

LEAST_GPUS = 1e-6  # fewer GPUs count as zero


@dataclass(frozen=True, slots=True)
class Queue:
    """The queues of L accounts with N entries; an account's entries are adjacent, and entries of a group are served
    together."""

    leaf: Ints  # (N,)
    head: Ints  # (G,) the first entry of each group
    group: Ints  # (N,) the group of each entry

    @classmethod
    def of(cls, leaf: Ints, group: Ints) -> Queue:
        """Returns the queues. `group` (N,) has the same number for adjacent entries that are served together."""
        new = np.ones(len(group), dtype=bool)
        new[1:] = group[1:] != group[:-1]
        return cls(leaf, np.flatnonzero(new), np.cumsum(new) - 1)

    @classmethod
    def one_by_one(cls, leaf: Ints) -> Queue:
        each = np.arange(len(leaf))
        return cls(leaf, each, each)

    def fill(self, size: Floats, most: Floats) -> Floats:
        """Returns the amount that each entry takes of its account's `most` (L,), up to its `size` (N,), group after
        group, as an array (N,).

        Entries of a group for which too little is left share it in proportion to size.
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
        """Returns, for each entry, the sum of the sizes (…, N) of its account's entries before it, as an array (…,
        N)."""
        before = np.cumsum(size, axis=-1) - size
        new = np.ones(len(self.leaf), dtype=bool)
        new[1:] = self.leaf[1:] != self.leaf[:-1]
        found: Floats = before - before[..., new].take(np.cumsum(new) - 1, axis=-1)
        return found

    def mean(self, of: Floats, size: Floats, leaf: Ints, depth: Floats, *, first: bool) -> Floats:
        """Returns the mean of `of` (N,) over the first entries of each account in `leaf` (M,), as an array (M,); the
        last if not `first`.

        The mean is weighted by `size` (N,) and taken over entries of total size `depth` (M,). It is 0 for an account
        without entries.
        """
        if not len(self.head):
            return np.zeros(len(leaf))
        # Running sums over the groups of all accounts; the sum at a distance `depth` from an account's begin or end is
        # interpolated.
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
