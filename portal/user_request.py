"""The request of a signed-in user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from django.http import HttpRequest

from accounting.models import User


class UserRequest(HttpRequest):
    """A request whose user has signed in. `LoginRequiredMiddleware` lets no other reach a view."""

    user: User
    auser: Callable[[], Awaitable[User]]


class ApiRequest(HttpRequest):
    """A request to the API, whose caller has shown who calls."""

    auth: User
