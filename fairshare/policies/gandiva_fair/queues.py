"""Divides an amount that each account has, such as GPUs, among the entries of the account's queue, such as its jobs.

The queues of many accounts are computed together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.model import Floats, Ints

LEAST_GPUS = 1e-6  # fewer GPUs count as zero


@dataclass(frozen=True, slots=True)
class Queue:
    """The queues of L accounts, with N entries in total. The entries of an account are adjacent.

    Adjacent entries can form a group, whose entries are served together.
    """

    leaf: Ints  # (N,)
    head: Ints  # (G,) the first entry of each group
    group: Ints  # (N,) the group of each entry

    @classmethod
    def of(cls, leaf: Ints, group: Ints) -> Queue:
        """Creates the queues. `leaf` (N,): account of each entry. `group` (N,): equal numbers for entries served
        together.

        Entries of a group must be adjacent.
        """
        new = np.ones(len(group), dtype=bool)
        new[1:] = group[1:] != group[:-1]
        return cls(leaf, np.flatnonzero(new), np.cumsum(new) - 1)

    @classmethod
    def one_by_one(cls, leaf: Ints) -> Queue:
        each = np.arange(len(leaf))
        return cls(leaf, each, each)

    def fill(self, size: Floats, most: Floats) -> Floats:
        """Divides an amount of each account among its entries, group after group. Returns the part of each entry, (N,).

        `size` (N,) is the most that each entry gets. `most` (L,) is the amount of each account. If too little is left
        for a group, its entries share the rest in proportion to size.
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
        """Returns, for each entry, the sum of sizes of the account's earlier entries, as an array (…, N).

        `size` (…, N) has the size of each entry.
        """
        before = np.cumsum(size, axis=-1) - size
        new = np.ones(len(self.leaf), dtype=bool)
        new[1:] = self.leaf[1:] != self.leaf[:-1]
        found: Floats = before - before[..., new].take(np.cumsum(new) - 1, axis=-1)
        return found

    def mean(self, of: Floats, size: Floats, leaf: Ints, depth: Floats, *, first: bool) -> Floats:
        """Returns the mean of the values `of` (N,) at the front of each account's queue, as an array (M,).

        - `leaf` (M,): the accounts.
        - `size` (N,): the size of each entry, its weight in the mean.
        - `depth` (M,): how much of each queue counts, as a sum of sizes.
        - `first`: if false, the end of the queue counts instead of the front.

        The mean is 0 for an account without entries.
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
