"""Error responses that need no Django: HTML for browsers, a problem document for the API, plain text otherwise."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from django.template.loader import render_to_string

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

TITLES = {
    408: "The request took too long",
    413: "The request is too large",
    503: "Fairlot is busy",
    507: "A disk is full",
}


@dataclass(frozen=True)
class Answer:
    """An error response that explains why a request was not passed on to Django."""

    status: int
    detail: str
    closes: bool = False
    retry_after: int = 0

    async def send(self, scope: MutableMapping[str, Any], send: Send) -> None:
        content_type, text = self._content(scope)
        body = text.encode()
        headers = [
            (b"content-type", content_type.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"same-origin"),
            (b"content-security-policy", b"default-src 'none'; style-src 'self'; frame-ancestors 'none'"),
        ]
        if self.closes:
            headers.append((b"connection", b"close"))
        if self.retry_after:
            headers.append((b"retry-after", str(self.retry_after).encode()))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _content(self, scope: MutableMapping[str, Any]) -> tuple[str, str]:
        if scope["path"].startswith("/api/"):
            problem = {
                "type": "about:blank",
                "title": HTTPStatus(self.status).phrase,
                "status": self.status,
                "detail": self.detail,
            }
            return "application/problem+json", json.dumps(problem)
        if any(name == b"accept" and b"text/html" in value for name, value in scope["headers"]):
            words = {"status": self.status, "title": TITLES[self.status], "detail": self.detail}
            return "text/html; charset=utf-8", render_to_string("unavailable.html", words)
        return "text/plain; charset=utf-8", f"{self.detail}\n"


class Refused(Exception):
    """Raised if a request is not passed on to Django. Contains the error response.

    Create a new instance for each raise. A shared instance would keep references to stack frames, and these would keep
    the client's connection open.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.detail)
        self.answer = answer
