"""Template tags that link pages to the documentation. Templates load them with `{% load guide %}`."""

from __future__ import annotations

from django import template
from django.template import RequestContext
from django.utils.html import format_html
from django.utils.safestring import SafeString

from portal.docs import terms
from portal.docs.commands import commands_for
from portal.docs.help import help_address
from portal.templatetags.fairlot import icon

register = template.Library()


@register.simple_tag(takes_context=True)
def help_link(context: RequestContext) -> SafeString:
    """Renders the `?` link to the documentation section about the current page, or to the index if there is no such
    section."""
    match = context["request"].resolver_match
    return format_html(
        '<a class="button button-plain" href="{}" aria-label="Help for this page">{}</a>',
        help_address(match.url_name if match else ""),
        icon("help"),
    )


@register.inclusion_tag("parts/command.html", takes_context=True)
def command_menu(context: RequestContext) -> dict[str, object]:
    """Renders the menu with the commands of `fairlot` for the current page; nothing if there are none."""
    request = context["request"]
    match = request.resolver_match
    return {
        "commands": commands_for(
            match.url_name if match else None,
            match.kwargs if match else {},
            request.GET,
            portal=request.build_absolute_uri("/").rstrip("/"),
        )
    }


@register.simple_tag(takes_context=True)
def term(context: RequestContext, name: str, text: str = "") -> SafeString:
    """Renders a link to a term in the glossary, with the term's definition as a tooltip.

    The text of the link is `text`, or the term itself if `text` is empty. The tooltip appears on hover and on focus,
    and screen readers read it as the link's description. static/js/app.js positions the tooltip.
    """
    request = context["request"]
    count = request.terms = getattr(request, "terms", 0) + 1
    section = terms.term(name)
    identity = f"term-{section.anchor}-{count}"
    return format_html(
        '<span class="term"><a href="{}" aria-describedby="{}">{}</a>'
        '<span role="tooltip" class="tooltip" id="{}">{}</span></span>',
        section.address,
        identity,
        text or name,
        identity,
        terms.definition(section),
    )
