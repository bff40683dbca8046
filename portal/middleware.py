"""Every page needs a signed-in user unless it says otherwise, and shows times in that user's zone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import resolve_url
from django.utils import timezone

View = Callable[..., Any]


class SignedInMiddleware(LoginRequiredMiddleware):
    """Asks for a login wherever a view is not marked `login_not_required`; the API checks its own tokens."""

    def process_view(
        self, request: HttpRequest, view_func: View, view_args: Any, view_kwargs: Any
    ) -> HttpResponseBase | None:
        if request.path_info.startswith("/api/"):
            return None
        answer = super().process_view(request, view_func, view_args, view_kwargs)
        if answer is None and request.user.is_authenticated:
            timezone.activate(_zone(request.user.time_zone))
        return answer

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        timezone.deactivate()
        return response

    def handle_no_permission(self, request: HttpRequest, view_func: View) -> HttpResponse:
        """A fragment's refresh must not be answered by a login page inside the fragment."""
        if request.headers.get("HX-Request"):
            return HttpResponse(status=401, headers={"HX-Redirect": resolve_url("login")})
        return super().handle_no_permission(request, view_func)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return ZoneInfo("UTC")
