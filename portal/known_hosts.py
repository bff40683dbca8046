"""Refuses requests for hosts that are not in ALLOWED_HOSTS."""

from __future__ import annotations

import logging
from collections.abc import Callable

from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

logger = logging.getLogger(__name__)


class KnownHostMiddleware:
    """Middleware that answers 400 if a request's Host header does not match ALLOWED_HOSTS, before any view runs.

    This stops DNS rebinding: an attacker's page, whose DNS name resolves to this server, sends the attacker's name as
    Host.
    """

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        try:
            request.get_host()
        except DisallowedHost:
            logger.warning("refused a request for a host that ALLOWED_HOSTS does not name")
            text = (
                "This portal does not answer to this host name. The setting ALLOWED_HOSTS lists "
                "the accepted host names.\n"
            )
            return HttpResponse(text, status=400, content_type="text/plain")
        return self.get_response(request)
