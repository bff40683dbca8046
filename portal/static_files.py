"""Middleware that answers 404 for static files that do not exist."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase


class NoSuchFileMiddleware:
    """Middleware that answers 404 for a static file that WhiteNoise, the previous middleware, did not find.

    The portal's own 404 page is not used, because it would query the database for the user. Threads that serve static
    files have no database connection.
    """

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.path_info.startswith(settings.STATIC_URL):
            return HttpResponse("There is no such file.\n", status=404, content_type="text/plain")
        return self.get_response(request)
