"""The storage page shows who takes how much space, biggest first, and has files deleted."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from accounting.actions.quotas import set_quota
from accounting.core.clock import now_from_database
from accounting.models import Quota
from scheduling.models import Job, JobStorage, Lease
from tests.portal.scene import Scene, secrets_in

GIB = 1 << 30


@pytest.fixture
def measured(scene: Scene) -> Scene:
    """Returns the scene with measured files: 3 GiB of Bob's ended job, 5 GiB of Alice's, and 7 GiB of Charlie's."""
    for job, size in ((scene.job, 3), (scene.waiting, 5), (scene.other, 7)):
        JobStorage.objects.create(job=job, size=size * GIB, files=size, measured_at=now_from_database())
    end(scene.job)
    return scene


def end(job: Job) -> None:
    Lease.objects.filter(job=job).update(state=Lease.State.CLOSED)
    Job.objects.filter(pk=job.pk).update(state=Job.State.FAILED, ended_at=now_from_database())


def page(browser: Client, query: str = "") -> str:
    answer = browser.get(reverse("storage") + query)
    assert answer.status_code == 200
    return re.sub(r"\s+", " ", answer.content.decode().replace("\u202f", " ").replace("\xa0", " "))


def words(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_each_sees_the_jobs_of_their_teams_biggest_first(
    measured: Scene, browser_of: Callable[..., Client]
) -> None:
    people = measured.people
    bobs = page(browser_of(people.bob))
    assert re.findall(r'/files/">([^<]+)</a>', bobs) == ["supernova-next", "supernova"]
    assert "8.0 GiB" in bobs  # the team's
    assert "7.0 GiB" not in bobs
    charlies = page(browser_of(people.charlie))
    assert "7.0 GiB" in charlies
    assert secrets_in(charlies.partition("<main")[2]) == []
    olgas = page(browser_of(people.olga))
    assert re.findall(r'/files/">([^<]+)</a>', olgas) == ["genome", "supernova-next", "supernova"]
    mine = page(browser_of(people.bob), "?mine=1")
    assert re.findall(r'/files/">([^<]+)</a>', mine) == ["supernova"]
    assert browser_of(people.charlie).get(reverse("storage") + "?team=astro").status_code == 404


def test_limits_on_files_are_shown_to_those_whom_they_concern(
    measured: Scene, browser_of: Callable[..., Client]
) -> None:
    people, kind = measured.people, Quota.Kind.STORAGE
    set_quota(actor=people.ada, tenant=people.astro, kind=kind, limit=8)
    set_quota(actor=people.ada, tenant=people.astro, kind=kind, limit=Decimal("3.5"), each_user=True)
    set_quota(actor=people.ada, tenant=people.bio, kind=kind, limit=100)
    bobs = words(page(browser_of(people.bob))).partition("Limits")[2].partition("Jobs, biggest")[0]
    assert "Astro 8.0 GiB 8.0 GiB 8 of 8 New jobs are refused. Delete files of ended jobs in the list" in bobs
    assert "bob in Astro 3.0 GiB 3.5 GiB 3 of 3.5 Nearly full." in bobs
    assert "100.0 GiB" not in bobs
    charlies = words(page(browser_of(people.charlie)))
    assert "7.0 GiB 100.0 GiB" in charlies
    assert "Astro" not in charlies.partition("Limits")[2].partition("Jobs, biggest first")[0]


def test_only_files_of_ended_jobs_that_one_may_change_can_be_deleted(
    measured: Scene, browser_of: Callable[..., Client]
) -> None:
    people = measured.people
    url = reverse("job_files_delete", args=[measured.job.pk])
    assert page(browser_of(people.bob)).count(url) == 1
    assert page(browser_of(people.olga)).count("/files/delete/") == 1
    assert browser_of(people.charlie).post(url).status_code == 404
    answer = browser_of(people.bob).post(url, follow=True)
    assert "The files of supernova" in answer.content.decode()
    assert JobStorage.objects.get(job=measured.job).deletion_wanted_at is not None
    again = page(browser_of(people.bob))
    assert "in a moment" in again
    assert url not in again
    refused = browser_of(people.olga).post(reverse("job_files_delete", args=[measured.other.pk]), follow=True)
    assert "has not ended" in refused.content.decode()


def test_the_files_tab_of_an_ended_job_offers_the_deletion(
    measured: Scene, browser_of: Callable[..., Client]
) -> None:
    for job, offered in ((measured.job, True), (measured.waiting, False)):
        answer = browser_of(measured.people.alice).get(reverse("job_files", args=[job.pk]))
        assert (b'id="delete-files"' in answer.content) == offered


def test_more_jobs_take_no_more_queries(measured: Scene, browser_of: Callable[..., Client]) -> None:
    browser = browser_of(measured.people.olga)
    page(browser)
    counts = []
    for _ in range(2):
        with CaptureQueriesContext(connection) as asked:
            page(browser)
        counts.append(len(asked))
        for job in Job.objects.filter(storage=None):
            JobStorage.objects.create(job=job, size=GIB, files=1, measured_at=now_from_database())
    assert counts[0] == counts[1]


def test_files_that_are_gone_take_no_space(measured: Scene, browser_of: Callable[..., Client]) -> None:
    Job.objects.update(files_removed_at=now_from_database())
    assert "Nothing takes space" in page(browser_of(measured.people.bob))


def test_the_api_lists_and_deletes_what_the_page_does(
    measured: Scene, browser_of: Callable[..., Client]
) -> None:
    people, url = measured.people, f"/api/v1/jobs/{measured.job.pk}/files"
    bob = browser_of(people.bob)
    first = bob.get("/api/v1/storage?limit=1").json()
    second = bob.get(f"/api/v1/storage?limit=1&page={first['next']}").json()
    found = [*first["items"], *second["items"]]
    assert [(item["name"], item["bytes"] // GIB) for item in found] == [
        ("supernova-next", 5),
        ("supernova", 3),
    ]
    assert second["next"] is None
    assert found[1]["deleted_at"] is not None
    for query in ("", "?team=astro"):
        shown = browser_of(people.charlie).get(f"/api/v1/storage{query}").json()["items"]
        assert [item["name"] for item in shown] == ([] if query else ["genome"])
    assert browser_of(people.charlie).delete(url).status_code == 404
    for _ in range(2):
        answer = browser_of(people.alice).delete(url)
        assert (answer.status_code, answer.json()["bytes"]) == (202, 3 * GIB)
    refused = bob.delete(f"/api/v1/jobs/{measured.waiting.pk}/files")
    assert refused.status_code == 403  # Alice's
    refused = browser_of(people.alice).delete(f"/api/v1/jobs/{measured.waiting.pk}/files")
    assert (refused.status_code, "has not ended" in refused.json()["detail"]) == (409, True)
