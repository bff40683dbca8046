"""The scale beside a chart: even steps of round numbers from the lowest to the highest value, with labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from math import isfinite

from accounting.core.wording import exact_number

LEAST = 1e-300
MOST_STEPS = 4  # on the longer side of zero
# The vertical range of every chart's plot, in per cent of the picture's height; the rest is for the time axis.
TOP, BOTTOM = 5.0, 86.0


@dataclass(frozen=True)
class Mark:
    """A label; `part` is its position from the lower edge of the plot (0) to the upper one (1)."""

    label: str
    part: float

    @property
    def percent(self) -> float:
        """Returns the position from the upper edge of the picture in per cent."""
        return round(TOP + (1 - self.part) * (BOTTOM - TOP), 2)


@dataclass(frozen=True)
class Axis:
    """A scale. Its steps are decimal numbers, so that labels are exact: 0.1 × 3 is 0.3."""

    step: Decimal
    below: int  # steps below zero
    above: int

    @property
    def high(self) -> float:
        return float(self.above * self.step)

    def part(self, value: float) -> float:
        """Returns the position of `value`; values outside are put on the edge."""
        steps = value / float(self.step)
        return min(max((steps + self.below) / (self.below + self.above), 0.0), 1.0)

    @property
    def marks(self) -> Iterator[Mark]:
        for number in range(-self.below, self.above + 1):
            place = (number + self.below) / (self.below + self.above)
            yield Mark(exact_number(number * self.step), place)


def axis(lowest: float, highest: float) -> Axis:
    """Returns a scale from `lowest` to `highest` that contains zero; from 0 to 1 if both are zero or not finite."""
    below, above = _size(-lowest), _size(highest)
    if not (below or above):
        above = Decimal(1)
    step = nice_step(max(below, above))
    return Axis(step, _steps(below, step), _steps(above, step))


def _size(value: float) -> Decimal:
    """Returns the value; 0 if it is not finite, or so small that a step of it has no float."""
    return Decimal(value) if isfinite(value) and value > LEAST else Decimal(0)


def nice_step(most: Decimal) -> Decimal:
    """Returns the smallest of 1, 2 or 5 times a power of ten of which `MOST_STEPS` reach `most`."""
    power = Decimal(1).scaleb((most / MOST_STEPS).adjusted())
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor * MOST_STEPS >= most)


def _steps(size: Decimal, step: Decimal) -> int:
    return int((size / step).to_integral_value(ROUND_CEILING))
