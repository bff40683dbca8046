"""Decorators and queries that decide who may open a page. A page that a user may not open answers 404, as if it did not
exist."""

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
    """Returns a decorator that answers 404 unless the user's portal role (admin or operator) permits the action `verb`.

    accounting/access/permissions.py lists the roles that permit each verb.
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
    """Returns a decorator for a view that handles only the POST of a form. It redirects a GET to the form's page.

    - `page`: the URL name of the form's page.
    - `keys`: the names of the URL arguments that the view and the form's page share.

    A posted value that the database cannot store is shown as a problem of its field.
    """

    def decorate(view: View) -> View:
        @keeps_form
        @wraps(view)
        def guarded(request: UserRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if request.method in {"GET", "HEAD"}:
                # A POST that is answered with a page leaves the view's URL in the browser, where the user can
                # open it again.
                return redirect(reverse(page, kwargs={key: kwargs[key] for key in keys}))
            if request.method != "POST":
                return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
            return view(request, *args, **kwargs)

        return guarded

    return decorate


def managed(request: UserRequest) -> TenantQuerySet:
    """Returns the teams that the user may manage as a team manager, sorted by name. Leaves out archived teams."""
    return (
        Tenant.objects.visible_to(request.user, role=Membership.Role.MANAGER)
        .active()
        .order_by(*by_name("name"))
    )
