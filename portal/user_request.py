"""Types of requests with a known user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from django.http import HttpRequest

from accounting.models import User


class UserRequest(HttpRequest):
    """A request of a signed-in user. `SignedInMiddleware` lets no other request reach a view that requires a login."""

    user: User
    auser: Callable[[], Awaitable[User]]


class ApiRequest(HttpRequest):
    """A request to the API whose caller has been authenticated."""

    auth: User
