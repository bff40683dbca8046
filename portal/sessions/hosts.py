"""The host of each session and service. Its program is untrusted, so it gets a separate origin."""

from __future__ import annotations

import re
from urllib.parse import urlencode, urlsplit

from django.conf import settings
from django.http import HttpResponse

NAME, SERVICE_NAME = "session-{}", "service-{}"
# Where tickets of services are exchanged; all other paths belong to the program.
SERVICE_DOOR = "/.fairlot/enter/"


def origin_of(session_id: int) -> str:
    """Returns an origin such as http://session-7.localhost:8000; empty if no host is set."""
    return _origin(NAME.format(session_id))


def origin_of_service(service_id: int) -> str:
    """Returns an origin such as http://service-7.localhost:8000, for all replicas; empty if no host is set."""
    return _origin(SERVICE_NAME.format(service_id))


def _origin(name: str) -> str:
    return str(settings.FAIRLOT_SESSIONS_URL).replace("*", name, 1)


def is_secure() -> bool:
    return str(settings.FAIRLOT_SESSIONS_URL).startswith("https://")


def session_of(host: str) -> int | None:
    """Returns the session of a Host header; None for the portal's host and any other."""
    return _number(host, NAME)


def service_of(host: str) -> int | None:
    """Returns the service of a Host header, like `session_of`."""
    return _number(host, SERVICE_NAME)


def _number(host: str, name: str) -> int | None:
    if not settings.FAIRLOT_SESSIONS_URL:
        return None
    pattern = re.escape(urlsplit(settings.FAIRLOT_SESSIONS_URL).netloc).replace(
        r"\*", name.format(r"([1-9]\d{0,17})")
    )
    match = re.fullmatch(pattern, host.lower(), re.ASCII)
    return int(match[1]) if match else None


def is_under_them(host: str) -> bool:
    """Returns whether the host belongs to sessions and services; the portal's host never does."""
    if not settings.FAIRLOT_SESSIONS_URL:
        return False
    name = re.escape(urlsplit(settings.FAIRLOT_SESSIONS_URL).netloc).replace(r"\*", r"[^.:]+")
    return re.fullmatch(name, host.lower()) is not None


def door_of(session_id: int, ticket: str, path: str) -> str:
    """Returns the URL where a ticket is exchanged; `path` is the target afterwards."""
    asked = urlencode({"ticket": ticket, "path": path})
    return f"{origin_of(session_id)}/sessions/{session_id}/enter/?{asked}"


def door_of_service(service_id: int, ticket: str, path: str) -> str:
    """Like `door_of`, for a service."""
    return f"{origin_of_service(service_id)}{SERVICE_DOOR}?{urlencode({'ticket': ticket, 'path': path})}"


def led_to(door: str) -> HttpResponse:
    """Returns a redirect to a ticket exchange, without a referrer."""
    answer = HttpResponse(status=302)
    answer["Location"] = door
    answer["Referrer-Policy"] = "no-referrer"
    return answer
