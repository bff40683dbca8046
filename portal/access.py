"""Who may open a page: pages that a user may not open answer 404, as if they did not exist."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import Http404, HttpResponseNotAllowed
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse

from accounting.access.permissions import may
from accounting.core.name_order import by_name
from accounting.models import Membership, Tenant
from accounting.models.tenants import TenantQuerySet
from portal.unstorable import keeps_form
from portal.user_request import UserRequest

View = Callable[..., HttpResponseBase]


def permitted(verb: str) -> Callable[[View], View]:
    """Returns a decorator that answers 404 to users whose portal role (admin or operator) does not permit `verb`.

    accounting/access/permissions.py lists the roles that may do each verb.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def guarded(request: UserRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if not may(request.user, verb):
                raise Http404
            return view(request, *args, **kwargs)

        return guarded

    return decorate


def posted_from(page: str, *keys: str) -> Callable[[View], View]:
    """Returns a decorator for a view that only receives the POST of a form: GET redirects to the form's page, `page`.

    The browser stays at the form's URL when the answer to POST is a page, and a reload sends GET. `keys` names the
    arguments that both URLs have. The view shows values that the database cannot store as problems of their fields.
    """

    def decorate(view: View) -> View:
        @keeps_form
        @wraps(view)
        def guarded(request: UserRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if request.method in {"GET", "HEAD"}:
                return redirect(reverse(page, kwargs={key: kwargs[key] for key in keys}))
            if request.method != "POST":
                return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
            return view(request, *args, **kwargs)

        return guarded

    return decorate


def managed(request: UserRequest) -> TenantQuerySet:
    """Returns the teams that the user may manage because of the role of manager."""
    return (
        Tenant.objects.visible_to(request.user, role=Membership.Role.MANAGER)
        .active()
        .order_by(*by_name("name"))
    )
