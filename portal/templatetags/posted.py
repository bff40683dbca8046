"""Template tags for forms that a template writes without form fields, such as a form with only a button."""

from __future__ import annotations

from django import template
from django.template import Context

register = template.Library()


@register.simple_tag(takes_context=True)
def refused(context: Context, key: str) -> str:
    """Renders those problems of the posted form that belong to no field.

    Returns "" if the posted form is not the one with the key `key`.
    """
    posted = context.get("posted")
    return str(posted.non_field_errors()) if posted and posted.key == key else ""


@register.filter
def named(key: object, start: str) -> str:
    """Returns the key of one form in a list of forms: `{{ row.pk|named:"price-" }}` gives "price-7" for the row 7."""
    return f"{start}{key}"
