"""Error pages name problems that are not the user's fault: a full disk, no database, too many requests."""

from __future__ import annotations

import errno
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg2.errors
import pytest
from django.db import InterfaceError, OperationalError
from django.test import Client
from django.urls import reverse

from accounting.models import LedgerHead, User
from portal.edge import full_disks, health
from portal.edge.health import state_of
from portal.hashing import TooManyPasswords
from tests.portal.scene import Scene


def disk_full_of_the_database() -> OperationalError:
    class DiskFull(psycopg2.errors.DiskFull):
        pgcode = full_disks.DISK_FULL

    error = OperationalError("could not extend file: No space left on device")
    error.__cause__ = DiskFull()
    return error


CASES = [
    (disk_full_of_the_database(), 507, "A disk is full"),
    (OSError(errno.ENOSPC, "No space left on device"), 507, "A disk is full"),
    (OSError(errno.EDQUOT, "Disk quota exceeded"), 507, "A disk is full"),
    (OperationalError("server closed the connection unexpectedly"), 503, "The database does not answer"),
    (InterfaceError("connection already closed"), 503, "The database does not answer"),
    (TooManyPasswords("Too many people are signing in right now."), 503, "Fairlot is busy"),
    (OSError(errno.EACCES, "Permission denied"), 500, "Server error"),
]


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch):
    """Returns a function that makes every page and API call raise an error when it reads the user's portal role."""

    def break_it(error: Exception) -> None:
        def raise_it(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(User, "is_operator", property(raise_it))
        monkeypatch.setattr(full_disks, "_database_full_at", float("-inf"))

    return break_it


@pytest.mark.parametrize(("error", "status", "title"), CASES, ids=lambda value: str(value)[:40])
def test_pages_and_the_api_say_what_is_wrong(
    scene: Scene, breaks, error: Exception, status: int, title: str
) -> None:
    bob = Client(raise_request_exception=False)
    bob.force_login(scene.people.bob, backend="django.contrib.auth.backends.ModelBackend")
    breaks(error)
    page = bob.get(reverse("home"), headers={"Accept": "text/html"})
    assert (page.status_code, f"<h1>{title}</h1>" in page.content.decode()) == (status, True)
    assert ("Retry-After" in page) == (status == 503)
    api = bob.get("/api/v1/jobs")
    assert (api.status_code, api["Content-Type"]) == (status, "application/problem+json")
    assert ("Retry-After" in api) == (status == 503)
    told = {507: "full", 503: "again", 500: "wrong"}
    assert told[status] in json.loads(api.content)["detail"]


@pytest.mark.django_db
def test_health_tells_of_a_database_whose_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_disks, "_database_full_at", float("-inf"))
    assert full_disks.is_disk_full(disk_full_of_the_database())
    answer = Client().get(reverse("healthz"))
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
    assert answer.json()["disks"]["database"] == "full"


@pytest.mark.django_db(transaction=True)
def test_health_tells_that_the_ledger_is_not_sealed() -> None:
    at = datetime.now(UTC) - timedelta(days=2)
    LedgerHead.objects.create(number=1, at=at, book=0, seal=0, seal_digest=b"", digest=b"")
    answer = Client().get(reverse("healthz"))
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
    assert answer.json()["ledger"] == "not sealed"


def test_health_tells_which_disk_is_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert state_of(tmp_path / "not there yet") == "ok"
    assert state_of(tmp_path) == "ok"

    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(health.tempfile, "TemporaryFile", full)
    assert state_of(tmp_path) == "full"
