"""Computes the chart of a sweep: parallel coordinates, with an axis for each parameter and one for the metric.

Each member is a line. The shapes are in an SVG view box of `WIDTH` × `HEIGHT` units, which the browser stretches.
Labels are not part of the view box; their positions are in per cent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from django.urls import reverse

from portal.marks import ChartMark
from scheduling.models import Sweep, SweepMember
from scheduling.sweeps.parameters import Value, text_of

WIDTH, HEIGHT = 1000, 1000
MOST_AXES = 7  # of parameters
MOST_LINES = 300  # the best members
BEST = 0.1  # part of the members that are drawn as the best ones
WIDE = 100  # a range in which the highest value is this many times the lowest one has a logarithmic axis


@dataclass(frozen=True)
class Scale:
    """One axis: the position of each value, and the labels at its ends.

    - `values`: all values on the axis.
    - `by_ratio`: whether they were drawn so that ratios count; the axis is logarithmic then, however short it is.
    """

    name: str
    values: Sequence[Value]
    by_ratio: bool = False

    @property
    def numbers(self) -> list[float]:
        return [float(value) for value in self.values if isinstance(value, int | float)]

    @property
    def is_numeric(self) -> bool:
        return len(self.numbers) == len(self.values)

    @property
    def is_logarithmic(self) -> bool:
        if not self.is_numeric or min(self.numbers) <= 0:
            return False
        return self.by_ratio or max(self.numbers) >= WIDE * min(self.numbers)

    @property
    def texts(self) -> list[str]:
        """Returns the distinct values of an axis without numbers, in order."""
        return sorted({text_of(value) for value in self.values})

    @property
    def top(self) -> str:
        return f"{max(self.numbers):.4g}" if self.is_numeric else self.texts[-1]

    @property
    def bottom(self) -> str:
        return f"{min(self.numbers):.4g}" if self.is_numeric else self.texts[0]

    def parts(self) -> list[float]:
        """Returns the position of each value on the axis, from 0 at the bottom to 1 at the top."""
        if not self.is_numeric:
            places = {text: place for place, text in enumerate(self.texts)}
            return [places[text_of(value)] / max(1, len(places) - 1) for value in self.values]
        found = [math.log(one) for one in self.numbers] if self.is_logarithmic else self.numbers
        low, span = min(found), max(found) / 2 - min(found) / 2
        return [0.5 if span == 0 else (one / 2 - low / 2) / span for one in found]


@dataclass(frozen=True)
class Axis:
    name: str
    x: float
    percent: float
    top: str
    bottom: str
    is_logarithmic: bool


@dataclass(frozen=True)
class Chart:
    axes: list[Axis]
    lines: list[tuple[str, bool]]  # path, and whether the member is one of the best
    marks: list[ChartMark]  # one for each member, the best first
    drawn: int
    best: int
    width: int = WIDTH
    height: int = HEIGHT
    box: str = f"0 0 {WIDTH} {HEIGHT}"


def draw(sweep: Sweep, best_members: Sequence[SweepMember]) -> Chart | None:
    """Returns the chart of the best members, the best first; None if fewer than two members have a value of the sweep's
    metric."""
    members = best_members[:MOST_LINES]
    if len(members) < 2:
        return None
    drawn = sweep.parameters.get("random", {})
    scales = [
        Scale(
            name,
            [member.parameters[name] for member in members],
            by_ratio=drawn.get(name, {}).get("distribution") == "log_uniform",
        )
        for name in sweep.names[:MOST_AXES]
    ]
    if not scales:
        scales = [Scale("index", [member.index for member in members])]
    scales.append(Scale(sweep.metric, [member.metrics[sweep.metric] for member in members]))
    columns = [scale.parts() for scale in scales]
    axes = [
        Axis(
            scale.name,
            _x(place, len(scales)),
            round(100 * place / (len(scales) - 1), 2),
            scale.top,
            scale.bottom,
            scale.is_logarithmic,
        )
        for place, scale in enumerate(scales)
    ]
    best = max(1, round(len(members) * BEST))
    paths = [_path([column[row] for column in columns]) for row in range(len(members))]
    # The best lines are drawn last, above the others.
    lines = [(path, row < best) for row, path in reversed(list(enumerate(paths)))]
    marks = [
        ChartMark(_in_words(member, sweep), href=_address(member, sweep), path=path)
        for member, path in zip(members, paths, strict=True)
    ]
    return Chart(axes, lines, marks, len(members), best)


def _in_words(member: SweepMember, sweep: Sweep) -> str:
    values = {name: text_of(member.parameters[name]) for name in sweep.names[:MOST_AXES]}
    told = [f"{name} {value}" for name, value in values.items()]
    return (
        f"Member {member.index}: {', '.join([*told, f'{sweep.metric} {member.metrics[sweep.metric]:.4g}'])}"
    )


def _address(member: SweepMember, sweep: Sweep) -> str:
    return reverse("job", args=[member.job_id]) if member.job_id else reverse("sweep", args=[sweep.pk])


def _x(place: int, count: int) -> float:
    return round(WIDTH * place / (count - 1), 1)


def _path(parts: Sequence[float]) -> str:
    points = (f"{_x(place, len(parts)):g},{HEIGHT * (1 - part):.0f}" for place, part in enumerate(parts))
    return "M" + "L".join(points)
