"""Authenticates callers of the API: by a bearer token, or by a browser session with its CSRF token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest
from ninja.errors import HttpError
from ninja.security import HttpBearer, SessionAuth

from accounting.access.permissions import require
from accounting.core.errors import NotAllowed
from accounting.models import User
from portal.api.seen import Hidden
from portal.middleware import ONLY_READS
from portal.models import Scope
from portal.tokens.actions import find_token

READING = {"GET", "HEAD", "OPTIONS"}
# Operations (by name) that use POST but change nothing, so that every token may call them.
READING_POSTS = {
    "preflight", "convert", "sweep_preview", "limits_preview", "limit_removal_preview", "tickets_preview",
    "cluster_policy_preview", "idle_rules_preview",
}  # fmt: skip


class Bearer(HttpBearer):
    """Authenticates a call by the token in `Authorization: Bearer fairlot_…`. Calls that change data need a token with
    the scope of their router."""

    def __init__(self, scope: Scope) -> None:
        super().__init__()
        self.scope = scope

    def authenticate(self, request: HttpRequest, token: str) -> User:
        found = find_token(token)
        if found is None:
            raise HttpError(
                401,
                "The token is unknown, has expired or was revoked. Create another token at /account/tokens/.",
            )
        found_at = request.resolver_match
        reads = request.method in READING or (found_at is not None and found_at.url_name in READING_POSTS)
        request.scopes = found.scopes  # type: ignore[attr-defined]  # see require_scope
        if not reads:
            require_scope(request, self.scope)
        return _caller(request, found.user)


class Session(SessionAuth):
    """Authenticates a call by the session cookie of a signed-in browser. Calls that change data also need the CSRF
    token."""

    def __call__(self, request: HttpRequest) -> Any | None:
        if not request.user.is_authenticated or (user := super().__call__(request)) is None:
            return None
        return _caller(request, user)


def _caller(request: HttpRequest, user: User) -> User:
    if request.method in ONLY_READS:
        user.keep_roles()
    return user


def reader_of(request: HttpRequest) -> Callable[[], User | None] | None:
    """Returns a function that finds the caller again by the token of the call, and returns None once it is not valid.

    Returns None for a call with a session. `portal.live.streams.Rights` takes the result, for long downloads.
    """
    scheme, _, text = request.headers.get(Bearer.header, "").partition(" ")
    if scheme.lower() != Bearer.openapi_scheme:
        return None

    def reader() -> User | None:
        token = find_token(text)
        return token.user if token is not None else None

    return reader


def require_scope(request: HttpRequest, scope: Scope) -> None:
    """Raises HttpError if the call has a token without this scope. Browser sessions have all scopes.

    Operations call it that need a scope beyond that of their router for some objects.
    """
    scopes = getattr(request, "scopes", Scope.values)
    if scope not in scopes:
        raise HttpError(
            403,
            f"This token may {'change only: ' + ', '.join(scopes) if scopes else 'only read'}. "
            f"The call needs the scope “{scope}”; create a token with it at /account/tokens/.",
        )


def require_permission(request: HttpRequest, verb: str) -> None:
    """Raises Hidden, which says who may, unless the caller's portal role (operator or admin) permits the action `verb`.

    accounting/access/permissions.py lists the roles that permit each verb.
    """
    try:
        require(request.auth, verb)  # type: ignore[attr-defined]  # set by the ways to sign in above
    except NotAllowed as error:
        raise Hidden(str(error)) from None
