"""Computes the geometry of the charts in the operators' reports.

Positions and widths are in per cent of the chart's width. Templates add the HTML and styles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.utils.timezone import localtime

from accounting.core.wording import fixed, percent
from accounting.reports.utilisation import Use
from portal.axis import axis
from portal.jobs.filters import jobs_in
from portal.marks import ChartMark, columns
from portal.reports.index_chart import IndexChart, draw_lines
from portal.reports.operations.tables import WASTE_WORDS, WEEKDAYS, Demand, GpuHeld
from scheduling.reports.job_waste import CAUSES, Wasted

ROW, LABEL = 24, 8.0  # height of a row in pixels; width of the row's label in per cent


@dataclass(frozen=True)
class HeatCell:
    """A cell of a heat map. `part`, from 0 to 1, determines how dark the cell is; None means that the value is
    unknown."""

    x: float
    width: float
    y: int
    part: float | None
    title: str

    @property
    def opacity(self) -> str:
        return f"{0.06 + 0.94 * (self.part or 0.0):.3f}"


@dataclass(frozen=True)
class Week:
    cells: Sequence[HeatCell]
    rows: Sequence[tuple[str, int]]  # each weekday with the y position of its text
    columns: Sequence[tuple[str, float]]
    summary: str

    @property
    def marks(self) -> list[ChartMark]:
        return heat_marks(self.cells)

    @property
    def height(self) -> int:
        return ROW * (len(WEEKDAYS) + 1)


def draw_week(week: Mapping[tuple[int, int], Use]) -> Week:
    """Returns a heat map of the week, with a row for each weekday and a column for each hour.

    The larger the fraction of GPUs that jobs held, the darker the cell.
    """
    step = (100 - LABEL) / 24
    cells = []
    for day, name in enumerate(WEEKDAYS, start=1):
        for hour in range(24):
            use = week.get((day, hour))
            held, busy = (use.part_held, use.part_busy) if use else (None, None)
            told = (
                "no closed hour in this period"
                if held is None or busy is None
                else f"{percent(held)} of GPUs held, {percent(busy)} busy"
            )
            title = f"{name} {hour:02}:00: {told}"
            cells.append(HeatCell(LABEL + hour * step, step, (day - 1) * ROW, held, title))
    known = sorted((cell for cell in cells if cell.part is not None), key=lambda cell: cell.part or 0.0)
    if not known:
        summary = "No hour has been closed yet"
    elif known[-1].part == known[0].part:
        which = "The only hour" if len(known) == 1 else "The same use in each hour"
        summary = f"{which}: {known[0].title}"
    else:
        summary = f"Highest use: {known[-1].title}. Lowest use: {known[0].title}"
    return Week(
        cells,
        [(name[:3], (day + 1) * ROW - 8) for day, name in enumerate(WEEKDAYS)],
        [(f"{hour:02}", LABEL + (hour + 0.5) * step) for hour in range(0, 24, 3)],
        summary,
    )


def draw_demand(demand: Sequence[Demand]) -> IndexChart:
    """Returns a line chart with three lines, each an average number of GPUs: those that jobs wanted, the usable ones,
    and those that jobs held.

    Usable GPUs are all GPUs except those that were drained, down or used outside Fairlot. `demand` has these amounts
    for each interval.
    """
    series: dict[str, Sequence[float | None]] = {
        name: [_gpus(one, name) for one in demand] for name in ("wanted", "usable", "held")
    }
    most = max((value for values in series.values() for value in values if value is not None), default=0.0)
    return draw_lines(series, axis(0.0, round(most, 9)))


def demand_marks(demand: Sequence[Demand]) -> list[ChartMark]:
    """Returns a mark for each interval, with its average numbers of GPUs and the address of the jobs behind them."""
    return columns((_in_words(one), jobs_in(one.begins, one.ends)) for one in demand)


def _in_words(one: Demand) -> str:
    gpus = ((name, _gpus(one, name)) for name in ("wanted", "usable", "held"))
    words = ", ".join(f"{name} {'unknown' if value is None else fixed(value, 1)}" for name, value in gpus)
    return f"{localtime(one.begins):%-d %b %H:%M} to {localtime(one.ends):%-d %b %H:%M}, GPUs: {words}"


def heat_marks(cells: Sequence[HeatCell], height: int = ROW - 1) -> list[ChartMark]:
    return [
        ChartMark(
            cell.title, x=f"{cell.x:.3f}%", width=f"{cell.width:.3f}%", y=str(cell.y), height=str(height)
        )
        for cell in cells
    ]


def _gpus(one: Demand, name: str) -> float | None:
    value = getattr(one, name)
    return None if value is None else float(value) / (one.ends - one.begins).total_seconds()


def node_cells(gpus: Sequence[GpuHeld]) -> list[HeatCell]:
    """Returns a heat map cell for each GPU of a node. Its value is the fraction of time in which jobs held the GPU."""
    width = 100 / len(gpus) if gpus else 0.0
    return [
        HeatCell(
            width * place,
            width,
            0,
            one.part,
            f"GPU {one.gpu}: {'unknown' if one.part is None else f'held {percent(one.part)} of the time'}",
        )
        for place, one in enumerate(gpus)
    ]


def waste_parts(row: Wasted, most: float) -> list[tuple[str, str, float, float, float]]:
    """Returns the parts of one bar, as tuples (cause of the waste, label, GPU-seconds, start, width).

    Start and width are in per cent of the widest bar, which stands for `most` GPU-seconds.
    """
    at, parts = 0.0, []
    for cause in CAUSES:
        lost = float(getattr(row, cause))
        width = lost / most * 100 if most else 0.0
        if width:
            parts.append((cause, WASTE_WORDS[cause], lost, at, width))
        at += width
    return parts
