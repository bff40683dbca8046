"""What accounts may give away in trades, by limits that they set themselves.

A limit counts what crosses the account's border: of a department, what its teams give to others together,
but nothing that they trade with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairshare.model import Accounts, Bools, Floats, Ints


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
