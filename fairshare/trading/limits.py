"""Who trades, and what accounts may give away, by limits that they set themselves.

A limit counts what crosses the account's border: of a department, what its teams give to others together,
but nothing that they trade with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairshare.model import NOWHERE, Accounts, Bools, Floats, Ints
from fairshare.tree import Tree


@dataclass(frozen=True, slots=True)
class TradeLimits:
    """`left` goes down with each trade that is noted."""

    deals: Bools  # (T, K) whether the account gives or takes the generation at all
    left: Floats  # (T, K) GPUs that it may still give away; inf when unlimited

    @classmethod
    def of(cls, accounts: Accounts, entitled: Floats) -> TradeLimits:
        """`entitled` (T, K): GPUs that tickets earn, of which `give_part` is a part."""
        left = np.full(entitled.shape, np.inf) if accounts.give_most is None else accounts.give_most.copy()
        if accounts.give_part is not None:
            limited = np.isfinite(accounts.give_part)
            left[limited] = np.minimum(left[limited], accounts.give_part[limited] * entitled[limited])
        deals = np.ones(entitled.shape, dtype=bool) if accounts.deals is None else accounts.deals
        return cls(deals, left)

    def deal_in(self, accounts: Ints, pair: tuple[int, int]) -> Bools:
        """Which of the accounts trade both generations of a pair."""
        first, second = pair
        both: Bools = self.deals[accounts, first] & self.deals[accounts, second]
        return both

    def room(self, accounts: Sequence[int], gives: int, takes: int) -> float:
        """How many GPUs of `gives` all these accounts may still give for some of `takes`."""
        if not self.deals[np.ix_(accounts, (gives, takes))].all():
            return 0.0
        return float(self.left[accounts, gives].min(initial=np.inf))

    def note(self, accounts: Sequence[int], generation: int, gpus: float) -> None:
        """They gave `gpus` away."""
        self.left[accounts, generation] = np.maximum(self.left[accounts, generation] - gpus, 0.0)


def parties_of(tree: Tree, trades: Bools) -> tuple[Ints, Ints]:
    """The accounts that trade, and of each account (T,) which of them it belongs to (index or NOWHERE).

    Where an account and one above it are both marked, the lower one trades.
    """
    above = trades & (tree.sums(trades.astype(np.float64)) > 1)
    parties = np.flatnonzero(trades & ~above)
    member = np.full(len(tree.parent), NOWHERE, dtype=np.int64)
    member[parties] = np.arange(len(parties))
    for level in tree.levels[1:]:
        inherits = level[member[level] == NOWHERE]
        member[inherits] = member[tree.parent[inherits]]
    return parties, member
