"""Template tags for forms without fields."""

from __future__ import annotations

from django import template
from django.template import Context

register = template.Library()


@register.simple_tag(takes_context=True)
def refused(context: Context, key: str) -> str:
    """Renders the problems of the posted form that concern no field, if its key is `key`; empty for any other form."""
    posted = context.get("posted")
    return str(posted.non_field_errors()) if posted and posted.key == key else ""


@register.filter
def named(key: object, start: str) -> str:
    """Returns the key of a form in a list of forms: `{{ row.pk|named:"price-" }}` is "price-7"."""
    return f"{start}{key}"
