"""Determines which accounts trade, and how many GPUs their limits let them give away.

A limit counts what leaves the account, including all accounts below it. For a department, that is what its teams
together give to others. Trades between its teams do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairshare.model import NOWHERE, Accounts, Bools, Floats, Ints
from fairshare.tree import Tree


@dataclass(frozen=True, slots=True)
class TradeLimits:
    """The GPUs that accounts may still give away in trades. Call `note` after each trade to reduce them."""

    deals: Bools  # (T, K) whether the account trades the generation at all
    left: Floats  # (T, K) GPUs that it may still give away; inf when unlimited

    @classmethod
    def of(cls, accounts: Accounts, entitled: Floats) -> TradeLimits:
        """Returns the limits before any trade. `entitled` (T, K): each account's entitlement in GPUs of each
        generation.

        A limit can be a number of GPUs, a fraction of the entitlement, or both; then the lower one applies.
        """
        left = np.full(entitled.shape, np.inf) if accounts.give_most is None else accounts.give_most.copy()
        if accounts.give_part is not None:
            limited = np.isfinite(accounts.give_part)
            left[limited] = np.minimum(left[limited], accounts.give_part[limited] * entitled[limited])
        deals = np.ones(entitled.shape, dtype=bool) if accounts.deals is None else accounts.deals
        return cls(deals, left)

    def deal_in(self, accounts: Ints, pair: tuple[int, int]) -> Bools:
        """Returns which of `accounts` may trade both generations of the pair, as a mask."""
        first, second = pair
        both: Bools = self.deals[accounts, first] & self.deals[accounts, second]
        return both

    def room(self, accounts: Sequence[int], gives: int, takes: int) -> float:
        """Returns how many GPUs of generation `gives` can still be given away in one trade for GPUs of generation
        `takes`.

        The trade counts towards the limits of all `accounts`. The result is therefore the smallest of the numbers that
        these accounts may still give away. It is 0 if one of them does not trade one of the two generations.
        """
        if not self.deals[np.ix_(accounts, (gives, takes))].all():
            return 0.0
        return float(self.left[accounts, gives].min(initial=np.inf))

    def note(self, accounts: Sequence[int], generation: int, gpus: float) -> None:
        """Subtracts `gpus` from the GPUs of the generation that each of `accounts` may still give away."""
        self.left[accounts, generation] = np.maximum(self.left[accounts, generation] - gpus, 0.0)


def parties_of(tree: Tree, trades: Bools) -> tuple[Ints, Ints]:
    """Returns the accounts that trade (the *parties*), and the party of each account.

    `trades` (T,): marks accounts that are set to trade. A marked account is a party if no account below it is marked.
    For example, if a department and one of its teams are marked, only the team is a party. A party trades for itself
    and for all accounts below it: it is the party of all these accounts.

    The result is two arrays:
    - The indices of the parties.
    - (T,): the position of each account's party in the first array, or NOWHERE if the account has no party.
    """
    above = trades & (tree.sums(trades.astype(np.float64)) > 1)
    parties = np.flatnonzero(trades & ~above)
    member = np.full(len(tree.parent), NOWHERE, dtype=np.int64)
    member[parties] = np.arange(len(parties))
    for level in tree.levels[1:]:
        inherits = level[member[level] == NOWHERE]
        member[inherits] = member[tree.parent[inherits]]
    return parties, member
