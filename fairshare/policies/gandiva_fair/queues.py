"""Divides the amounts of many owners among the entries of their queues: the first entries get what they want, until the
amount is used up.

For example, an owner is an account, its amount is the GPUs that it holds, and the entries of its queue are its jobs.
Trades use this to find out which jobs get the GPUs of an account.

Sizes of arrays: L owners, N entries of all owners together, G groups of entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.model import Floats, Ints

LEAST_GPUS = 1e-6  # fewer GPUs count as zero


@dataclass(frozen=True, slots=True)
class Queue:
    """The queues of L owners, with N entries in total. All entries of an owner are adjacent, in the order in which they
    are served.

    Adjacent entries of an owner can form a group. The entries of a group are served at the same time, in proportion to
    their sizes.
    """

    owner: Ints  # (N,)
    head: Ints  # (G,) the first entry of each group
    group: Ints  # (N,) the group of each entry

    @classmethod
    def of(cls, owner: Ints, group: Ints) -> Queue:
        """Creates the queues.

        - `owner` (N,): the index of each entry's owner, in ascending order.
        - `group` (N,): a label for each entry. Adjacent entries with the same label form a group. They must have the
          same owner.
        """
        new = np.ones(len(group), dtype=bool)
        new[1:] = group[1:] != group[:-1]
        return cls(owner, np.flatnonzero(new), np.cumsum(new) - 1)

    @classmethod
    def one_by_one(cls, owner: Ints) -> Queue:
        each = np.arange(len(owner))
        return cls(owner, each, each)

    def fill(self, size: Floats, amount: Floats) -> Floats:
        """Divides the amount of each owner among its entries, group after group. Returns what each entry gets, as an
        array (N,).

        - `size` (N,): how much each entry wants.
        - `amount` (L,): the amount of each owner.

        Each group gets all that it wants, until the amount is used up. If less is left than a group wants, all entries
        of the group get the same fraction of their size. For example, an amount of 5 is divided among sizes 4, 2 and 3
        as 4, 1 and 0 if each entry is a group.
        """
        if not len(self.head):
            return np.zeros(0)
        total = np.add.reduceat(size, self.head)
        groups = Queue.one_by_one(self.owner[self.head])
        taken = np.clip(amount[groups.owner] - groups.before(total), 0.0, total)
        part = np.divide(taken, total, out=np.zeros_like(total), where=total > 0)
        found: Floats = size * part[self.group]
        return found

    def before(self, size: Floats) -> Floats:
        """Returns, for each entry, the sum of the sizes of its owner's earlier entries, as an array (…, N).

        `size` (…, N): the size of each entry. For example, sizes 4, 2 and 3 of one owner give 0, 4 and 6.
        """
        before = np.cumsum(size, axis=-1) - size
        new = np.ones(len(self.owner), dtype=bool)
        new[1:] = self.owner[1:] != self.owner[:-1]
        found: Floats = before - before[..., new].take(np.cumsum(new) - 1, axis=-1)
        return found

    def mean(self, values: Floats, size: Floats, owners: Ints, depth: Floats, *, first: bool) -> Floats:
        """Returns the weighted mean of `values` over the first or the last entries of M queues, as an array (M,).

        - `values` (N,): the value of each entry.
        - `size` (N,): the size of each entry, which is its weight in the mean.
        - `owners` (M,): the owner of each queue.
        - `depth` (M,): the total size of the entries that count. For example, with sizes 4, 2 and 3 and depth 5, the
          first entry counts with weight 4 and the second with weight 1, if each entry is a group.
        - `first`: whether to count from the first entry of a queue. If false, entries count from the last one.

        The mean is 0 for an owner without entries, and where `depth` is 0.
        """
        if not len(self.head):
            return np.zeros(len(owners))
        # Running sums over the groups of all owners; the sum at a distance `depth` from an owner's begin or end is
        # interpolated.
        sizes, sums = (
            np.append(0.0, np.cumsum(np.add.reduceat(x, self.head))) for x in (size, size * values)
        )
        heads = self.owner[self.head]
        groups = np.bincount(heads, minlength=int(owners.max(initial=-1)) + 1)
        end = np.cumsum(groups)[owners]
        begin = end - groups[owners]
        depth = np.minimum(depth, sizes[end] - sizes[begin])
        if first:
            found = np.interp(sizes[begin] + depth, sizes, sums) - sums[begin]
        else:
            found = sums[end] - np.interp(sizes[end] - depth, sizes, sums)
        mean: Floats = np.divide(found, depth, out=np.zeros(len(owners)), where=depth > LEAST_GPUS)
        return mean
