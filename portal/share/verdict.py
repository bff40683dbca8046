"""What the share page's figures mean together: the GPU time owed in the period, and the scheduler's balance now."""

from __future__ import annotations

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
