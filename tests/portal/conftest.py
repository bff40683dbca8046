"""Fixtures for tests of the portal: the standard set of objects (`scene`), and signed-in browsers."""

from typing import TYPE_CHECKING

import pytest
from django.test import Client

if TYPE_CHECKING:
    from accounting.models import User
    from tests.portal.kept_scene import KeptScene
    from tests.portal.scene import Scene


@pytest.fixture(autouse=True)
def _nothing_known_from_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clears the caches of this process, and raises time limits so that a slow machine does not look like a dead
    server."""
    from portal import middleware  # noqa: PLC0415 - as below
    from portal.edge import health  # noqa: PLC0415 - as below
    from scheduling.core import pubsub  # noqa: PLC0415 - as below

    middleware.forget_local_cluster()
    monkeypatch.setattr(pubsub, "POSITION_SECONDS", (2.0, 2.0))
    monkeypatch.setattr(pubsub, "_silent_until", float("-inf"))
    monkeypatch.setattr(pubsub, "_recent", (float("-inf"), ""))
    monkeypatch.setattr(health, "WITHIN_SECONDS", 60.0)


@pytest.fixture(scope="session")
def kept_scene() -> "KeptScene":
    from tests.portal.kept_scene import KeptScene  # noqa: PLC0415 - models cannot be imported earlier

    return KeptScene()


@pytest.fixture
def scene(db: None, kept_scene: "KeptScene") -> "Scene":
    return kept_scene.put_back()


@pytest.fixture
def browser_of():
    """Returns a function that signs a user in and returns the browser. CSRF is checked only if a test enables it."""

    def sign_in(user: "User", *, enforce_csrf_checks: bool = False) -> Client:
        client = Client(enforce_csrf_checks=enforce_csrf_checks)
        client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
        return client

    return sign_in
