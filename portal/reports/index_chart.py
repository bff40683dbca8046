"""Indices from 0 to 1 over time as geometry: lines that break off where nothing is known. No HTML, no styles here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HEIGHT = 100
GRID = (0.0, 0.25, 0.5, 0.75, 1.0)
# Where the plot lies in the picture, in per cent of its height; the rest is for the time axis.
TOP, BOTTOM = 5.0, 86.0


@dataclass(frozen=True)
class GridLine:
    label: str
    y: float  # in the plot
    percent: float  # of the picture's height


@dataclass(frozen=True)
class IndexChart:
    """In a view box of `width` × `height` units, one of width for each stretch of time."""

    lines: dict[str, str]  # name → path
    width: int
    height: int = HEIGHT

    @property
    def grid(self) -> list[GridLine]:
        return [
            GridLine(f"{value:g}", _y(value), round(TOP + _y(value) / HEIGHT * (BOTTOM - TOP), 2))
            for value in GRID
        ]


def draw_indices(series: dict[str, Sequence[float | None]]) -> IndexChart:
    """One path a name; all series are of the same length. Values above 1 are drawn at 1."""
    width = max((len(values) for values in series.values()), default=0)
    return IndexChart({name: _path(values) for name, values in series.items()}, max(width, 1))


def _path(values: Sequence[float | None]) -> str:
    """Each value holds for one unit of width."""
    steps, drawing = [], False
    for x, value in enumerate(values):
        if value is None:
            drawing = False
            continue
        steps.append(f"{f'V{_y(value):g}' if drawing else f'M{x},{_y(value):g}'}H{x + 1}")
        drawing = True
    return "".join(steps)


def _y(value: float) -> float:
    return round((1 - min(max(value, 0.0), 1.0)) * HEIGHT, 2)
