"""Types of requests whose user is known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from django.http import HttpRequest

from accounting.models import User


class UserRequest(HttpRequest):
    """A request by a signed-in user.

    `SignedInMiddleware` ensures that a view that requires a login receives only such requests.
    """

    user: User
    auser: Callable[[], Awaitable[User]]


class ApiRequest(HttpRequest):
    """A request to the API from an authenticated caller."""

    auth: User
