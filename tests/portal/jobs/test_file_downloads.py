"""A download of a job's file ends when its client leaves, and leaves no file open."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.test import Client
from django.urls import reverse

from portal.asgi import application
from portal.edge.threads import close_all
from scheduling.backends.local import removal
from scheduling.backends.local.files import JobFiles
from scheduling.clusters.backend_factory import backend_for
from tests.portal.scene import Scene
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)
TERABYTE = 1 << 40


@pytest.mark.parametrize("name", ["job_file_raw", "job_files_archive"])
def test_a_client_that_leaves_ends_the_download_and_its_file_is_closed(
    name: str, scene: Scene, browser_of: Callable[..., Client]
) -> None:
    files = JobFiles(backend_for(scene.job.cluster).root, scene.job.pk)
    removal.remove(files)
    files.make()
    place = files.folder / "work"
    place.mkdir()
    with open(place / "x", "wb") as file:
        file.write(os.urandom(30_000_000))
        if name == "job_file_raw":
            file.truncate(TERABYTE)
    cookie = browser_of(scene.people.bob).cookies[settings.SESSION_COOKIE_NAME].value
    sent: list[dict[str, Any]] = []
    path = "work/x" if name == "job_file_raw" else "work"

    async def request() -> None:
        left = asyncio.Event()
        messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive() -> dict[str, Any]:
            if (message := next(messages, None)) is not None:
                return message
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)
            if len(sent) == 5:
                left.set()

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
            "path": reverse(name, args=[scene.job.pk]), "raw_path": b"", "root_path": "",
            "query_string": f"path={path}".encode(), "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
            "headers": [
                (b"host", b"localhost"), (b"cookie", f"{settings.SESSION_COOKIE_NAME}={cookie}".encode()),
            ],
        }  # fmt: skip
        await application(scope, receive, send)

    async_to_sync(request)()
    close_all()
    assert sent[0]["status"] == 200
    assert 5 <= len(sent) < 50
    wait_for(lambda: not is_open(str(place / "x")), what="the file to be closed")
    removal.remove(files)


def is_open(path: str) -> bool:
    """Returns whether this process has the file open."""
    for each in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{each}") == path:
                return True
        except FileNotFoundError:  # closed meanwhile
            continue
    return False
