"""Sums up samples of metrics: how many values there were, their sum, the lowest, the highest and the last one.

Summaries of parts of a time add up to the summary of the whole time, so samples can be rolled up step by step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

WINDOW = 10  # seconds that one sample of a job sums up
LARGEST = 1e100  # larger values are left out, so that no sum overflows


class Summary(NamedTuple):
    """The values of one metric in a part of time. `size` is their number, at least 1."""

    size: int
    total: float
    low: float
    high: float
    last: float

    @property
    def mean(self) -> float:
        return self.total / self.size


def is_usable(value: float) -> bool:
    """Returns whether a value can be stored: neither NaN nor infinite nor absurdly large."""
    return math.isfinite(value) and abs(value) <= LARGEST


def of_value(value: float) -> Summary:
    return Summary(1, value, value, value, value)


def merged(earlier: Summary | None, later: Summary) -> Summary:
    """Returns the summary of both. `earlier` is None if there is nothing before `later`."""
    if earlier is None:
        return later
    return Summary(
        earlier.size + later.size,
        earlier.total + later.total,
        min(earlier.low, later.low),
        max(earlier.high, later.high),
        later.last,
    )


def add_all(sums: dict[str, Summary], values: Mapping[str, Summary]) -> None:
    """Adds the summaries of a later time to `sums`, by name."""
    for name, value in values.items():
        sums[name] = merged(sums.get(name), value)


def of_values(values: Iterable[float]) -> Summary | None:
    """Returns the summary of all values, in order; None if there are none."""
    found: Summary | None = None
    for value in values:
        found = merged(found, of_value(value))
    return found


class Windows:
    """Collects values of several keys into windows of WINDOW seconds. All times are seconds on the same clock."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[int, dict[str, Summary]]] = {}
        self._over: list[tuple[str, int, dict[str, Summary]]] = []

    def add(self, key: str, at: float, values: Mapping[str, float]) -> None:
        """Adds the values that were measured at the time `at`. Leaves out values that cannot be stored."""
        number = int(at // WINDOW)
        known = self._open.get(key)
        if known is None or known[0] != number:
            if known is not None:
                self._over.append((key, *known))
            known = self._open[key] = number, {}
        add_all(known[1], {name: of_value(value) for name, value in values.items() if is_usable(value)})

    def take(self, now: float) -> Iterator[tuple[str, int, dict[str, Summary]]]:
        """Yields the windows that are over, each once, as tuples (key, number, summaries). The window with the number n
        begins at n × WINDOW."""
        number = int(now // WINDOW)
        for key in [key for key, (window, _) in self._open.items() if window != number]:
            self._over.append((key, *self._open.pop(key)))
        over, self._over = self._over, []
        yield from (one for one in over if one[2])
