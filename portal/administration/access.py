"""Who may open the administration's pages; for everybody else they do not exist."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse

View = Callable[..., HttpResponse]


def admins_only(view: View) -> View:
    return _only(view, lambda user: user.is_admin)


def operators_only(view: View) -> View:
    return _only(view, lambda user: user.is_operator)


def _only(view: View, allows: Callable[[Any], bool]) -> View:
    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not (request.user.is_authenticated and allows(request.user)):
            raise Http404
        return view(request, *args, **kwargs)

    return guarded
