"""Computes the shapes of the share chart: stacked areas above and below a zero line. Templates add the HTML and styles.

The shapes are in an SVG view box of `POINTS` × `HEIGHT` units, which the browser stretches to the page's width. Labels
are not part of the SVG, so that their text is not stretched. Their positions are in per cent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from accounting.core.wording import fixed
from portal.axis import Axis, Mark, axis
from portal.jobs.filters import jobs_in
from portal.marks import ChartMark, columns
from scheduling.core.amounts import Amounts
from scheduling.shares.series import Series

HEIGHT = 1000
ABOVE = ("own", "bought", "borrowed")  # received GPU time, by origin
ALWAYS = ("entitled", "received")  # said of each point, also if they are 0
BELOW = ("lent", "sold", "unused")  # entitled GPU time that the team did not use
LABELS = {
    "own": "GPUs received from the team's own share",
    "bought": "GPUs bought in trades",
    "borrowed": "GPUs borrowed from other teams",
    "lent": "GPUs lent to other teams (shown below zero)",
    "sold": "GPUs sold in trades (shown below zero)",
    "unused": "GPUs that the team left unused (shown below zero)",
}


@dataclass(frozen=True)
class Layer:
    name: str
    path: str

    @property
    def label(self) -> str:
        return LABELS[self.name]


@dataclass(frozen=True)
class Chart:
    series: Series
    layers: list[Layer]
    entitled: str
    scale: Axis
    width: int
    height: int = HEIGHT

    def marks(self, times: Sequence[datetime], ends: datetime, *, team: str) -> list[ChartMark]:
        """Returns a mark for each point, with its average numbers of GPUs and the address of the jobs behind it.

        `times`: the begin of each point; the last one lasts until `ends`. `team`: the slug of the team.
        """
        kind = self.series.generation.name
        bounds = zip(times, [*times[1:], ends], self.series.points, strict=True)
        return columns(
            (_in_words(a, b, at), jobs_in(a, b, team=team, generation=kind)) for a, b, at in bounds
        )

    @property
    def ticks(self) -> list[tuple[Mark, float]]:
        """Returns pairs (tick mark, vertical position in the view box)."""
        return [(mark, height_of(mark.part)) for mark in self.scale.marks]

    @property
    def zero(self) -> float:
        return height_of(self.scale.part(0.0))


def draw(series: Series, *, seconds_per_point: float) -> Chart:
    """Returns the share chart of one generation, from the GPU-seconds in `series`.

    The chart shows average numbers of GPUs: the GPU-seconds of each point divided by `seconds_per_point`.
    """
    parts = {
        name: [amount / seconds_per_point for amount in amounts] for name, amounts in _stack(series).items()
    }
    entitled = [point.entitled / seconds_per_point for point in series.points]
    # Rounded, because floating-point sums in another order differ in the last digits.
    received = round(max([*entitled, *_tops(parts, ABOVE)]), 9)
    given = round(max(_tops(parts, BELOW)), 9)
    # If the amounts below zero are too small to see, the axis has no part below zero.
    scale = axis(-given if given > received / 200 else 0.0, received)

    def y(value: float) -> float:
        return height_of(scale.part(value))

    layers = [
        *_layers(parts, ABOVE, sign=1, y=y),
        *_layers(parts, BELOW, sign=-1, y=y),
    ]
    return Chart(series, layers, _line([y(value) for value in entitled]), scale, len(series.points))


def _in_words(begins: datetime, ends: datetime, point: Amounts) -> str:
    seconds = (ends - begins).total_seconds()
    parts = {"entitled": point.entitled, "received": point.received, **_split(point)}
    words = [
        f"{name} {fixed(amount / seconds, 1)}" for name, amount in parts.items() if amount or name in ALWAYS
    ]
    return f"{begins:%-d %b %H:%M} to {ends:%H:%M}, GPUs: {', '.join(words)}"


def height_of(part: float) -> float:
    return round((1 - part) * HEIGHT, 1)


def _stack(series: Series) -> dict[str, list[float]]:
    """Returns the GPU-seconds of each layer of the chart at each point, by name of the layer.

    The layers named in ABOVE are above the zero line and add up to the received GPU time. Those named in BELOW are
    below the zero line.
    """
    split = [_split(point) for point in series.points]
    return {name: [part[name] for part in split] for name in (*ABOVE, *BELOW)}


def _split(point: Amounts) -> dict[str, float]:
    borrowed = min(point.borrowed, point.received)
    bought = min(point.bought, point.received - borrowed)
    return {
        "own": point.received - borrowed - bought,
        "bought": bought,
        "borrowed": borrowed,
        "lent": point.lent,
        "sold": point.sold,
        "unused": point.unused,
    }


def _tops(parts: dict[str, list[float]], names: Sequence[str]) -> list[float]:
    return [sum(values) for values in zip(*(parts[name] for name in names), strict=True)]


def _layers(
    parts: dict[str, list[float]], names: Sequence[str], *, sign: int, y: Callable[[float], float]
) -> list[Layer]:
    base = [0.0] * len(parts[names[0]])
    layers = []
    for name in names:
        top = [b + sign * value for b, value in zip(base, parts[name], strict=True)]
        if any(parts[name]):
            layers.append(Layer(name, _area([y(v) for v in base], [y(v) for v in top])))
        base = top
    return layers


def _line(ys: Sequence[float]) -> str:
    """Returns the SVG path of a step line. Each step is one unit wide. `ys` has the vertical position of each step."""
    steps = "".join(
        f"H{x + 1}" if x and ys[x - 1] == value else f"V{value:g}H{x + 1}" for x, value in enumerate(ys)
    )
    return f"M0,{ys[0]:g}{steps}"


def _area(base: Sequence[float], top: Sequence[float]) -> str:
    """Returns the SVG path of the area between two step lines, `base` and `top`."""
    back = "".join(f"V{value:g}H{x}" for x, value in reversed(list(enumerate(base))))
    return f"{_line(top)}{back}Z"
