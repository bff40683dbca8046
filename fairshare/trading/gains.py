"""What a trade was worth to each side, against the counterfactual without it: everything else the same.

Without the trade each side would have had what it gave. In its own measure, the GPU time of the slow generation
that does as much for it, time on the fast one counts by its measured speed-up (Gandiva_fair, EuroSys '20, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Worth:
    """In time on the slow generation, by one side's own speed-up."""

    without: float
    with_trade: float

    @property
    def gained(self) -> float:
        return self.with_trade - self.without

    @property
    def gain(self) -> float:
        """0.83: by its own measure the side got 83 % more than it gave."""
        return self.with_trade / self.without - 1


def worth_to_seller(fast: float, slow: float, speedup: float) -> Worth:
    """It gave `fast` (GPUs, or GPU-seconds) for `slow`."""
    return Worth(without=fast * speedup, with_trade=slow)


def worth_to_buyer(fast: float, slow: float, speedup: float) -> Worth:
    """It gave `slow` for `fast`."""
    return Worth(without=slow, with_trade=fast * speedup)
