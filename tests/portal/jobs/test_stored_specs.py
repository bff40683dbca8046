"""Job specifications that earlier rules accepted can still be shown, cloned, changed and returned by the API."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from accounting.core.clock import now_from_database
from scheduling.models import Cluster, Job
from tests.portal.scene import Scene
from tests.scheduling.spec.test_stored_specs import STRANGE


@pytest.fixture
def bob(scene: Scene, browser_of: Any) -> Client:
    for row in (scene.job, scene.schedule, scene.service.current):
        type(row).objects.filter(pk=row.pk).update(spec=STRANGE)
    return browser_of(scene.people.bob)


def test_all_its_pages_answer(scene: Scene, bob: Client) -> None:
    job, schedule, service = scene.job.pk, scene.schedule.pk, scene.service.pk
    for path in (
        "/", "/jobs/", f"/jobs/{job}/", f"/jobs/{job}/log/", f"/jobs/{job}/events/", f"/jobs/{job}/bill/",
        f"/schedules/{schedule}/", f"/services/{service}/", "/schedules/", "/services/", "/cluster/",
    ):  # fmt: skip
        assert bob.get(path).status_code == 200, path
    for path in (f"/jobs/{job}/spec/", f"/schedules/{schedule}/", f"/services/{service}/"):
        page = bob.get(path).content.decode()
        assert "retired" in page, "what no field is any more is shown, too"
        assert "checkpoint_grace_seconds: 1000000000.0" in page


def test_a_form_filled_with_it_shows_what_is_refused_today(scene: Scene, bob: Client) -> None:
    for path in (
        f"/submit/?clone={scene.job.pk}",
        f"/schedules/new/?job={scene.job.pk}",
        f"/schedules/{scene.schedule.pk}/edit/",
        f"/services/{scene.service.pk}/update/",
    ):
        answer = bob.get(path)
        page = answer.content.decode()
        assert answer.status_code == 200
        for said in (
            "Must be a number of seconds from 0 to 3600",
            "is not a field of a job spec",
            "Must be a whole number from 1 to",
        ):
            assert said in page, (path, said)


def test_the_api_returns_a_stored_spec_unchanged(scene: Scene, client: Client, bob: Client) -> None:
    bearer = {"HTTP_AUTHORIZATION": f"Bearer {scene.secret}"}
    job = client.get(f"/api/v1/jobs/{scene.job.pk}", **bearer).json()
    assert (job["spec"], job["labels"]) == (STRANGE, {})
    for path in (
        "jobs",
        "schedules",
        f"schedules/{scene.schedule.pk}",
        "services",
        f"services/{scene.service.pk}",
    ):
        assert client.get(f"/api/v1/{path}", **bearer).status_code == 200, path


def test_it_is_cancelled_as_any_other(scene: Scene, bob: Client) -> None:
    assert bob.post(f"/jobs/{scene.job.pk}/cancel/").status_code == 302
    assert Job.objects.get(pk=scene.job.pk).state == Job.State.CANCELLING


def test_operators_read_what_went_wrong_in_following_a_cluster_for_a_day(
    scene: Scene, browser_of: Any
) -> None:
    now = now_from_database()
    Cluster.objects.update(failure="KeyError: 'grace'", failed_at=now)
    assert "KeyError" in browser_of(scene.people.olga).get("/cluster/").content.decode()
    assert "KeyError" not in browser_of(scene.people.bob).get("/cluster/").content.decode()
    Cluster.objects.update(failed_at=now - timedelta(hours=25))
    assert "KeyError" not in browser_of(scene.people.olga).get("/cluster/").content.decode()
