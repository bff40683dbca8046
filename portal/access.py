"""Who may open the administration's pages; for everybody else they do not exist."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import Http404, HttpResponseNotAllowed
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse

from accounting.access.permissions import may
from portal.unstorable import keeps_form
from portal.user_request import UserRequest

View = Callable[..., HttpResponseBase]


def permitted(verb: str) -> Callable[[View], View]:
    """Admits users who may do `verb` anywhere, by the table of accounting/access/permissions.py; others get 404."""

    def decorate(view: View) -> View:
        @wraps(view)
        def guarded(request: UserRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if not may(request.user, verb):
                raise Http404
            return view(request, *args, **kwargs)

        return guarded

    return decorate


def posted_from(page: str, *keys: str) -> Callable[[View], View]:
    """For a form's address, which the browser keeps when the answer is a page: GET leads back to the form's page.

    `keys` are the arguments of the address that `page` has, too. The form is shown again with what was refused.
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
