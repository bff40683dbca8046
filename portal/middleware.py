"""Every page needs a signed-in user unless it says otherwise, and shows times in that user's zone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib.auth.middleware import LoginRequiredMiddleware, get_user
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import resolve_url
from django.utils import timezone

from accounting.core.clock import zone_named
from portal.addresses import is_this_machine
from scheduling.core import pubsub
from scheduling.models import Cluster

View = Callable[..., Any]
ONLY_READS = {"GET", "HEAD"}


class SignedInMiddleware(LoginRequiredMiddleware):
    """Asks for a login unless a view is marked `login_not_required`; the API checks its own tokens."""

    def process_view(
        self, request: HttpRequest, view_func: View, view_args: Any, view_kwargs: Any
    ) -> HttpResponseBase | None:
        if request.path_info.startswith("/api/"):
            return None
        answer = super().process_view(request, view_func, view_args, view_kwargs)
        if answer is None and request.user.is_authenticated:
            request.user = user = get_user(request)  # a lazy user costs at every access, and pages have many
            if user.is_authenticated:
                if request.method in ONLY_READS:
                    user.keep_roles()
                timezone.activate(zone_named(user.time_zone))
        return answer

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        timezone.deactivate()
        return response

    def handle_no_permission(  # type: ignore[override]  # Django's is always a redirect
        self, request: HttpRequest, view_func: View
    ) -> HttpResponse:
        """Answers the refresh of a fragment with a status, because a login page would be inserted into the fragment."""
        if request.headers.get("HX-Request"):
            return HttpResponse(status=401, headers={"HX-Redirect": resolve_url("login")})
        return super().handle_no_permission(request, view_func)


class LivePositionMiddleware:
    """Notes the stream position before a page is read from the database; the page's stream continues from there."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.get_response(request)

    def process_view(
        self, request: HttpRequest, view_func: View, view_args: Any, view_kwargs: Any
    ) -> HttpResponseBase | None:
        is_page = "text/html" in request.headers.get("Accept", "") and "HX-Request" not in request.headers
        if is_page and request.method == "GET" and request.user.is_authenticated:
            request.live_position = pubsub.recent_position()  # type: ignore[attr-defined]  # for portal.context
        return None


class LoopbackOnlyMiddleware:
    """Refuses clients on other machines while the local backend runs programs on this one.

    The local backend runs whatever it is given; FAIRLOT_LOCAL_BEYOND_LOOPBACK allows this for all who can reach the
    portal. What a proxy passes on comes from elsewhere, even if the proxy runs on this machine. Health checks pass,
    because they reveal nothing and run nothing.
    """

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if (
            settings.FAIRLOT_LOCAL_BEYOND_LOOPBACK
            or is_this_machine(request.META.get("REMOTE_ADDR", ""), request.headers)
            or request.path_info == "/healthz"
            or not _has_local_cluster(as_last_known=request.path_info.startswith(settings.STATIC_URL))
        ):
            return self.get_response(request)
        return HttpResponse(
            "This Fairlot runs jobs on its own machine, so it serves clients on that machine only. "
            "Set FAIRLOT_LOCAL_BEYOND_LOOPBACK=true if all who can reach it may run programs here.\n",
            status=403,
            content_type="text/plain",
        )


# Needed for each request of a stranger, so the database is not asked each time.
LOCAL_CLUSTER_KNOWN_FOR = 5.0  # seconds
_UNKNOWN = (float("-inf"), True)  # time of the check, and the cautious answer
_local_cluster = _UNKNOWN


def _has_local_cluster(*, as_last_known: bool) -> bool:
    """Returns whether there is a local cluster; for static files the last known answer, as they use no database."""
    at, found = _local_cluster
    if as_last_known or time.monotonic() - at <= LOCAL_CLUSTER_KNOWN_FOR:
        return found
    return learn_of_local_cluster()


def learn_of_local_cluster() -> bool:
    """Asks the database, for all requests of the next seconds and all static files."""
    global _local_cluster  # noqa: PLW0603 - one answer for the process
    found = Cluster.objects.filter(backend=Cluster.Backend.LOCAL).exists()
    _local_cluster = (time.monotonic(), found)
    return found


def knows_of_local_cluster() -> bool:
    """Returns whether the database was ever asked; until then static files are for this machine only."""
    return _local_cluster != _UNKNOWN


def forget_local_cluster() -> None:
    """Makes the next request ask the database again."""
    global _local_cluster  # noqa: PLW0603 - as above
    _local_cluster = _UNKNOWN
