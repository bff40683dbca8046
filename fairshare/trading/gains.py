"""Computes what a trade was worth to each side, compared with the same situation without the trade.

Without the trade each side would have kept what it gave. Each side measures in GPU time on the slow generation: time
on the fast generation is multiplied by the side's measured speed-up (Gandiva_fair, EuroSys '20, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Worth:
    """The worth of a trade to one side, in GPU time on the slow generation, by the side's own speed-up."""

    without: float
    with_trade: float

    @property
    def gained(self) -> float:
        return self.with_trade - self.without

    @property
    def gain(self) -> float:
        """Returns the relative gain: 0.83 means that the side got 83 % more than it gave, by its own measure."""
        return self.with_trade / self.without - 1


def worth_to_seller(fast: float, slow: float, speedup: float) -> Worth:
    """Returns the worth of a trade to the seller, who gave `fast` for `slow`, in GPUs or GPU-seconds."""
    return Worth(without=fast * speedup, with_trade=slow)


def worth_to_buyer(fast: float, slow: float, speedup: float) -> Worth:
    """Returns the worth of a trade to the buyer, who gave `slow` for `fast`, in GPUs or GPU-seconds."""
    return Worth(without=slow, with_trade=fast * speedup)
