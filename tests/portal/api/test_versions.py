"""If-Match: a change that names the version which its caller has read overwrites no change of somebody else."""

from __future__ import annotations

from typing import Any

import pytest

from accounting.actions.notifications import save_channel
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


# For each kind of object that only lists show: the list, what finds the object in it, and two calls that change it.
IN_LISTS = {
    "member": ("/teams/astro/members", {"user": "bob"}, ("patch", "/teams/astro/members/bob", {"tickets": 7}),
               ("delete", "/teams/astro/members/bob", None)),
    "budget": ("/budgets?team=astro", {"period": "month"},
               ("put", "/budgets", {"team": "astro", "period": "month", "amount": "9"}),
               ("delete", "/budgets/{id}", None)),
    "idle rule": ("/idle-rules", {"team": "astro"},
                  ("put", "/idle-rules", {"team": "astro", "action": "warn", "after_minutes": 9}),
                  ("delete", "/idle-rules/{id}", None)),
    "limit": ("/limits?team=astro", {"kind": "gpus", "user": None, "each_user": False},
              ("post", "/limits", {"team": "astro", "kind": "gpus", "limit": "3"}), ("delete", "/limits/{id}", None)),
    "announcement": ("/announcements?every=true", {"text": "Maintenance"},
                     ("put", "/announcements/{id}", {"text": "Maintenance", "dismissible": False}),
                     ("delete", "/announcements/{id}", None)),
    "channel": ("/notification-channels", {"name": "ours"}, ("put", "/notification-channels/{id}", {"name": "ours "}),
                ("delete", "/notification-channels/{id}", None)),
    "rule": ("/notification-rules", {"way": "bell"},
             ("put", "/notification-rules", {"events": ["job.failed"], "way": "bell"}),
             ("delete", "/notification-rules/{id}", None)),
}  # fmt: skip
MADE = [
    ("/budgets", "put", {"team": "astro", "period": "month", "amount": "5"}),
    ("/idle-rules", "put", {"team": "astro", "action": "warn", "after_minutes": 5}),
    ("/limits", "post", {"team": "astro", "kind": "gpus", "limit": "2"}),
    ("/announcements", "post", {"text": "Maintenance"}),
    ("/notification-rules", "put", {"events": ["job.ended"], "way": "bell"}),
]


@pytest.mark.parametrize("kind", IN_LISTS)
def test_what_lists_show_is_changed_only_in_the_version_that_was_seen(
    scene: Scene, browser_of, kind: str
) -> None:
    browser = browser_of(scene.people.ada)
    listed, wanted, (method, path, body), (remove, removed, _) = IN_LISTS[kind]

    def call(method: str, path: str, body: Any = None, seen: str | None = None) -> Any:
        headers = {"If-Match": f'"{seen}"'} if seen else {}
        extra = {} if body is None else {"data": body, "content_type": JSON}
        return getattr(browser, method)(f"/api/v1{path}", **extra, headers=headers)

    def read() -> dict[str, Any]:
        found = call("get", listed).json()
        return next(one for one in found if all(one[name] == value for name, value in wanted.items()))

    for made_at, made_by, given in MADE:
        if listed.startswith(made_at):
            assert call(made_by, made_at, given).status_code in {200, 201}, kind
    if kind == "channel":
        save_channel(actor=scene.people.ada, kind="webhook", name="ours", url="https://chat.example.org/hook")
    before = read()
    change = call(method, path.format(**before), body, None if kind == "limit" else before["version"])
    assert change.status_code in {200, 201}, change.content
    after = read()
    assert (after["version"] != before["version"]) == (kind != "channel")  # whose name is tidied
    outdated = before["version"] if kind != "channel" else "0"
    events = AuditEvent.objects.count()
    for verb, where, what in ((method, path, body), (remove, removed, None)):
        if (kind, verb) != ("limit", "post"):
            answer = call(verb, where.format(**before), what, outdated)
            assert answer.status_code == 412, (verb, answer.content)
    assert AuditEvent.objects.count() == events
    assert call(remove, removed.format(**after), None, after["version"]).status_code == 204


def test_teams_reservations_and_settings_of_clusters_have_versions_too(scene: Scene, browser_of) -> None:
    browser = browser_of(scene.people.ada)

    def put(path: str, body: Any, seen: str | None = None, method: str = "put") -> Any:
        headers = {"If-Match": f'"{seen}"'} if seen else {}
        return getattr(browser, method)(f"/api/v1{path}", body, JSON, headers=headers)

    team = put("/teams/astro/tickets", {"tickets": 70}).json()["team"]
    assert put("/teams/astro/tickets", {"tickets": 80}, "0").status_code == 412
    assert put("/teams/astro/parent", {"parent": None}, "0").status_code == 412
    assert put("/teams/astro/archived", {"archived": True}, "0").status_code == 412
    assert put("/teams/astro/tickets", {"tickets": 80}, team["version"]).status_code == 200

    cluster = f"/clusters/{scene.world.cluster.name}/settings"
    read = browser.get(f"/api/v1{cluster}")
    assert read["ETag"] == f'"{read.json()["version"]}"'
    changed = put(cluster, {"quantum_seconds": 90}, read.json()["version"], "patch")
    assert (changed.status_code, changed["ETag"] != read["ETag"]) == (200, True)
    assert put(cluster, {"quantum_seconds": 91}, read.json()["version"], "patch").status_code == 412


def test_what_does_not_exist_has_none_of_the_versions_that_were_seen(scene: Scene, browser_of) -> None:
    body = {"team": "bio", "period": "quarter", "amount": "5"}
    put = browser_of(scene.people.ada).put
    assert put("/api/v1/budgets", body, JSON, headers={"If-Match": "*"}).status_code == 412
    assert put("/api/v1/budgets", body, JSON).status_code == 200


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
