"""Computes line charts over time as SVG paths, with gaps where values are unknown. Templates add the HTML and
styles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from portal.axis import Axis, Mark, axis

HEIGHT = 100


@dataclass(frozen=True)
class IndexChart:
    """A line chart as SVG paths. The view box has `width` × `height` units. In each line, one value takes one unit of
    the width."""

    lines: dict[str, str]  # the SVG path of each series by its name
    width: int
    scale: Axis
    height: int = HEIGHT

    @property
    def grid(self) -> list[tuple[Mark, float]]:
        """Returns each tick mark of the value axis with its y position in the view box."""
        return [(mark, _y(mark.part)) for mark in self.scale.marks]


def draw_lines(series: dict[str, Sequence[float | None]], scale: Axis) -> IndexChart:
    """Returns a chart with one line for each series. All series must have the same length.

    A value outside `scale` is drawn at the nearer edge.
    """
    width = max((len(values) for values in series.values()), default=0)
    return IndexChart({name: _path(values, scale) for name, values in series.items()}, max(width, 1), scale)


def draw_indices(series: dict[str, Sequence[float | None]]) -> IndexChart:
    return draw_lines(series, axis(0.0, 1.0))


def _path(values: Sequence[float | None], scale: Axis) -> str:
    """Returns an SVG path with a horizontal line of one unit for each value. A None becomes a gap."""
    steps, drawing = [], False
    for x, value in enumerate(values):
        if value is None:
            drawing = False
            continue
        y = _y(scale.part(value))
        steps.append(f"{f'V{y:g}' if drawing else f'M{x},{y:g}'}H{x + 1}")
        drawing = True
    return "".join(steps)


def _y(part: float) -> float:
    return round((1 - part) * HEIGHT, 2)
