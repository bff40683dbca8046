"""Fixtures for tests of the client and the command line, which call the portal in the same process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections

# The scene of the portal's tests, and the fixture that clears what this process has cached.
from tests.portal.conftest import _nothing_known_from_before, kept_scene, scene  # noqa: F401

if TYPE_CHECKING:
    from accounting.models import User

SCOPES = ("work", "team", "cluster")
URL = "http://testserver"


@pytest.fixture
def client_of(portal_transport: httpx2.WSGITransport):
    """Returns a function that makes a client with a token of a user."""
    from fairlot_client import Fairlot  # noqa: PLC0415 - tests of the start-up look at what is imported
    from portal.tokens.actions import create_token  # noqa: PLC0415 - models cannot be imported earlier

    def client(user: User, *, scopes: Collection[str] = SCOPES) -> Fairlot:
        _, secret = create_token(actor=user, name="client", scopes=scopes, days=1)
        return Fairlot(URL, secret, transport=portal_transport, retries=0)

    return client


@pytest.fixture
def kept_connection() -> Iterator[None]:
    """Keeps the test's database connection open after each request, as Django's test client does."""
    signals = (request_started, request_finished)
    for signal in signals:
        signal.disconnect(close_old_connections)
    yield
    for signal in signals:
        signal.connect(close_old_connections)


@pytest.fixture
def portal_transport(kept_connection: None) -> httpx2.WSGITransport:
    """Returns a transport that sends requests to the portal's application, in the transaction of the test."""
    return WithoutStreams(app=get_wsgi_application())


class WithoutStreams(httpx2.WSGITransport):
    """A transport to the portal as it was before it had streams, because WSGI sends an answer only when it is
    complete."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/stream"):
            return httpx2.Response(404, json={"detail": "There are no streams."})
        return super().handle_request(request)


@pytest.fixture
def fairlot(portal_transport: httpx2.WSGITransport, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Returns a function that runs the command line, logged in as a user, in this process.

    The function calls `pause` instead of each pause. `terminal` says whether a person can answer questions.
    """
    from click.testing import CliRunner, Result  # noqa: PLC0415 - as above

    from fairlot_client.cli.app import App  # noqa: PLC0415 - as above
    from fairlot_client.cli.main import cli  # noqa: PLC0415 - as above
    from fairlot_client.client import Fairlot  # noqa: PLC0415 - as above
    from portal.tokens.actions import create_token  # noqa: PLC0415 - as above

    connect = Fairlot.__init__

    def here(self: Fairlot, url: str, token: str, **options: object) -> None:
        connect(self, url, token, **options | {"transport": portal_transport, "retries": 0})

    for name in ("FAIRLOT_URL", "FAIRLOT_TOKEN", "FAIRLOT_CONTEXT", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Fairlot, "__init__", here)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def run(
        user: User | None,
        *words: object,
        input: str | None = None,  # noqa: A002 - click's name
        terminal: bool = False,
        pause: Callable[[], object] | None = None,
        env: dict[str, str] | None = None,
    ) -> Result:
        if user is not None:
            _, secret = create_token(actor=user, name="command line", scopes=SCOPES, days=1)
            env = {"FAIRLOT_URL": URL, "FAIRLOT_TOKEN": secret} | (env or {})
        monkeypatch.setattr(App, "is_interactive", lambda self: terminal)
        monkeypatch.setattr(App, "pause", lambda self, seconds: pause())
        return CliRunner(catch_exceptions=False).invoke(
            cli, [str(word) for word in words], input=input, env=env
        )

    return run
