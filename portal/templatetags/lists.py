"""Template tags of lists: the rows, and the links that narrow and widen a list: the address with one more value, or one
less."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django import template
from django.http import QueryDict
from django.template import RequestContext
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from portal.lists.cells import Code, Label, Link, Muted
from portal.lists.columns import Column
from portal.templatetags.fairlot import ago_at, chip

register = template.Library()
SEVERAL = {"label", "open"}  # parameters that may have several values
PLACES = ("page",)  # parameters that mean nothing in a list with other rows


@register.simple_tag(takes_context=True)
def narrowed(context: RequestContext, name: str, value: str) -> str:
    """Returns the query of the page's address with this value of the parameter `name`."""
    query = _query(context)
    if name not in SEVERAL:
        query[name] = value
    elif value not in query.getlist(name):
        query.appendlist(name, value)
    return f"?{query.urlencode(safe=',:')}"


@register.simple_tag(takes_context=True)
def widened(context: RequestContext, name: str, value: str) -> str:
    """Returns the query of the page's address without this value of the parameter `name`."""
    query = _query(context)
    rest = [one for one in query.getlist(name) if name in SEVERAL and one != value]
    query.setlist(name, rest)
    if not rest:
        del query[name]
    return f"?{query.urlencode(safe=',:')}"


@register.simple_tag(takes_context=True)
def only(context: RequestContext, name: str, value: str) -> str:
    """Returns the query of the page's address for the rows of one group alone, without groups."""
    query = _query(context)
    for place in ("group", "open"):
        query.pop(place, None)
    if name not in SEVERAL:
        query[name] = value
    elif value not in query.getlist(name):
        query.appendlist(name, value)
    return f"?{query.urlencode(safe=',:')}"


@register.simple_tag
def work_rows(
    one: str, rows: Iterable[tuple[int, Any]], heads: Sequence[tuple[str, Column]], *, picks: bool = False
) -> SafeString:
    """Renders the rows of a list of work. `one` begins their ids, and `heads` are the columns, the fixed ones first.

    With `picks`, a box before each row selects it.
    """
    now = timezone.now()
    return format_html_join(
        "\n",
        '<tr id="{}-{}">{}{}</tr>',
        (
            (
                one,
                key,
                _pick(key, row, heads[0][1]) if picks else "",
                SafeString("".join(_cell(column, row, now) for _, column in heads)),
            )
            for key, row in rows
        ),
    )


def _pick(key: int, row: Any, column: Column) -> SafeString:
    """Renders the cell with the box that selects a row. `column` has the row's name."""
    return format_html(
        '<td class="pick"><input type="checkbox" name="chosen" value="{}" form="selection" '
        'aria-label="Select {}"></td>',
        key,
        column.cell(row).text if column.cell else key,
    )


def _cell(column: Column, row: Any, now: datetime) -> SafeString:
    value = column.cell(row) if column.cell else None
    if column.is_fixed:
        return format_html('<th scope="row" class="break">{}</th>', _shown(value, now))
    style = column.style or "break"
    return format_html('<td data-label="{}" class="{}">{}</td>', column.label, style, _shown(value, now))


def _shown(value: Any, now: datetime) -> str:
    """Renders a value of portal/lists/cells.py. Escapes its texts."""
    match value:
        case None | []:
            return "–"
        case datetime():
            return SafeString(ago_at(value, now))
        case Link():
            return format_html('<a href="{}">{}</a>', value.address, value.text)
        case Label():
            return chip(value.text, value.tone, value.icon)
        case Muted():
            return format_html('<span class="muted small break">{}</span>', value.text)
        case Code():
            return format_html('<code class="break">{}</code>', value.text)
        case list():
            parts = format_html_join(" ", "{}", ((_shown(one, now),) for one in value))
            return format_html('<span class="row chips">{}</span>', parts)
    return str(value)


def _query(context: RequestContext) -> QueryDict:
    query: QueryDict = context["request"].GET.copy()
    for name in PLACES:
        query.pop(name, None)
    return query
