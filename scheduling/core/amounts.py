"""Amounts of GPU time for share reports: what a team was entitled to, received, lent, borrowed and traded."""

from __future__ import annotations

from dataclasses import dataclass

from fairshare.fairness import delivered

MEASURES = ("entitled", "received", "lent", "unused", "borrowed", "bought", "sold")


@dataclass(frozen=True)
class Amounts:
    """A team's GPU-seconds of one generation in one period: entitled, received, lent, unused, borrowed, bought and
    sold.

    ShareInterval explains these fields.
    """

    entitled: float = 0.0
    received: float = 0.0
    lent: float = 0.0
    unused: float = 0.0
    borrowed: float = 0.0
    bought: float = 0.0
    sold: float = 0.0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(*(getattr(self, name) + getattr(other, name) for name in MEASURES))

    def __mul__(self, weight: float) -> Amounts:
        return Amounts(*(getattr(self, name) * weight for name in MEASURES))

    @property
    def due(self) -> float:
        """Returns the GPU-seconds that the team should have received.

        These are entitled - lent - unused + borrowed + bought - sold.
        """
        return self.entitled - self.lent - self.unused + self.borrowed + self.bought - self.sold

    @property
    def delivered(self) -> float | None:
        """Returns the GPU time that the team received, divided by the GPU time that it should have received (`due`).
        Returns None if it should have received none."""
        return delivered(self.received, self.due)

    @property
    def owed(self) -> float:
        """Returns the GPU-seconds that the team has yet to receive: those that it should have received (`due`) minus
        those that it received. Negative if the team received too much."""
        return self.due - self.received
