"""Requests for static files use no database, because their threads have no connection."""

from __future__ import annotations

from contextlib import closing

import pytest
from django.conf import LazySettings
from django.test import Client

from portal import middleware

ELSEWHERE = "203.0.113.7"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the cached answer "there is no local cluster" so old that a page would query the database again.

    Requests for static files must not do so.
    """
    monkeypatch.setattr(middleware, "_local_cluster", (-1e9, False))


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("address", ["127.0.0.1", ELSEWHERE])
@pytest.mark.parametrize("name", ["nosuch.css", "", "../jobs/", "css/"])
def test_a_missing_file_is_404_without_the_database(
    client: Client, settings: LazySettings, address: str, name: str
) -> None:
    client.cookies[settings.SESSION_COOKIE_NAME] = "somebodys-session"
    answer = client.get(f"/static/{name}", REMOTE_ADDR=address)
    assert answer.status_code == 404
    assert "text/plain" in answer["Content-Type"]


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("address", ["127.0.0.1", ELSEWHERE])
def test_an_existing_file_is_served_without_the_database(client: Client, address: str) -> None:
    with closing(client.get("/static/img/mark.svg", REMOTE_ADDR=address)) as answer:
        assert answer.status_code == 200


@pytest.mark.parametrize(("address", "status"), [("127.0.0.1", 200), (ELSEWHERE, 403)])
def test_the_first_request_of_a_process_asks_no_database_either(
    client: Client, address: str, status: int
) -> None:
    """Until the process has queried the database, it assumes that there is a local cluster. So clients on this machine
    get static files, and other clients get 403."""
    assert not middleware.knows_of_local_cluster()
    with closing(client.get("/static/img/mark.svg", REMOTE_ADDR=address)) as answer:
        assert answer.status_code == status
    assert not middleware.knows_of_local_cluster()
