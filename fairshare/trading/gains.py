"""Computes what a trade was worth to each side, compared with the same situation without the trade.

Without the trade, each side would have kept what it gave. Each side's worth is measured in GPU time on the slow
generation. Time on the fast generation is converted by multiplying it by the side's measured speed-up (Gandiva_fair,
EuroSys '20, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Worth:
    """What one side of a trade has with and without the trade.

    Both values are in GPU time on the slow generation, converted by the side's own speed-up.
    """

    without: float
    with_trade: float

    @property
    def gained(self) -> float:
        return self.with_trade - self.without

    @property
    def gain(self) -> float:
        """Returns the relative gain: 0.83 means that the side got 83 % more than it gave, valued by its own
        speed-up."""
        return self.with_trade / self.without - 1


def worth_to_seller(fast: float, slow: float, speedup: float) -> Worth:
    """Returns what a trade was worth to the seller, who gave `fast` and got `slow`.

    `fast` and `slow` are amounts on the two generations, either in GPUs or in GPU-seconds.
    """
    return Worth(without=fast * speedup, with_trade=slow)


def worth_to_buyer(fast: float, slow: float, speedup: float) -> Worth:
    """Returns what a trade was worth to the buyer, who gave `slow` and got `fast`.

    `fast` and `slow` are amounts on the two generations, either in GPUs or in GPU-seconds.
    """
    return Worth(without=slow, with_trade=fast * speedup)
