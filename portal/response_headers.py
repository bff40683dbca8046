"""Security headers for every response of the portal: pages, errors, static files, the API and streams.

This does not include the responses of programs in sessions and services, which come from other hosts.
`portal.sessions.headers` adds the headers that those need.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from portal.addresses import App, Receive, Scope, Send

View = Callable[[HttpRequest], HttpResponseBase]

# Browser features that no page of the portal uses. The list has no unknown names, because Chromium logs a warning for
# each.
_FEATURES = (
    "accelerometer", "autoplay", "browsing-topics", "camera", "display-capture", "encrypted-media",
    "geolocation", "gyroscope", "hid", "idle-detection", "local-fonts", "magnetometer", "microphone", "midi",
    "payment", "picture-in-picture", "publickey-credentials-create", "publickey-credentials-get",
    "screen-wake-lock", "serial", "storage-access", "usb", "xr-spatial-tracking",
)  # fmt: skip
PERMISSIONS_POLICY = ", ".join(f"{feature}=()" for feature in _FEATURES)
# Default values: a response that already has one of these headers keeps its own value.
SECURITY: dict[bytes, bytes] = {
    b"content-security-policy": b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"permissions-policy": PERMISSIONS_POLICY.encode(),
    b"referrer-policy": b"same-origin",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
}


def with_security_headers(app: App) -> App:
    """Wraps an ASGI app, and adds to each response the headers in SECURITY that the response does not have yet."""

    async def hardened(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_hardened(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                names = {bytes(name).lower() for name, _ in given}
                lacking = [(name, value) for name, value in SECURITY.items() if name not in names]
                message = {**message, "headers": [*given, *lacking]}
            await send(message)

        await app(scope, receive, send_hardened)

    return hardened


def with_page_policy(get_response: View) -> View:
    """Creates middleware that adds the Content-Security-Policy for pages to each response that has no such header
    yet."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        # Django's own error pages contain inline styles.
        if not (settings.DEBUG and response.status_code in {404, 500}):
            response.headers.setdefault("Content-Security-Policy", settings.CONTENT_SECURITY_POLICY)
        return response

    return answer
