"""Renders either a whole page or only the part of it that htmx refreshes."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.utils.cache import patch_vary_headers

# The templates of parts that several pages include. Each other part is a partial of its page's template.
INCLUDED = {"job-head": "jobs/head.html"}


def render_page(
    request: HttpRequest, template: str, context: dict[str, Any], *, status: int = 200
) -> HttpResponse:
    """Renders the whole page or, for an htmx request, only the part that htmx refreshes.

    A part has the same name as the id of its HTML element. INCLUDED maps some parts to templates. Any other part is the
    partial in `template` with this name. If there is no such part, answers 204.
    """
    part = wanted_part(request)
    # Without a part to render, htmx would insert a whole page into the element.
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
    """Returns the id of the element that an htmx request refreshes, or "" if the request is for a whole page."""
    return request.headers.get("HX-Target", "").partition("#")[2]
