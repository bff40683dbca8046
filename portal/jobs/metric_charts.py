"""Computes the charts of a job's metrics: one panel for each metric, all on the same time axis.

The shapes are in an SVG view box, which the browser stretches: with one unit of width for each window of time, or WIDTH
units for all steps. Labels are not part of the view box. Their positions are in per cent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, Decimal

from accounting.core.wording import exact_number
from portal.axis import nice_step
from scheduling.backends.summaries import Summary, merged
from scheduling.metrics.names import KINDS
from scheduling.metrics.reading import TIME, JobMetrics, Series
from scheduling.models import MetricStream

MOST_JOBS = 6  # that are compared, the first one included; there are as many colours
HEIGHT = 100
TOP = 4.0  # the margin above and below the plot, in per cent of the picture's height
MOST_LINES = 6  # as many as there are colours
MOST_PANELS = 24  # of metrics that the program reports
PERCENT = "%"
# Units of bytes on a value axis, and their names.
BYTES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))
MACHINE = MetricStream.Source.MACHINE
TITLES = {
    MetricStream.Source.OUTPUT: "Printed by the program",
    MetricStream.Source.EVENTS: "TensorBoard events",
}
Values = Mapping[float, float]  # by window or step
WIDTH = 1000  # of the view box of a chart over steps
MARGIN = 0.01  # part of that width on either side, so that the first and the last point are visible
FEW = 30  # points of a line over steps that are drawn as dots, too


@dataclass(frozen=True)
class TimeAxis:
    """An axis of `count` windows of time."""

    count: int
    name: str = TIME
    joins: bool = False  # whether lines pass over windows without values

    @property
    def width(self) -> int:
        return self.count

    @property
    def first(self) -> float:
        return 0

    @property
    def last(self) -> float:
        return max(self.count - 1, 0)

    def x(self, place: float) -> float:
        return place + 0.5


@dataclass(frozen=True)
class Steps:
    """An axis of the steps from `first` to `last`."""

    name: str
    first: float
    last: float
    joins: bool = True
    width: int = WIDTH
    margin: float = MARGIN

    def x(self, step: float) -> float:
        span = self.last - self.first
        part = (step - self.first) / span if span else 0.5
        return round(WIDTH * (MARGIN + part * (1 - 2 * MARGIN)), 2)


Axis = TimeAxis | Steps


@dataclass(frozen=True)
class Scale:
    """The value axis of a panel, from `low` to `high` with a mark each `step`."""

    low: Decimal
    step: Decimal
    steps: int

    @property
    def high(self) -> Decimal:
        return self.low + self.steps * self.step

    def y(self, value: float) -> float:
        part = (value - float(self.low)) / float(self.high - self.low)
        return round(HEIGHT * (1 - min(max(part, 0.0), 1.0)), 2)

    @property
    def marks(self) -> list[tuple[str, float]]:
        """Returns the label and the y position of each mark in the view box."""
        values = [self.low + number * self.step for number in range(self.steps + 1)]
        return [(_short(value), self.y(float(value))) for value in values]

    @property
    def labels(self) -> list[tuple[str, float]]:
        """Returns the label of each mark, and its position in per cent of the picture's height."""
        return [(label, round(TOP + y * (100 - 2 * TOP) / HEIGHT, 2)) for label, y in self.marks]


@dataclass(frozen=True)
class Line:
    label: str
    colour: int
    path: str
    dots: str
    values: Values
    last: str  # the last value, as text


@dataclass(frozen=True)
class Panel:
    """The chart of one metric. `band` is the path of the area between the lowest and the highest value, if it is
    drawn."""

    key: str
    title: str
    unit: str
    scale: Scale
    lines: list[Line]
    band: str = ""
    note: str = ""
    over: str = TIME

    @property
    def data(self) -> str:
        """Returns what hovering needs as JSON: for each line its values by window or step."""
        values = [
            {f"{place:.15g}": float(f"{value:.5g}") for place, value in line.values.items()}
            for line in self.lines
        ]
        return json.dumps(values, separators=(",", ":"))

    @property
    def description(self) -> str:
        """Returns the text for screen readers."""
        low, high = (number_with(float(end), self.unit) for end in (self.scale.low, self.scale.high))
        return f"{self.title} over {self.over}, on an axis from {low} to {high}"


@dataclass
class Charts:
    """The panels of one page. `groups` has the panels of each source."""

    axis: Axis
    groups: list[tuple[str, list[Panel]]] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)  # names of metrics without a panel


def draw(metrics: JobMetrics, axis: Axis) -> Charts:
    """Returns the charts of one job."""
    charts = Charts(axis)
    measured = [panel for metric in KINDS if (panel := _measured(metric, metrics.named(metric), axis))]
    if measured:
        charts.groups.append(("Measured by the cluster", measured))
    for source, title in TITLES.items():
        own = [one for one in metrics.series if one.source == source]
        panels = [
            panel_of(f"{source}-{one.name}", one.name, "", [("", one.points)], axis)
            for one in own[:MOST_PANELS]
        ]
        charts.hidden += [one.name for one in own[MOST_PANELS:]]
        if panels:
            charts.groups.append((title, panels))
    return charts


def draw_compared(jobs: Sequence[tuple[str, JobMetrics]], axis: Axis, *, only: str = "") -> Charts:
    """Returns the charts of several jobs, each a pair (label, metrics), with a line for each job in each panel.

    Axes of time must begin with the start of the job and have windows of the same length. With `only`, draws only the
    number of this name that the programs report.
    """
    charts = Charts(axis)
    sources = TITLES if only else {MACHINE: "Measured by the cluster", **TITLES}
    for source, title in sources.items():
        panels = []
        names = list(
            dict.fromkeys(one.metric for _, metrics in jobs for one in metrics.series if one.source == source)
        )
        if source == MACHINE:
            names = [name for name in KINDS if name in names]
        if only:
            names = [name for name in names if name == only]
        for name in names[:MOST_PANELS]:
            lines = [(label, _sum(metrics.named(name, source))) for label, metrics in jobs]
            kind = KINDS.get(name) if source == MACHINE else None
            label, unit = (kind.label, kind.unit) if kind else (name, "")
            some = [(one, points) for one, points in lines if points]
            note = "mean of all GPUs" if name.startswith("gpu_") and source == MACHINE else ""
            colours = [number for number, (_, points) in enumerate(lines) if points]
            panels.append(panel_of(f"{source}-{name}", label, unit, some, axis, note=note, colours=colours))
        charts.hidden += names[MOST_PANELS:]
        if panels:
            charts.groups.append((title, panels))
    return charts


def _sum(series: Sequence[Series]) -> dict[float, Summary]:
    found: dict[float, Summary] = {}
    for one in series:
        for place, point in one.points.items():
            found[place] = merged(found.get(place), point)
    return found


def _measured(metric: str, series: Sequence[Series], axis: Axis) -> Panel | None:
    if not series:
        return None
    kind = KINDS[metric]
    if len(series) <= MOST_LINES:
        lines = [(one.gpu, one.points) for one in sorted(series, key=lambda one: _natural(one.gpu))]
        return panel_of(metric, kind.label, kind.unit, lines, axis)
    note = f"mean and range of {len(series)} GPUs"
    return panel_of(metric, kind.label, kind.unit, [("mean", _sum(series))], axis, note=note, band=True)


def _natural(gpu: str) -> tuple[str, int]:
    node, _, index = gpu.rpartition("/")
    return node, int(index) if index.isdecimal() else 0


def panel_of(
    key: str,
    title: str,
    unit: str,
    lines: Sequence[tuple[str, Mapping[float, Summary]]],
    axis: Axis,
    *,
    note: str = "",
    band: bool = False,
    colours: Sequence[int] = (),
    from_zero: bool = False,
) -> Panel:
    """Returns the panel of one metric; `lines` are pairs (label, points). With `from_zero` the value axis begins at
    zero, as those of metrics do that Fairlot measures."""
    # One value in a window is drawn as it is; of several, their mean, with the area between lowest and highest.
    band = band or (len(lines) == 1 and any(point.low < point.high for point in lines[0][1].values()))
    points = [point for _, some in lines for point in some.values()]
    low = min(point.low if band else point.mean for point in points)
    high = max(point.high if band else point.mean for point in points)
    factor = 1.0
    if unit == "bytes":
        size, unit = unit_of_bytes(high)
        factor = 1 / size
    scale = scale_of(
        low * factor, high * factor, unit=unit, is_measured=from_zero or key in KINDS or "machine-" in key
    )
    drawn = []
    for number, (label, some) in enumerate(lines):
        values = {place: point.mean * factor for place, point in sorted(some.items())}
        last = some[max(some)].last * factor
        colour = (colours[number] if colours else number) % MOST_LINES + 1
        path, dots = _path(values, scale.y, axis), _dots(values, scale.y, axis)
        drawn.append(Line(label, colour, path, dots, values, number_with(last, unit)))
    area = _area(lines[0][1], factor, scale.y, axis) if band else ""
    return Panel(key, title, unit, scale, drawn, area, note, axis.name)


def scale_of(low: float, high: float, *, unit: str, is_measured: bool) -> Scale:
    """Returns a value axis that contains both values.

    The axis of a measured metric begins at zero. That of a metric of the program begins near the lowest value, because
    its changes matter.
    """
    if unit == PERCENT:
        return Scale(Decimal(0), Decimal(25), 4)
    if is_measured:
        low, high = 0.0, max(high, 0.0)
    lowest, highest = Decimal(repr(low)), Decimal(repr(high))
    # So small a range would only show rounding errors.
    if highest - lowest <= max(abs(lowest), abs(highest)) * Decimal("1e-9"):
        span = abs(highest) or Decimal(1)
        lowest, highest = (lowest if is_measured else lowest - span / 2), highest + span / 2
    step = nice_step(highest - lowest)
    first = (lowest / step).to_integral_value(ROUND_FLOOR)
    steps = int(-((first * step - highest) / step).to_integral_value(ROUND_FLOOR))
    return Scale(first * step, step, max(steps, 1))


def unit_of_bytes(most: float) -> tuple[int, str]:
    """Returns the size and the name of the unit in which `most` bytes are shown."""
    return next(one for one in BYTES if most >= one[0] or one[0] == 1)


def number_with(value: float, unit: str) -> str:
    """Returns a value with its unit, in at most four significant digits."""
    text = f"{value:.4g}"
    return f"{text} {unit}" if unit else text


def _short(value: Decimal) -> str:
    if value and not Decimal("1e-4") <= abs(value) < Decimal("1e6"):
        return f"{float(value):.3g}"
    return exact_number(value)


def _path(values: Values, y: Callable[[float], float], axis: Axis) -> str:
    """Returns the SVG path of a line through the points. On an axis of time it goes through the middles of the windows,
    with gaps where windows have no value."""
    parts, before = [], None
    for place, value in values.items():
        command = "L" if before is not None and (axis.joins or before == place - 1) else "M"
        parts.append(f"{command}{axis.x(place):g},{y(value):g}")
        before = place
    return "".join(parts)


def _dots(values: Values, y: Callable[[float], float], axis: Axis) -> str:
    """Returns the SVG path of the points that are drawn as dots: of a line over steps all if they are few; on an axis
    of time those that no line reaches, because the windows beside theirs have no value."""
    if axis.joins:
        drawn = list(values) if len(values) <= FEW else []
    else:
        drawn = [place for place in values if place - 1 not in values and place + 1 not in values]
    return "".join(f"M{axis.x(place):g},{y(values[place]):g}h0.01" for place in drawn)


def _area(points: Mapping[float, Summary], factor: float, y: Callable[[float], float], axis: Axis) -> str:
    """Returns the SVG path of the area between the lowest and the highest values, with gaps like those of the line."""
    parts, run = [], list[float]()
    for place in [*sorted(points), None]:
        if run and (place is None or not (axis.joins or place == run[-1] + 1)):
            tops = [f"{axis.x(one):g},{y(points[one].high * factor):g}" for one in run]
            bottoms = [f"{axis.x(one):g},{y(points[one].low * factor):g}" for one in reversed(run)]
            parts.append(f"M{'L'.join([*tops, *bottoms])}Z")
            run = []
        if place is not None:
            run.append(place)
    return "".join(parts)
