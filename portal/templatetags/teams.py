"""Template tags for the pages of a team, which managers and admins have at different addresses."""

from __future__ import annotations

from django import template
from django.template import Context

register = template.Library()


@register.simple_tag(takes_context=True)
def team_url(context: Context, what: str, *keys: int) -> str:
    """Returns the address of a part of the shown team's pages, or of an action there, such as "limit_set"."""
    found: str = context["place"].url(what, context["tenant"], *keys)
    return found
