"""Missing static files."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase


class NoSuchFileMiddleware:
    """Answers 404 for a static file that the middleware before it did not find.

    The usual 404 page would ask the database who reads it, and threads for static files have no connection.
    """

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.path_info.startswith(settings.STATIC_URL):
            return HttpResponse("There is no such file.\n", status=404, content_type="text/plain")
        return self.get_response(request)
