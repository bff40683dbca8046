"""The marks of a chart: the places that say their values when a user points at them or reaches them by keyboard.

A mark may link to the jobs behind its values. static/js/chart.js shows the text of the mark; the tag `chart_marks` of
portal/templatetags/figures.py renders the marks above the picture.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class ChartMark:
    """A place of a chart, with the text that says its values and the address of the jobs behind them; "" for none.

    The place is a rectangle in SVG lengths, such as "12.5%", or the SVG path of a line.
    """

    text: str
    x: str = "0"
    width: str = "100%"
    y: str = "0"
    height: str = "100%"
    href: str = ""
    path: str = ""


def columns(values: Iterable[tuple[str, str]]) -> list[ChartMark]:
    """Returns the marks of a chart whose values are columns of equal width, from left to right, as (text, address)."""
    texts = list(values)
    width = 100 / max(1, len(texts))
    return [
        ChartMark(text, x=f"{place * width:.3f}%", width=f"{width:.3f}%", href=href)
        for place, (text, href) in enumerate(texts)
    ]
