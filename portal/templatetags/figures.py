"""Template filters and tags for the figures on pages about shares, trades and reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from html import escape
from typing import Protocol

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from accounting.core import wording as amounts
from portal.marks import ChartMark
from portal.templatetags.fairlot import gpu_hours, gpu_time, moment
from scheduling.core.amounts import Amounts

register = template.Library()


@register.filter
def percent(part: float | None) -> str:
    """Formats a fraction in per cent: 0.834 becomes "83 %". Values below 10 % have two significant digits; "–" for
    None."""
    return "–" if part is None else amounts.percent(part)


class FigureCell(Protocol):
    """A cell of a report's table, with its text, the URL to which it links, and the heading of its column."""

    heading: str
    text: str
    href: str

    @property
    def style(self) -> str: ...


@register.simple_tag
def figure_cells(cells: Iterable[FigureCell]) -> SafeString:
    """Renders the cells of a table row.

    The HTML is built here and not in a template, because a report has thousands of cells and a template takes several
    times as long.
    """
    return format_html_join(
        "",
        '<td class="{}" data-label="{}">{}</td>',
        (
            (cell.style, cell.heading, format_html('<a href="{}">{}</a>', cell.href, cell.text))
            if cell.href
            else (cell.style, cell.heading, cell.text)
            for cell in cells
        ),
    )


@lru_cache(4096)  # most values are zero
def _cell(gpu_seconds: float) -> str:
    return f'<td class="number">{escape(gpu_hours(gpu_seconds))}</td>'


@register.simple_tag
def share_times(times: Iterable[datetime]) -> list[str]:
    """Renders the beginning of each row of `share_rows`: the cell with the time.

    It is rendered separately because the tables of all generations share it.
    """
    return [f"<tr><td>{moment(time)}</td>" for time in times]


@register.simple_tag
def share_rows(times: Iterable[str], points: Iterable[Amounts]) -> SafeString:
    """Renders the rows of the table that shows a share chart's figures, one row for each point of the chart.

    `times` comes from `share_times`. `points` has the amounts of each row. The HTML is built here and not in a
    template, because the table has hundreds of cells.
    """
    return SafeString(
        "".join(
            f"{time}{_cell(at.entitled)}{_cell(at.received)}{_cell(at.lent)}{_cell(at.unused)}"
            f"{_cell(at.borrowed)}{_cell(at.bought)}{_cell(at.sold)}</tr>"
            for time, at in zip(times, points, strict=True)
        )
    )


@register.simple_tag
def chart_marks(
    marks: Iterable[ChartMark], label: str, plot: str = "0 0 100% 100%", box: str = ""
) -> SafeString:
    """Renders the marks of a chart, above its picture. portal/marks.py says what they are.

    - `label`: the name of the group of marks.
    - `plot`: the place of the plot in the picture, as x, y, width and height.
    - `box`: the view box of marks that are paths.

    The HTML is built here and not in a template, because a chart has up to hundreds of marks.
    """
    shown = SafeString("".join(_mark(mark, place) for place, mark in enumerate(marks)))
    stretched = format_html(' viewBox="{}" preserveAspectRatio="none"', box) if box else ""
    return format_html(
        '<svg class="chart-marks" role="group" aria-label="{}" width="100%" height="100%">'
        '<svg x="{}" y="{}" width="{}" height="{}"{}>{}</svg></svg>',
        label, *plot.split(), stretched, shown,
    )  # fmt: skip


def _mark(mark: ChartMark, place: int) -> str:
    tab = 0 if place == 0 else -1
    shape = (
        f'<path d="{escape(mark.path)}"/>'
        if mark.path
        else f'<rect x="{mark.x}" y="{mark.y}" width="{mark.width}" height="{mark.height}"/>'
    )
    text = escape(mark.text)
    if mark.href:
        return f'<a data-mark tabindex="{tab}" href="{escape(mark.href)}" aria-label="{text}">{shape}</a>'
    return f'<g data-mark tabindex="{tab}" role="img" aria-label="{text}">{shape}</g>'


@register.filter
def part_marks(
    parts: Iterable[tuple[str, str, float, float | str, float | str]], name: str
) -> list[ChartMark]:
    """Returns the marks of a bar. `parts` has (key, label, GPU-seconds, start, width), and `name` says whose bar it
    is."""

    def length(value: float | str) -> str:
        return value if isinstance(value, str) else f"{value:.3f}%"

    return [
        ChartMark(f"{name}: {word} {gpu_time(seconds)}", x=length(at), width=length(width))
        for _, word, seconds, at, width in parts
    ]


@register.filter
def item(mapping: Mapping[str, object], key: str) -> object:
    """Returns `mapping[key]`. Templates need this if the key is in a variable, because `mapping.key` looks up the text
    "key".

    Raises KeyError for an unknown key.
    """
    return mapping[key]


@register.filter
def absolute(value: float | Decimal) -> float | Decimal:
    return -value if value < 0 else value


@register.filter
def hundredfold(part: float) -> str:
    """Returns a fraction as a percentage without the sign "%", such as "5" for 0.05, for an input field."""
    return f"{part * 100:g}"
