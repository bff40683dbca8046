"""The value axis of a chart, with tick marks at round numbers in equal steps, and their labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from math import isfinite

from accounting.core.wording import exact_number

LEAST = 1e-300
MOST_STEPS = 4  # on the side of zero that has more steps
# The vertical range of each chart's plot, in per cent of the picture's height; the time axis is below.
TOP, BOTTOM = 5.0, 86.0


@dataclass(frozen=True)
class Mark:
    """A tick mark with its label. `part` is the mark's height in the plot, from 0 (lower edge) to 1 (upper edge)."""

    label: str
    part: float

    @property
    def percent(self) -> float:
        """Returns the mark's distance from the upper edge of the whole picture, in per cent of the picture's height.

        The picture contains the plot, a margin above the plot, and the time axis below it.
        """
        return round(TOP + (1 - self.part) * (BOTTOM - TOP), 2)


@dataclass(frozen=True)
class Axis:
    """The value axis of a chart. The step between tick marks is a Decimal, so that labels are exact: 3 × 0.1 gives
    0.3."""

    step: Decimal
    below: int  # number of steps below zero
    above: int

    @property
    def high(self) -> float:
        return float(self.above * self.step)

    def part(self, value: float) -> float:
        """Returns the position of `value` on the axis, from 0 (lower end) to 1 (upper end).

        A value outside the axis gets the position of the nearer end.
        """
        steps = value / float(self.step)
        return min(max((steps + self.below) / (self.below + self.above), 0.0), 1.0)

    @property
    def marks(self) -> Iterator[Mark]:
        for number in range(-self.below, self.above + 1):
            place = (number + self.below) / (self.below + self.above)
            yield Mark(exact_number(number * self.step), place)


def axis(lowest: float, highest: float) -> Axis:
    """Returns an axis that contains `lowest`, zero and `highest`.

    A value that is not finite counts as zero. If both values are zero, the axis goes from 0 to 1.
    """
    below, above = _size(-lowest), _size(highest)
    if not (below or above):
        above = Decimal(1)
    step = nice_step(max(below, above))
    return Axis(step, _steps(below, step), _steps(above, step))


def _size(value: float) -> Decimal:
    """Converts `value` to a Decimal. `value` is how far the data extend to one side of zero.

    Returns 0 for a value that is negative, not finite, or at most LEAST.
    """
    # A negative value means that all data are on the other side of zero. Floats cannot represent the steps of
    # an axis that is shorter than LEAST.
    return Decimal(value) if isfinite(value) and value > LEAST else Decimal(0)


def nice_step(most: Decimal) -> Decimal:
    """Returns the smallest round step with which an axis from 0 to `most` has at most MOST_STEPS steps.

    A round step is 1, 2 or 5 times a power of ten.
    """
    power = Decimal(1).scaleb((most / MOST_STEPS).adjusted())
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor * MOST_STEPS >= most)


def _steps(size: Decimal, step: Decimal) -> int:
    return int((size / step).to_integral_value(ROUND_CEILING))
