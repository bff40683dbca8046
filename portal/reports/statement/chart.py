"""Computes the geometry of a bar chart of GPU-hours per day. Templates add the HTML and styles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from accounting.core.wording import fixed
from accounting.reports.usage import UsageRow
from portal.axis import Mark, axis
from portal.marks import ChartMark


@dataclass(frozen=True)
class Bar:
    """A bar of the chart. Its position and size are in per cent of the plot."""

    label: str
    x: str
    width: str
    y: str
    height: str
    href: str


@dataclass(frozen=True)
class DayChart:
    bars: Sequence[Bar]
    ticks: Sequence[tuple[Mark, float]]  # each mark with its y position in per cent of the plot
    first: date
    last: date

    @property
    def marks(self) -> list[ChartMark]:
        """Returns a mark for each bar, as high as the plot, so that low bars are hit as well."""
        return [ChartMark(bar.label, x=bar.x, width=bar.width, href=bar.href) for bar in self.bars]


def draw_days(
    rows: Sequence[UsageRow], first: date, last: date, *, jobs_of: Callable[[date], str]
) -> DayChart | None:
    """Returns a chart with a bar for each day from `first` to `last` that has usage; None if no day has usage.

    If a day has usage in different currencies, their GPU-hours are added in one bar. `jobs_of` returns the
    address of the page with the jobs of a day.
    """
    hours: dict[date, float] = {}
    for row in rows:
        assert row.begins is not None  # noqa: S101 - a report by day says of which
        day = row.begins.date()
        hours[day] = hours.get(day, 0.0) + float(row.gpu_hours)
    most = max(hours.values(), default=0.0)
    if most <= 0:
        return None
    scale = axis(0.0, most)
    days = (last - first).days + 1
    bars = [
        _bar(
            first + timedelta(days=number),
            number,
            days,
            hours.get(first + timedelta(days=number), 0.0) / scale.high,
            scale.high,
            href=jobs_of(first + timedelta(days=number)),
        )
        for number in range(days)
    ]
    ticks = [(mark, round(100 - mark.part * 100, 2)) for mark in scale.marks]
    return DayChart([bar for bar in bars if bar.height != "0.000%"], ticks, first, last)


def _bar(day: date, number: int, days: int, part: float, top: float, *, href: str) -> Bar:
    return Bar(
        label=f"{day:%a, %-d %b %Y}: {fixed(part * top, 1)} GPU-h",
        x=f"{(number + 0.1) / days * 100:.3f}%",
        width=f"{0.8 / days * 100:.3f}%",
        y=f"{(1 - part) * 100:.3f}%",
        height=f"{part * 100:.3f}%",
        href=href,
    )
