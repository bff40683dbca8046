"""What the share page's figures mean together: the GPU time owed in the period, and the scheduler's balance now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """How a team stands: what it did not receive in a period, and how much of it the next rounds give back.

    The two differ, because a balance ends when the team has no jobs, is limited, and shrinks where all teams together
    received too little (fairshare/policies/gandiva_fair/balances.py). All amounts are in GPU-seconds.
    """

    owed: float  # due minus received in the period
    balance: float  # what the next rounds give back; negative: what the team received too early
    grain: float  # one GPU for one round; a smaller balance decides nothing

    @property
    def is_even(self) -> bool:
        return abs(self.balance) < self.grain

    @property
    def is_ahead(self) -> bool:
        return self.balance <= -self.grain

    @property
    def repaid(self) -> float:
        """Returns how much the next rounds give back."""
        return 0.0 if self.is_even else max(self.balance, 0.0)

    @property
    def lost(self) -> float:
        """Returns how much of the period's shortfall the next rounds do not give back; 0 for less than a grain."""
        lost = self.owed - self.repaid
        return lost if lost >= self.grain else 0.0


@dataclass(frozen=True)
class Shift:
    """GPU time, in GPU-seconds, that a team received on GPU types `more` in place of `less`."""

    less: list[str]
    more: list[str]
    amount: float


SMALLEST_SHIFT = 0.05  # of what is due


def shift_of(owed: Mapping[str, float], *, due: float, grain: float) -> Shift | None:
    """Returns what moved between GPU types, from the GPU-seconds owed on each; None for less than `grain` or 5 %.

    The scheduler guarantees a class of jobs only the sum over GPU types on which it is equally fast
    (fairshare/policies/gandiva_fair/shares.py), and takes unmeasured speeds for equal.
    """
    less = {name: amount for name, amount in owed.items() if amount > 0}
    more = {name: -amount for name, amount in owed.items() if amount < 0}
    amount = min(sum(less.values()), sum(more.values()))
    if amount < max(grain, SMALLEST_SHIFT * due):
        return None
    least = SMALLEST_SHIFT * amount  # types that hardly count are not named
    return Shift(
        [name for name, part in less.items() if part >= least],
        [name for name, part in more.items() if part >= least],
        amount,
    )
