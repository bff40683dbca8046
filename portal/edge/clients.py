"""Identifies the client of a request by its address and by its credentials, which are not verified here.

This is enough to divide resources among clients, but not to grant access.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, NamedTuple

from django.conf import settings
from django.http import parse_cookie

from portal.addresses import network_of

NOTHING = ("", 0)


class Client(NamedTuple):
    """The client of a request: the address that sent the request, and the login that the request claims, unverified."""

    address: str  # an IPv4 address, or the /64 of an IPv6 address
    login: str  # the session cookie or the API token; empty without either


def client_of(scope: MutableMapping[str, Any]) -> Client:
    """Returns the client of a request: its address, and its API token or session cookie as the login.

    The token counts only on paths of the API. Other cookies are ignored. If they counted, one login could pose as many
    clients by sending a different cookie with each request.
    """
    cookies, token = [], b""
    for name, value in scope["headers"]:
        if name == b"cookie":
            cookies.append(value)
        elif name == b"authorization":
            token = value
    address = network_of((scope.get("client") or NOTHING)[0])
    if token and scope["path"].startswith("/api/"):
        scheme, _, text = token.partition(b" ")
        if scheme.lower() == b"bearer":
            return Client(address, text.decode("latin-1"))
    if not cookies:
        return Client(address, "")
    found = parse_cookie(b"; ".join(cookies).decode("latin-1"))
    return Client(address, found.get(settings.SESSION_COOKIE_NAME, ""))
