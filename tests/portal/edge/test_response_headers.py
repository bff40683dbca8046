"""Every response has the security headers, and requests for other hosts are refused."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from django.conf import LazySettings
from django.test import Client
from django.urls import reverse

from portal.edge.threads import close_all
from portal.response_headers import SECURITY, with_security_headers

KINDS = {
    "/account/login/": 200,
    "/": 302,
    "/nosuch": 404,
    "/static/img/mark.svg": 200,
    "/static/nosuch.css": 404,
    "/healthz": 200,
    "/api/v1/me": 401,
    "/api/v1/nosuch": 404,
    "/.well-known/security.txt": 404,
}


def ask(path: str, *, host: str = "localhost", method: str = "GET") -> httpx.Response:
    """Calls the whole ASGI application and returns its response."""
    from portal.asgi import application  # noqa: PLC0415 - needs the settings of the tests

    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(application, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, headers={"Host": host})

    try:
        return asyncio.run(call())
    finally:
        close_all()


@pytest.mark.django_db(transaction=True)
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # Django leaves request bodies to the garbage collector
def test_every_kind_of_answer_has_them() -> None:
    answers = {path: ask(path) for path in KINDS}
    assert {path: answer.status_code for path, answer in answers.items()} == KINDS
    answers |= {
        "bad host": ask("/", host="evil.example"),
        "bad query": ask("/?page=%ff%fe"),
        "method": ask("/api/v1/jobs/1/cancel"),
        "csrf": ask("/account/login/", method="POST"),
        "session host": ask("/sessions/7/proxy/", host="session-7.localhost:8000"),
    }
    statuses = {answer.status_code for answer in answers.values()}
    assert {200, 302, 400, 401, 403, 404, 405} <= statuses
    for kind, answer in answers.items():
        lacking = [name.decode() for name in SECURITY if name.decode() not in answer.headers]
        assert not lacking, f"{kind}: {lacking}"
        assert answer.headers["permissions-policy"].count("=()") > 10
        assert "unsafe" not in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "2130706433", "localhost@evil", ""]
)  # fmt: skip
@pytest.mark.parametrize(
    "path", ["/account/login/", "/static/img/mark.svg", "/api/v1/me", "/healthz", "/nosuch"]
)
def test_other_hosts_are_served_nothing(client: Client, host: str, path: str) -> None:
    answer = client.get(path, HTTP_HOST=host)
    assert answer.status_code == 400, f"{host}{path}"


def test_an_answer_keeps_its_own_header() -> None:
    sent = []

    async def app(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"X-Frame-Options", b"SAMEORIGIN")]}
        )
        await send({"type": "http.response.body", "body": b""})

    async def send(message) -> None:  # type: ignore[no-untyped-def]
        sent.append(message)

    asyncio.run(with_security_headers(app)({"type": "http"}, None, send))
    names = [name.lower() for name, _ in sent[0]["headers"]]
    assert names.count(b"x-frame-options") == 1
    assert set(names) == SECURITY.keys()


def test_security_txt_names_the_contact_and_ends_within_a_year(
    client: Client, settings: LazySettings
) -> None:
    settings.FAIRLOT_SECURITY_CONTACT = ["mailto:security@example.org", "https://example.org/report"]
    settings.PUBLIC_URL = "https://fairlot.example.org"
    answer = client.get("/.well-known/security.txt")
    assert answer.status_code == 200
    assert answer["Content-Type"] == "text/plain; charset=utf-8"
    lines = [line.split(": ", 1) for line in answer.content.decode().splitlines()]
    assert [value for name, value in lines if name == "Contact"] == settings.FAIRLOT_SECURITY_CONTACT
    assert ["Canonical", "https://fairlot.example.org/.well-known/security.txt"] in lines
    (expires,) = [value for name, value in lines if name == "Expires"]
    until = datetime.fromisoformat(expires) - datetime.now(UTC)
    assert timedelta(days=30) < until < timedelta(days=365)
    assert reverse("security_txt") == "/.well-known/security.txt"
