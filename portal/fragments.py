"""Pages whose parts refresh by themselves: one template, the whole of it or the part that was asked for."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_vary_headers


def render_page(
    request: HttpRequest, template: str, context: dict[str, Any], *, parts: tuple[str, ...] = ()
) -> HttpResponse:
    """Renders `template`; for htmx only the partial whose name is the target's id, if it is one of `parts`."""
    part = wanted_part(request)
    response = render(request, f"{template}#{part}" if part in parts else template, context)
    patch_vary_headers(response, ["HX-Request", "HX-Target"])
    response["Cache-Control"] = "no-store"
    return response


def wanted_part(request: HttpRequest) -> str:
    """The id of the element that htmx wants to refresh; empty for a whole page."""
    return request.headers.get("HX-Target", "").partition("#")[2]
