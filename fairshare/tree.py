"""The ticket tree of accounts: parents, children, and sums over subtrees."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from fairshare.model import NOWHERE, Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Tree:
    """The ticket tree. Accounts are numbered so that parents come before their children."""

    parent: Ints  # (T,)
    roots: Ints
    children: tuple[Ints, ...]  # children of each account
    is_leaf: Bools  # (T,)
    levels: tuple[Ints, ...]  # the accounts of each depth, roots first

    @classmethod
    def of(cls, parent: Ints) -> Tree:
        """Creates the tree from the parent of each account, `parent` (T,); NOWHERE for roots.

        Raises ValueError if an account comes before its parent.
        """
        return _tree(np.asarray(parent, dtype=np.int64).tobytes())

    def sums(self, amounts: Floats) -> Floats:
        """Returns, for each account, the sum of `amounts` (T, …) over the account and all accounts below it."""
        total = amounts.copy()
        for level in self.levels[:0:-1]:
            np.add.at(total, self.parent[level], total[level])
        return total

    def least_on_path(self, limits: Floats) -> Floats:
        """Returns, for each account, the lowest of `limits` (T, …) among the account and all accounts above it."""
        least = limits.copy()
        for level in self.levels[1:]:
            least[level] = np.minimum(least[level], least[self.parent[level]])
        return least

    def path(self, account: int) -> list[int]:
        """Returns the account and all accounts above it, beginning with the account itself."""
        way = []
        while account != NOWHERE:
            way.append(account)
            account = int(self.parent[account])
        return way


@lru_cache(maxsize=64)  # every decision asks for the tree, which seldom changes
def _tree(of: bytes) -> Tree:
    """Creates the tree from the bytes of the array `parent`."""
    parent: Ints = np.frombuffer(of, dtype=np.int64)
    size = len(parent)
    if np.any(parent >= np.arange(size)) or np.any(parent < NOWHERE):
        raise ValueError("an account is listed before its parent")
    depth, above = np.zeros(size, dtype=np.int64), parent
    while np.any(below := above != NOWHERE):
        depth += below
        above = np.where(below, parent[above], NOWHERE)
    # Sorted by parent, siblings in their own order: first the roots, then the children of each account.
    by_parent = np.argsort(parent, kind="stable")
    ends = np.cumsum(np.bincount(parent + 1, minlength=size + 1)).tolist()
    return Tree(
        parent=parent,
        roots=np.flatnonzero(parent == NOWHERE),
        children=tuple(by_parent[a:b] for a, b in pairwise(ends)),
        is_leaf=np.diff(ends) == 0,
        levels=tuple(np.flatnonzero(depth == level) for level in range(depth.max(initial=NOWHERE) + 1)),
    )
