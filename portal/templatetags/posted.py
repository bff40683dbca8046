"""Shows the problems of a posted form that has no fields."""

from __future__ import annotations

from django import template
from django.template import Context

register = template.Library()


@register.simple_tag(takes_context=True)
def refused(context: Context, key: str) -> str:
    """Returns what is wrong with the posted form as a whole where it has this key."""
    posted = context.get("posted")
    return str(posted.non_field_errors()) if posted and posted.key == key else ""


@register.filter
def named(key: object, start: str) -> str:
    """Returns the name of one form of a list: `{{ row.pk|named:"price-" }}` is "price-7"."""
    return f"{start}{key}"
