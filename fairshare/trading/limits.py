"""Determines which accounts trade, and how much their own limits let them give away.

A limit counts what crosses the account's border: for a department, what its teams together give to others, but not
what they trade with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairshare.model import NOWHERE, Accounts, Bools, Floats, Ints
from fairshare.tree import Tree


@dataclass(frozen=True, slots=True)
class TradeLimits:
    """The GPUs that accounts may still give away. `note` subtracts each trade from `left`."""

    deals: Bools  # (T, K) whether the account trades the generation at all
    left: Floats  # (T, K) GPUs that it may still give away; inf when unlimited

    @classmethod
    def of(cls, accounts: Accounts, entitled: Floats) -> TradeLimits:
        """Returns the limits of the accounts. `give_part` is a fraction of the entitlement `entitled` (T, K), in
        GPUs."""
        left = np.full(entitled.shape, np.inf) if accounts.give_most is None else accounts.give_most.copy()
        if accounts.give_part is not None:
            limited = np.isfinite(accounts.give_part)
            left[limited] = np.minimum(left[limited], accounts.give_part[limited] * entitled[limited])
        deals = np.ones(entitled.shape, dtype=bool) if accounts.deals is None else accounts.deals
        return cls(deals, left)

    def deal_in(self, accounts: Ints, pair: tuple[int, int]) -> Bools:
        """Returns a mask of the `accounts` that trade both generations of the pair."""
        first, second = pair
        both: Bools = self.deals[accounts, first] & self.deals[accounts, second]
        return both

    def room(self, accounts: Sequence[int], gives: int, takes: int) -> float:
        """Returns the GPUs of generation `gives` that each of the accounts may still give in exchange for `takes`."""
        if not self.deals[np.ix_(accounts, (gives, takes))].all():
            return 0.0
        return float(self.left[accounts, gives].min(initial=np.inf))

    def note(self, accounts: Sequence[int], generation: int, gpus: float) -> None:
        """Subtracts `gpus` from what each of the accounts may still give away of the generation."""
        self.left[accounts, generation] = np.maximum(self.left[accounts, generation] - gpus, 0.0)


def parties_of(tree: Tree, trades: Bools) -> tuple[Ints, Ints]:
    """Returns two arrays: the parties, which are the accounts that trade, and each account's index among the parties,
    (T,), or NOWHERE.

    Where both an account and an account above it are marked in `trades` (T,), the lower one trades.
    """
    above = trades & (tree.sums(trades.astype(np.float64)) > 1)
    parties = np.flatnonzero(trades & ~above)
    member = np.full(len(tree.parent), NOWHERE, dtype=np.int64)
    member[parties] = np.arange(len(parties))
    for level in tree.levels[1:]:
        inherits = level[member[level] == NOWHERE]
        member[inherits] = member[tree.parent[inherits]]
    return parties, member
