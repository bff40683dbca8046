"""If-Match: a change that names the version which its caller has read overwrites no change of somebody else."""

from __future__ import annotations

from typing import Any

import pytest

from accounting.models import AuditEvent
from scheduling.jobs.editing import edit_job
from scheduling.models.versions import OtherVersion, version_of
from tests.portal.scene import Scene

JSON = "application/json"
SPEC = {"name": "nightly", "command": "true", "gpus_per_worker": 1}
# For each kind of object: its path, and two bodies that change it.
OBJECTS = {
    "job": ("patch", "/jobs/{job}", {"priority": 10}, {"labels": {"run": "b"}}),
    "service": ("patch", "/services/{service}", {"replicas": 3}, {"stopped": True}),
    "schedule": (
        "put",
        "/schedules/{schedule}",
        {"spec": SPEC, "expression": "0 2 * * *", "begins": "2030-01-01T00:00:00+02:00"},
        {"spec": SPEC, "expression": "0 3 * * *"},
    ),
}


@pytest.fixture
def call(scene: Scene, browser_of):
    """Returns a function that calls the API as Alice, about the object of a path in OBJECTS."""
    browser = browser_of(scene.people.alice)

    def call(method: str, path: str, body: Any = None, if_match: str | None = None):
        ids = {"job": scene.waiting.pk, "service": scene.service.pk, "schedule": scene.schedule.pk}
        headers = {"If-Match": if_match} if if_match else {}
        extra = {} if body is None else {"data": body, "content_type": JSON}
        return getattr(browser, method)(f"/api/v1{path.format(**ids)}", **extra, headers=headers)

    return call


@pytest.mark.parametrize("kind", OBJECTS)
def test_a_change_of_an_outdated_version_is_refused(scene: Scene, call, kind: str) -> None:
    method, path, first, second = OBJECTS[kind]
    read = call("get", path)
    seen = read["ETag"]
    assert seen == f'"{read.json()["version"]}"'
    changed = call(method, path, first, seen)
    assert changed.status_code == 200, changed.content
    assert changed["ETag"] == call("get", path)["ETag"] != seen

    events = AuditEvent.objects.count()
    refused = call(method, path, second, seen)
    assert (refused.status_code, refused["Content-Type"]) == (412, "application/problem+json")
    assert "has changed since you read it" in refused.json()["detail"]
    assert call("get", path)["ETag"] == changed["ETag"]
    assert AuditEvent.objects.count() == events

    assert call(method, path, second, f'W/"other", {changed["ETag"]}').status_code == 200
    assert call(method, path, first, "*").status_code == 200
    assert call(method, path, second).status_code == 200


def test_a_schedule_is_deleted_only_in_the_version_that_was_seen(call) -> None:
    path = OBJECTS["schedule"][1]
    seen = call("get", path)["ETag"]
    assert call("delete", path, if_match='"0"').status_code == 412
    assert call("delete", path, if_match=seen).status_code == 204


def test_a_secret_is_replaced_only_in_the_version_that_was_seen(scene: Scene, browser_of) -> None:
    browser = browser_of(scene.people.alice)
    path = f"/api/v1/secrets/{scene.team_secret.pk}"
    seen = next(
        one["version"] for one in browser.get("/api/v1/secrets").json() if one["id"] == scene.team_secret.pk
    )

    def replace(text: str):
        return browser.put(path, {"value": text}, JSON, headers={"If-Match": f'"{seen}"'}).status_code

    assert (replace("one"), replace("two")) == (200, 412)


def test_the_version_is_compared_under_the_lock_of_the_row(
    scene: Scene, django_capture_on_commit_callbacks
) -> None:
    """The caller read the row long before; what counts is the row at the time of the change."""
    seen = [version_of(scene.waiting)]
    stale = type(scene.waiting).objects.get(pk=scene.waiting.pk)
    edit_job(actor=scene.people.alice, job=scene.waiting, changes={"priority": 10}, seen=seen)
    with pytest.raises(OtherVersion):
        edit_job(actor=scene.people.alice, job=stale, changes={"priority": 20}, seen=seen)


def test_states_are_no_part_of_a_version(scene: Scene) -> None:
    job = scene.waiting
    before = version_of(job)
    job.reason, job.state = 3, "running"
    assert version_of(job) == before
    job.spec = dict(reversed(job.spec.items()))
    assert version_of(job) == before
    job.spec = job.spec | {"priority": 3}
    assert version_of(job) != before
