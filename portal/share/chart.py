"""The share picture as geometry: stacked steps above and below a zero line. No HTML, no styles here.

The plot is drawn in a view box of `POINTS` × `HEIGHT` units that the browser stretches, and its labels
are placed in per cent, so that text keeps its size at every width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from portal.share.queries import Series
from scheduling.amounts import Amounts

HEIGHT = 1000
ABOVE = ("own", "bought", "borrowed")  # what was received, by where it came from
BELOW = ("lent", "sold", "unused")  # what was given up
LABELS = {
    "own": "received of our own",
    "bought": "received, bought",
    "borrowed": "received, borrowed",
    "lent": "lent (below zero)",
    "sold": "sold (below zero)",
    "unused": "used by nobody (below zero)",
}
# Where the plot lies in the picture, in per cent of its height; the rest is for the time axis.
TOP, BOTTOM = 5.0, 86.0


@dataclass(frozen=True)
class Layer:
    name: str
    path: str

    @property
    def label(self) -> str:
        return LABELS[self.name]


@dataclass(frozen=True)
class Tick:
    label: str
    y: float  # in the plot
    percent: float  # of the picture's height


@dataclass(frozen=True)
class Chart:
    series: Series
    layers: list[Layer]
    entitled: str
    ticks: list[Tick]
    width: int
    height: int = HEIGHT

    @property
    def zero(self) -> float:
        return next(tick.y for tick in self.ticks if tick.label == "0")


def draw(series: Series, *, seconds_per_point: float) -> Chart:
    """One generation's picture, in GPUs on average over each point."""
    parts = {
        name: [amount / seconds_per_point for amount in amounts] for name, amounts in _stack(series).items()
    }
    entitled = [point.entitled / seconds_per_point for point in series.points]
    # Rounded, as sums of the same parts in another order differ in their last digits.
    highest = round(max([*entitled, *_tops(parts, ABOVE)]), 9)
    lowest = round(max(_tops(parts, BELOW)), 9)
    step = nice_step(max(highest, lowest, 1.0))
    # A trace below zero that nobody could see needs no half of the picture.
    up, down = _ceil(highest, step) or step, _ceil(lowest, step) if lowest > step / 50 else 0.0

    def y(value: float) -> float:
        return round(min((up - value) / (up + down) * HEIGHT, HEIGHT), 1)

    ticks = [
        Tick(f"{abs(value):g}", y(value), round(TOP + y(value) / HEIGHT * (BOTTOM - TOP), 2))
        for value in (step * i for i in range(-round(down / step), round(up / step) + 1))
    ]
    layers = [
        *_layers(parts, ABOVE, sign=1, y=y),
        *_layers(parts, BELOW, sign=-1, y=y),
    ]
    return Chart(series, layers, _line([y(value) for value in entitled]), ticks, len(series.points))


def _stack(series: Series) -> dict[str, list[float]]:
    """What was received, split by origin so that the parts add up to it, and what was given up."""
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
    """A step line: each value holds for one unit of width."""
    steps = "".join(
        f"H{x + 1}" if x and ys[x - 1] == value else f"V{value:g}H{x + 1}" for x, value in enumerate(ys)
    )
    return f"M0,{ys[0]:g}{steps}"


def _area(base: Sequence[float], top: Sequence[float]) -> str:
    """Between two step lines: along the top to the right, along the base back."""
    back = "".join(f"V{value:g}H{x}" for x, value in reversed(list(enumerate(base))))
    return f"{_line(top)}{back}Z"


def nice_step(highest: float) -> float:
    """A round distance of at most four grid lines up to `highest`."""
    power = 1.0
    while power * 10 * 4 <= highest:
        power *= 10
    while power * 4 > highest * 10:
        power /= 10
    return next(power * factor for factor in (1, 2, 5, 10, 20, 50, 100) if power * factor * 4 >= highest)


def _ceil(value: float, step: float) -> float:
    return 0.0 if value <= 1e-9 else -(-value // step) * step
