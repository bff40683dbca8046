"""Middleware for login, the user's time zone, live updates, and refusing clients on other machines while a local
cluster exists."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib.auth.middleware import LoginRequiredMiddleware, get_user
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, resolve_url
from django.utils import timezone

from accounting.core.clock import zone_named
from portal.addresses import is_this_machine
from scheduling.core import pubsub
from scheduling.models import Cluster

View = Callable[..., Any]
ONLY_READS = {"GET", "HEAD"}
# What a user whose password an admin has set may open: the page that changes it, and what this page loads.
WITH_ANY_PASSWORD = {"password_change", "logout", "live", "notification_bell"}


class SignedInMiddleware(LoginRequiredMiddleware):
    """Requires a login, except for views marked `login_not_required`, and activates the user's time zone. Asks for
    another password if an admin has set the present one.

    API requests pass without a login here, because the API authenticates them itself.
    """

    def process_view(
        self, request: HttpRequest, view_func: View, view_args: Any, view_kwargs: Any
    ) -> HttpResponseBase | None:
        if request.path_info.startswith("/api/"):
            return None
        answer = super().process_view(request, view_func, view_args, view_kwargs)
        if answer is None and request.user.is_authenticated:
            # Pages access the user often, and a lazy object costs time at each access.
            request.user = user = get_user(request)
            if user.is_authenticated:
                if request.method in ONLY_READS:
                    user.keep_roles()
                timezone.activate(zone_named(user.time_zone))
                if user.must_change_password and _needs_own_password(request, view_func):
                    return _ask_for_password(request)
        return answer

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        timezone.deactivate()
        return response

    def handle_no_permission(  # type: ignore[override]  # Django's is always a redirect
        self, request: HttpRequest, view_func: View
    ) -> HttpResponse:
        """Answers 401 if htmx refreshes a part of a page, because htmx would insert a login page into this part.

        Redirects any other request to the login page.
        """
        if request.headers.get("HX-Request"):
            return HttpResponse(status=401, headers={"HX-Redirect": resolve_url("login")})
        return super().handle_no_permission(request, view_func)


def _needs_own_password(request: HttpRequest, view_func: View) -> bool:
    match = request.resolver_match
    name = match.url_name if match is not None else None
    return getattr(view_func, "login_required", True) and name not in WITH_ANY_PASSWORD


def _ask_for_password(request: HttpRequest) -> HttpResponse:
    """Leads a user whose password an admin has set to the page that changes it."""
    if request.headers.get("HX-Request"):
        return HttpResponse(headers={"HX-Redirect": resolve_url("password_change")})
    return redirect("password_change")


class LivePositionMiddleware:
    """Middleware that records a recent position of the live stream before the view reads the database.

    The live stream sends changes to open pages. A page reads the stream from the recorded position on, so it misses no
    change that was made while it was rendered.
    """

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
    """Answers 403 to clients on other machines while a local cluster exists, because its jobs run programs on this
    machine.

    If FAIRLOT_LOCAL_BEYOND_LOOPBACK is set, all clients are admitted. A request through a proxy counts as a request
    from another machine, even if the proxy runs on this machine. Health checks are always answered, because they reveal
    nothing and run nothing.
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
            "This Fairlot runs jobs on its own machine, so it serves clients on that machine "
            "only. Set FAIRLOT_LOCAL_BEYOND_LOOPBACK=true if everybody who can reach this "
            "portal may run programs on that machine.\n",
            status=403,
            content_type="text/plain",
        )


# Each request from another machine needs the answer, so it is cached.
LOCAL_CLUSTER_KNOWN_FOR = 5.0  # seconds
_UNKNOWN = (float("-inf"), True)  # time of the last query, and the safe answer before the first one
_local_cluster = _UNKNOWN


def _has_local_cluster(*, as_last_known: bool) -> bool:
    """Returns whether a local cluster exists. The value is cached for LOCAL_CLUSTER_KNOWN_FOR seconds.

    With `as_last_known`, returns the cached value even if it is older. Requests for static files use this, because they
    must not query the database.
    """
    at, found = _local_cluster
    if as_last_known or time.monotonic() - at <= LOCAL_CLUSTER_KNOWN_FOR:
        return found
    return learn_of_local_cluster()


def learn_of_local_cluster() -> bool:
    """Asks the database whether a local cluster exists, caches the answer and returns it.

    The jobs of a local cluster run on this machine.
    """
    global _local_cluster  # noqa: PLW0603 - one answer for the process
    found = Cluster.objects.filter(backend=Cluster.Backend.LOCAL).exists()
    _local_cluster = (time.monotonic(), found)
    return found


def knows_of_local_cluster() -> bool:
    """Returns whether this process has already queried the database for a local cluster.

    Until it has, only clients on this machine get static files.
    """
    return _local_cluster != _UNKNOWN


def forget_local_cluster() -> None:
    """Clears the cached value, so that the next request queries the database for a local cluster."""
    global _local_cluster  # noqa: PLW0603 - as above
    _local_cluster = _UNKNOWN
