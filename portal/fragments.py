"""Pages whose parts refresh: one template, rendered as a whole or as the part that was asked for."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.utils.cache import patch_vary_headers

# Parts that several pages include, by their templates. All others are partials of their page's template.
INCLUDED = {"job-head": "jobs/head.html"}


def render_page(
    request: HttpRequest, template: str, context: dict[str, Any], *, status: int = 200
) -> HttpResponse:
    """Renders `template`; for htmx only the part whose name is the target's id.

    Renders nothing if the page has no such part: a whole page would be inserted into the one that asks.
    """
    part = wanted_part(request)
    response = HttpResponse(status=204)
    try:
        wanted = get_template(INCLUDED.get(part, f"{template}#{part}") if part else template)
    except TemplateDoesNotExist:
        if not part:
            raise
    else:
        response = HttpResponse(wanted.render(context, request), status=status)
    patch_vary_headers(response, ["HX-Request", "HX-Target"])
    response["Cache-Control"] = "no-store"
    return response


def wanted_part(request: HttpRequest) -> str:
    """Returns the id of the element that htmx wants to refresh; empty for a whole page."""
    return request.headers.get("HX-Target", "").partition("#")[2]
