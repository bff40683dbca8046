"""Template tags for the links that narrow and widen a list: the address with one more value, or one less."""

from __future__ import annotations

from django import template
from django.http import QueryDict
from django.template import RequestContext

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


def _query(context: RequestContext) -> QueryDict:
    query: QueryDict = context["request"].GET.copy()
    for name in PLACES:
        query.pop(name, None)
    return query
