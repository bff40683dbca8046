"""Pages whose parts refresh by themselves: one template, the whole of it or the part that was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_vary_headers

NO_INCLUDES: Mapping[str, str] = MappingProxyType({})


def render_page(
    request: HttpRequest,
    template: str,
    context: dict[str, Any],
    *,
    parts: tuple[str, ...] = (),
    includes: Mapping[str, str] = NO_INCLUDES,
) -> HttpResponse:
    """Renders `template`; for htmx only the part whose name is the target's id.

    `parts` are partials of `template`; `includes` maps parts to templates of their own.
    """
    part = wanted_part(request)
    if part in parts:
        template = f"{template}#{part}"
    response = render(request, includes.get(part, template), context)
    patch_vary_headers(response, ["HX-Request", "HX-Target"])
    response["Cache-Control"] = "no-store"
    return response


def wanted_part(request: HttpRequest) -> str:
    """The id of the element that htmx wants to refresh; empty for a whole page."""
    return request.headers.get("HX-Target", "").partition("#")[2]
