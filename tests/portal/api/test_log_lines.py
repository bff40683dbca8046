"""The API and the command line show the lines of all workers merged by time, and search them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from django.test import Client

from scheduling.backends.local import removal
from scheduling.backends.local.files import JobFiles
from scheduling.backends.logfiles import LogFiles
from scheduling.backends.output import Log
from scheduling.clusters.backend_factory import backend_for
from scheduling.models import Job
from tests.portal.scene import Scene

pytestmark = pytest.mark.django_db
STEPS = 20


@pytest.fixture
def url(scene: Scene) -> Iterator[str]:
    """Writes the logs of two workers of Bob's running job, which take turns. Yields their address in the API."""
    Job.objects.filter(pk=scene.job.pk).update(workers=2, spec=scene.job.spec | {"workers": 2})
    job_files = JobFiles(backend_for(scene.job.cluster).root, scene.job.pk)
    removal.remove(job_files)
    job_files.make()
    files = LogFiles(job_files.logs)
    for rank in range(2):
        log = Log(files.open(rank, os.O_WRONLY | os.O_CREAT), 10**6, times=files.times_writer(rank, 3))
        for step in range(STEPS):
            log.write(
                b"\x1b[1mstep\x1b[0m %d of %d\n" % (step, rank), [(0, 1_790_000_000_000 + 2 * step + rank)]
            )
        log.write(b"50%", [(0, 1_790_000_001_000)])
        log.release()
    yield f"/api/v1/jobs/{scene.job.pk}/log"
    removal.remove(job_files)


def plain(text: str) -> str:
    return text.replace("\x1b[1m", "").replace("\x1b[0m", "")


def test_lines_of_all_workers_come_once_and_in_order_of_time(
    scene: Scene, url: str, browser_of: Callable[..., Client]
) -> None:
    browser = browser_of(scene.people.bob)
    one = browser.get(f"{url}/lines").json()
    assert [plain(line["text"]) for line in one["items"]] == [
        f"step {step} of {rank}\n" for step in range(STEPS) for rank in range(2)
    ]
    first = one["items"][0]
    assert (first["rank"], first["offset"], first["at"], first["attempt"]) == (
        0,
        0,
        "2026-09-21T14:13:20Z",
        3,
    )
    assert not one["complete"]
    more = browser.get(f"{url}/lines", {"after": one["next"]}).json()
    assert (more["items"], more["next"]) == ([], one["next"])  # an unfinished line waits for its end
    Job.objects.filter(pk=scene.job.pk).update(state=Job.State.SUCCEEDED)
    rest = browser.get(f"{url}/lines", {"after": one["next"]}).json()
    assert [line["text"] for line in rest["items"]] == ["50%", "50%"]
    assert browser.get(f"{url}/lines", {"after": rest["next"]}).json()["complete"]


def test_a_search_shows_matches_of_all_workers_with_lines_around_them(
    scene: Scene, url: str, browser_of: Callable[..., Client]
) -> None:
    browser = browser_of(scene.people.bob)
    found = browser.get(f"{url}/search", {"q": "STEP 7 of", "context": 1}).json()
    assert found["next"] is None
    assert [(line["rank"], plain(line["text"])) for line in found["items"]] == [
        (0, "step 7 of 0\n"), (1, "step 7 of 1\n"),
    ]  # fmt: skip
    assert [*map(plain, found["items"][1]["before"]), *map(plain, found["items"][1]["after"])] == [
        "step 6 of 1\n", "step 8 of 1\n",
    ]  # fmt: skip
    only = browser.get(f"{url}/search", {"q": "^step 1. of", "regex": "true", "first_rank": 1}).json()
    assert {line["rank"] for line in only["items"]} == {1}
    assert len(only["items"]) == 10


def test_what_cannot_be_asked_is_refused_and_others_see_nothing(
    scene: Scene, url: str, browser_of: Callable[..., Client]
) -> None:
    bob, charlie = browser_of(scene.people.bob), browser_of(scene.people.charlie)
    for query, status in (
        ("q=(&regex=true", 422),
        ("q=", 422),
        ("q=x&after=1", 422),
        ("q=x&last_rank=2", 404),
    ):
        assert bob.get(f"{url}/search?{query}").status_code == status, query
    assert bob.get(f"{url}/lines?after=x").status_code == 422
    assert bob.get(f"{url}/lines?first_rank=1&last_rank=0").status_code == 404
    for path in ("lines", "search?q=step"):
        assert charlie.get(f"{url}/{path}").status_code == 404
