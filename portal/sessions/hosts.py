"""The host names of sessions and services. Each has its own host, and so its own origin, because its program is
untrusted."""

from __future__ import annotations

import re
from urllib.parse import urlencode, urlsplit

from django.conf import settings
from django.http import HttpResponse

NAME, SERVICE_NAME = "session-{}", "service-{}"
# The path at which a service's host exchanges tickets for cookies. All other paths belong to the program.
SERVICE_DOOR = "/.fairlot/enter/"


def origin_of(session_id: int) -> str:
    """Returns the origin of a session, such as http://session-7.localhost:8000; "" if FAIRLOT_SESSIONS_URL is not
    set."""
    return _origin(NAME.format(session_id))


def origin_of_service(service_id: int) -> str:
    """Returns the origin of a service, such as http://service-7.localhost:8000; "" if FAIRLOT_SESSIONS_URL is not set.

    All replicas of the service share this origin.
    """
    return _origin(SERVICE_NAME.format(service_id))


def _origin(name: str) -> str:
    return str(settings.FAIRLOT_SESSIONS_URL).replace("*", name, 1)


def is_secure() -> bool:
    return str(settings.FAIRLOT_SESSIONS_URL).startswith("https://")


def session_of(host: str) -> int | None:
    """Returns the id of the session whose host name is in this Host header; None for any other host."""
    return _number(host, NAME)


def service_of(host: str) -> int | None:
    """Returns the id of the service whose host name is in this Host header; None for any other host."""
    return _number(host, SERVICE_NAME)


def _number(host: str, name: str) -> int | None:
    if not settings.FAIRLOT_SESSIONS_URL:
        return None
    pattern = re.escape(urlsplit(settings.FAIRLOT_SESSIONS_URL).netloc).replace(
        r"\*", name.format(r"([1-9]\d{0,17})")
    )
    match = re.fullmatch(pattern, host.lower(), re.ASCII)
    return int(match[1]) if match else None


def matches_sessions_url(host: str) -> bool:
    """Returns whether the host matches FAIRLOT_SESSIONS_URL, in which `*` stands for any name.

    The portal's own host may also match.
    """
    if not settings.FAIRLOT_SESSIONS_URL:
        return False
    name = re.escape(urlsplit(settings.FAIRLOT_SESSIONS_URL).netloc).replace(r"\*", r"[^.:]+")
    return re.fullmatch(name, host.lower()) is not None


def entry_url(session_id: int, ticket: str, path: str) -> str:
    """Returns the entry URL on the session's host, with the ticket (a code that is valid once) and the path.

    The host exchanges the ticket for a cookie, and then redirects to `path`.
    """
    asked = urlencode({"ticket": ticket, "path": path})
    return f"{origin_of(session_id)}/sessions/{session_id}/enter/?{asked}"


def entry_url_of_service(service_id: int, ticket: str, path: str) -> str:
    """Returns the entry URL on the service's host, with the ticket (a code that is valid once) and the path.

    The host exchanges the ticket for a cookie, and then redirects to `path`.
    """
    return f"{origin_of_service(service_id)}{SERVICE_DOOR}?{urlencode({'ticket': ticket, 'path': path})}"


def redirect_to_entry(url: str) -> HttpResponse:
    """Returns a redirect to an entry URL from `entry_url` or `entry_url_of_service`.

    The redirect disables the referrer, so that the program does not learn the address of the portal's page.
    """
    answer = HttpResponse(status=302)
    answer["Location"] = url
    answer["Referrer-Policy"] = "no-referrer"
    return answer
