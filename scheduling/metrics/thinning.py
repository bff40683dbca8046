"""Decides which points of a series by step are kept, so that each series has a bounded number of them.

A series keeps every step until it has MOST points. Then the steps are divided into intervals of one width, and of each
interval only the first step is kept. The width is a power of two times the shortest distance between two steps, so the
points of a program that reports regularly stay evenly apart. Each time the series is full again, the width doubles.
The first point is always kept, and the last one is remembered beside the series (Kept.last).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, Self

MOST = 1000  # points of one metric
LARGEST_STEP = 1e15  # larger numbers are no steps; whole numbers up to here are exact
FINEST = 2**30  # the most intervals in the range of a series, so that few doublings make them wide enough


class Value(NamedTuple):
    """What a program reported at a step. `at` is when, in seconds since 1970."""

    value: float
    at: float


Points = Mapping[float, Value]  # by step


def interval_of(step: float, origin: float, width: float) -> float:
    """Returns the number of the interval that contains the step."""
    number = (step - origin) / width + 1e-6  # fractions of epochs are not exact
    return float(math.floor(min(max(number, -1e300), 1e300)))


def firsts(steps: Iterable[float], origin: float, width: float) -> list[float]:
    """Returns the first of the ascending steps in each interval."""
    found: list[float] = []
    before = None
    for step in steps:
        number = interval_of(step, origin, width)
        if number != before:
            found.append(step)
        before = number
    return found


def spread(
    steps: Sequence[float], most: int, *, origin: float | None = None, width: float = 0.0
) -> tuple[list[float], float]:
    """Returns at most `most` of the ascending, distinct steps, evenly apart, with the first one; and the width of the
    intervals, 0 if all steps are kept. `width` is that of an earlier call for the same series."""
    if len(steps) <= most:
        return list(steps), width
    start = steps[0] if origin is None else origin
    if not width:
        width = max(min(b - a for a, b in pairwise(steps)), (steps[-1] - steps[0]) / FINEST)
    kept = firsts(steps, start, width)
    while len(kept) > most:
        width *= 2
        kept = firsts(kept, start, width)
    return kept, width


def drawn(steps: Sequence[float], most: int) -> list[float]:
    """Returns at most `most` of the ascending, distinct steps, evenly apart, with the first and the last one."""
    if len(steps) <= most:
        return list(steps)
    kept, _ = spread(steps[:-1], max(most - 1, 1))
    return [*kept, steps[-1]]


@dataclass
class Change:
    """What a store must do: write `new`, and write those of `known` whose steps it has already."""

    new: dict[float, Value] = field(default_factory=dict)
    known: dict[float, Value] = field(default_factory=dict)


@dataclass
class Kept:
    """What is known of the stored points of one metric: at most `count`, between the steps `low` and `high`."""

    count: int = 0
    low: float = 0.0
    high: float = 0.0
    origin: float = 0.0
    width: float = 0.0  # of the intervals; 0 while every step is kept
    last: tuple[float, Value] | None = None  # the highest step

    @classmethod
    def restored(cls, stored: Sequence[Any]) -> Self:
        count, low, high, origin, width, last = stored
        return cls(count, low, high, origin, width, (last[0], Value(*last[1:])) if last else None)

    def stored(self) -> list[Any]:
        last = [self.last[0], *self.last[1]] if self.last else None
        return [self.count, self.low, self.high, self.origin, self.width, last]

    def take(self, points: Points) -> Change:
        """Adds points, and returns what the store must do. Values of known steps replace the earlier ones."""
        change = Change()
        for step, value in points.items():
            if self.last is None or step >= self.last[0]:
                self.last = step, value
            if self._admits(step):
                change.new[step] = value
                self.low = min(self.low, step) if self.count else step
                self.high = max(self.high, step) if self.count else step
                self.count += 1
            elif step <= self.high:  # later steps of the same interval are not stored
                change.known[step] = value
        return change

    @property
    def is_full(self) -> bool:
        return self.count > MOST

    def thin(self, steps: Sequence[float]) -> list[float]:
        """Returns those of the ascending steps, all that are stored or to be stored, that are kept."""
        if not self.width:
            self.origin = steps[0]
        # Fewer than MOST, so that the series is not full again at once.
        most = MOST * 3 // 4 if len(steps) > MOST else MOST
        kept, self.width = spread(steps, most, origin=self.origin, width=self.width)
        self.count, self.low, self.high = len(kept), kept[0], kept[-1]
        return kept

    def _admits(self, step: float) -> bool:
        if not self.width or not self.count:
            return True
        number, low, high = (interval_of(one, self.origin, self.width) for one in (step, self.low, self.high))
        return number > high or number < low
