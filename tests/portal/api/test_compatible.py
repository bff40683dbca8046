"""Clients of Marathon and Chronos manage services and schedules with the calls that they know."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils.timezone import now

from portal.models import Scope
from portal.tokens.actions import create_token
from scheduling.models import Job, Schedule, Service
from scheduling.schedules.actions import Terms, create_schedule
from scheduling.spec.job_spec import JobSpec
from tests import make
from tests.portal.scene import Scene

JSON = "application/json"
APP = {
    "id": "/Vision/chat",
    "cmd": "python serve.py --port $PORT0",
    "instances": 2,
    "gpus": 1,
    "env": {"MODEL": "small"},
    "labels": {"stage": "test"},
    "portDefinitions": [{"port": 8000}],
    "healthChecks": [{"protocol": "HTTP", "path": "/health", "intervalSeconds": 7}],
    "constraints": [["hostname", "UNIQUE"]],
}
JOB = {
    "name": "nightly",
    "command": "python train.py",
    "schedule": "R/2030-01-01T02:00:00Z/P1D",
    "epsilon": "PT30M",
    "gpus": 2,
    "environmentVariables": [{"name": "MODEL", "value": "small"}],
}


@pytest.fixture
def call(scene: Scene):
    """Returns a function that calls as Bob does with the token as the password of basic authentication."""

    def call(method: str, path: str, body: Any = None, secret: str = scene.secret):
        word = base64.b64encode(f"bob:{secret}".encode()).decode()
        extra = {} if body is None else {"data": body, "content_type": JSON}
        return getattr(Client(), method)(f"/api{path}", **extra, headers={"authorization": f"Basic {word}"})

    return call


def test_an_app_is_created_read_changed_scaled_and_deleted(scene: Scene, call) -> None:
    made = call("post", "/v2/apps", APP)
    assert made.status_code == 201, made.content
    assert {
        "field": "constraints[0]",
        "fate": "dropped",
        "text": "Fairlot chooses the nodes.",
    } in made.json()["fairlot"]["report"]
    app = call("get", "/v2/apps//vision/chat").json()["app"]
    assert app["id"] == "/vision-chat"
    same = ("instances", "gpus", "env", "labels", "portDefinitions")
    assert {name: app[name] for name in same} == {name: APP[name] for name in same} | {
        "portDefinitions": [{"port": 8000, "protocol": "tcp"}]
    }
    assert (app["tasksRunning"], app["tasksStaged"], app["healthChecks"][0]["path"]) == (0, 2, "/health")

    service = Service.objects.get(name="vision-chat")
    assert call("put", "/v2/apps/vision-chat", {"instances": 5}).status_code == 200
    service.refresh_from_db()
    assert (service.replicas, service.revisions.count()) == (5, 1)

    before = JobSpec.stored(service.current.spec).to_dict()
    assert call("put", "/v2/apps/vision-chat", {"env": {"MODEL": "large"}, "labels": {}}).status_code == 200
    service.refresh_from_db()
    after = JobSpec.stored(service.current.spec).to_dict()
    assert after == before | {"variables": {"MODEL": "large"}, "labels": {}}
    assert service.replicas == 5
    assert len(call("get", "/v2/apps/vision-chat/versions").json()["versions"]) == 2
    assert call("get", "/v2/apps/vision-chat/tasks").json() == {"tasks": []}

    assert call("delete", "/v2/apps/vision-chat").json()["deploymentId"] == str(service.current_id)
    assert call("get", "/v2/apps/vision-chat").status_code == 404


def test_a_change_keeps_what_marathon_does_not_know(scene: Scene, call) -> None:
    before = JobSpec.stored(scene.service.current.spec).to_dict()
    answer = call("put", f"/v2/apps/{scene.service.name}", {"cmd": "python other.py $PORT0"})
    assert answer.status_code == 200, answer.content
    scene.service.refresh_from_db()
    after = JobSpec.stored(scene.service.current.spec).to_dict()
    assert {name for name in after if after[name] != before[name]} == {"command"}


def test_an_app_is_restarted_and_rolled_back(scene: Scene, call) -> None:
    service, name = scene.service, scene.service.name
    (first,) = call("get", f"/v2/apps/{name}/versions").json()["versions"]
    assert call("get", f"/v2/apps/{name}/versions/{first}").json()["version"] == first
    assert call("get", f"/v2/apps/{name}/versions/2001-01-01T00:00:00.000Z").status_code == 404

    answer = call("post", f"/v2/apps/{name}/restart?force=true").json()
    service.refresh_from_db()
    assert answer["deploymentId"] == str(service.current_id)
    assert service.current.number == 2
    again, one = (JobSpec.stored(spec) for spec in service.revisions.values_list("spec", flat=True))
    assert again == one, "the same specification is rolled out again"

    assert call("put", f"/v2/apps/{name}", {"version": first}).status_code == 200
    service.refresh_from_db()
    assert service.current.number == 1
    assert call("put", f"/v2/apps/{name}", {"version": "yesterday"}).status_code == 404


def test_a_rollout_is_a_deployment_until_it_is_reverted(scene: Scene, call) -> None:
    service = scene.service
    Service.objects.filter(pk=service.pk).update(good=service.current_id)
    assert call("get", "/v2/deployments").json() == []
    call("put", f"/v2/apps/{service.name}", {"cmd": "python new.py $PORT0"})
    (found,) = call("get", "/v2/deployments").json()
    assert (found["affectedApps"], found["currentActions"][0]["action"]) == (
        [f"/{service.name}"], "RestartApplication",
    )  # fmt: skip
    assert call("delete", f"/v2/deployments/{found['id']}?force=true").status_code == 409
    assert call("delete", f"/v2/deployments/{found['id']}").json()["deploymentId"] == str(service.current_id)
    assert call("get", "/v2/deployments").json() == []
    assert call("delete", f"/v2/deployments/{found['id']}").status_code == 404
    Service.objects.filter(pk=service.pk).update(good=None)
    (first,) = call("get", "/v2/deployments").json()
    assert first["currentActions"][0]["action"] == "StartApplication"
    assert "first revision" in call("delete", f"/v2/deployments/{first['id']}").json()["message"]


def test_replicas_are_tasks_that_can_be_killed(scene: Scene, call) -> None:
    name = scene.service.name
    tasks = call("get", f"/v2/apps/{name}/tasks").json()["tasks"]
    assert tasks == call("get", "/v2/tasks").json()["tasks"]
    (app,) = call("get", f"/v2/apps?id={name}&embed=apps.tasks&cmd=").json()["apps"]
    assert app["tasks"] == tasks
    assert "tasks" not in call("get", f"/v2/apps/{name}").json()["app"]
    assert call("get", f"/v2/apps?id={name}&cmd=no+such+program").json() == {"apps": []}
    assert call("delete", f"/v2/apps/{name}/tasks?scale=true").status_code == 409
    assert call("delete", f"/v2/apps/{name}/tasks").json()["tasks"] == tasks


def test_what_waits_is_in_the_queue_and_the_server_says_what_it_is(scene: Scene, call) -> None:
    call("post", "/v2/apps", APP)
    assert {one["app"]["id"]: one["count"] for one in call("get", "/v2/queue").json()["queue"]}[
        "/vision-chat"
    ] == 2
    assert call("get", "/v2/info").json()["name"] == "fairlot"
    assert call("get", "/ping").content == b"pong"


GROUP = {
    "id": "/shop",
    "groups": [{"id": "models", "apps": [APP | {"id": "chat"}]}],
    "apps": [APP | {"id": "web"}],
}


def test_the_apps_of_a_group_are_services_whose_names_begin_with_it(scene: Scene, call) -> None:
    made = call("post", "/v2/groups", GROUP)
    assert made.status_code == 201, made.content
    assert made.json()["fairlot"]["report"]
    shown = call("get", "/v2/groups//shop").json()
    assert (shown["id"], sorted(app["id"] for app in shown["apps"])) == (
        "/shop", ["/shop-models-chat", "/shop-web"],
    )  # fmt: skip
    assert {app["id"] for app in call("get", "/v2/groups").json()["apps"]} > {
        app["id"] for app in shown["apps"]
    }
    assert call("get", "/v2/groups/none").status_code == 404
    assert "exists already" in call("post", "/v2/groups", GROUP).json()["message"]

    fewer = {"apps": [APP | {"id": "web", "instances": 3}, APP | {"id": "more"}]}
    assert call("put", "/v2/groups/shop", fewer).status_code == 200
    named = Service.objects.filter(name__startswith="shop-").kept()
    assert dict(named.values_list("name", "replicas")) == {
        "shop-models-chat": 2,
        "shop-web": 3,
        "shop-more": 2,
    }
    assert call("put", "/v2/groups", {"id": "/shop"} | fewer).status_code == 200
    for body in ({"scaleBy": 2}, {"version": "2030-01-01T00:00:00.000Z"}):
        assert "no groups" in call("put", "/v2/groups/shop", body).json()["message"]
    assert call("delete", "/v2/groups/shop").status_code == 409

    job = {"id": "/shop", "apps": [APP | {"id": "other"}, {"id": "job", "cmd": "python train.py"}]}
    refused = call("put", "/v2/groups", job)
    assert (refused.status_code, "shop-job: The app has no port" in refused.content.decode()) == (422, True)
    assert not Service.objects.filter(name="shop-other").exists()


def test_a_put_creates_an_app_that_does_not_exist(call) -> None:
    assert call("put", "/v2/apps/new", {key: APP[key] for key in APP if key != "id"}).status_code == 201
    assert Service.objects.filter(name="new", replicas=2).exists()


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (APP | {"container": {"docker": {"image": "x", "privileged": True}}}, 422, "root on the node"),
        ({"id": "job", "cmd": "python train.py"}, 422, "The app has no port"),
        ([APP, APP | {"id": "other"}], 422, "Send one app"),
        ("{", 422, ""),
        (b"\xff{}", 422, "The body is not UTF-8"),
        (APP | {"id": "{service}"}, 409, "already has a service"),
    ],
)
def test_what_is_refused_is_an_error_of_marathon(
    scene: Scene, call, body: Any, status: int, said: str
) -> None:
    if isinstance(body, dict):
        body = body | {"id": body["id"].format(service=scene.service.name)}
    answer = call("post", "/v2/apps", body)
    assert answer.status_code == status, answer.content
    assert answer.json()["message"]
    assert said in answer.content.decode()


def test_jobs_of_chronos_are_schedules(scene: Scene, call) -> None:
    assert call("post", "/v1/scheduler/iso8601", JOB).status_code == 204
    assert call("post", "/v1/scheduler/iso8601", JOB | {"command": "python other.py"}).status_code == 204
    shown = call("get", "/v1/scheduler/jobs/search?name=nightly").json()
    assert len(shown) == 1, "the second call has replaced the first"
    same = ("name", "schedule", "gpus", "environmentVariables")
    assert {name: shown[0][name] for name in same} == {name: JOB[name] for name in same}
    assert (shown[0]["epsilon"], shown[0]["disabled"], shown[0]["successCount"]) == ("PT1800S", False, 0)

    assert call("put", "/v1/scheduler/job/nightly").status_code == 204
    job = Job.objects.get(scheduled_as__schedule__name="nightly")
    assert (job.owner, job.state) == (scene.people.bob, Job.State.QUEUED)
    assert call("delete", "/v1/scheduler/task/kill/nightly").status_code == 204
    job.refresh_from_db()
    assert job.has_ended
    assert "node,nightly,fresh,idle\n" in call("get", "/v1/scheduler/graph/csv").content.decode()
    assert call("delete", "/v1/scheduler/job/nightly").status_code == 204
    assert call("get", "/v1/scheduler/jobs/search?any=nightly").json() == []
    assert Schedule.objects.get(name="nightly").deleted_at


def test_chronos_clients_update_read_and_measure_jobs(scene: Scene, call) -> None:
    assert call("put", "/v1/scheduler/iso8601", JOB).status_code == 204
    assert call("get", "/v1/scheduler/job/nightly").json()["schedule"] == JOB["schedule"]
    empty = {"count": 0, "mean": 0, "median": 0, "75thPercentile": 0, "95thPercentile": 0, "98thPercentile": 0,
             "99thPercentile": 0}  # fmt: skip
    assert call("get", "/v1/scheduler/job/stat/nightly").json()["histogram"] == empty
    began = now()
    for minutes in (1, 3):
        call("put", "/v1/scheduler/job/nightly")
        (row,) = call("get", "/v1/scheduler/jobs/search?name=nightly").json()
        assert row["state"] == "1 running"
        Job.objects.filter(scheduled_as__schedule__name="nightly", ended_at=None).update(
            state=Job.State.SUCCEEDED, first_generation=scene.people.a100, first_started_at=began,
            ended_at=began + timedelta(minutes=minutes),
        )  # fmt: skip
    found = call("get", "/v1/scheduler/job/stat/nightly").json()["histogram"]
    assert (found["count"], found["mean"], found["median"]) == (2, 120, 120)
    assert call("get", "/v1/scheduler/stats/mean").json() == [{"jobNameLabel": "nightly", "time": 120.0}]
    assert call("get", "/v1/scheduler/stats/mode").status_code == 404
    rows = {one["name"]: one["status"] for one in call("get", "/v1/scheduler/jobs/summary").json()["jobs"]}
    assert rows["nightly"] == "success"
    assert '"nightly";' in call("get", "/v1/scheduler/graph/dot").content.decode()
    child = {key: JOB[key] for key in JOB if key != "schedule"} | {"name": "child", "parents": ["nightly"]}
    for method in ("post", "put"):
        answer = call(method, "/v1/scheduler/dependency", child)
        assert (answer.status_code, "Make a pipeline" in answer.json()["message"]) == (409, True)
    assert not Schedule.objects.filter(name="child").exists()


def test_a_disabled_job_of_chronos_is_a_paused_schedule(scene: Scene, call) -> None:
    for disabled in (True, False, True):
        assert call("post", "/v1/scheduler/iso8601", JOB | {"disabled": disabled}).status_code == 204
        assert call("get", "/v1/scheduler/jobs/search?name=nightly").json()[0]["disabled"] is disabled
        assert (Schedule.objects.get(name="nightly").paused_at is not None) is disabled
    assert call("post", "/v1/scheduler/iso8601", JOB).status_code == 204
    assert Schedule.objects.get(name="nightly").paused_at, "a job without the field stays paused"


@pytest.mark.parametrize("body", [b"\xff", b"[" * 100_000], ids=["not-utf-8", "deep"])
def test_a_body_that_cannot_be_read_is_refused(scene: Scene, call, body: bytes) -> None:
    assert call("put", f"/v2/apps/{scene.service.name}", body).status_code == 422
    assert call("post", "/v1/scheduler/iso8601", body).status_code == 422


def test_a_schedule_of_another_team_is_not_taken_for_ones_own(scene: Scene, call) -> None:
    people = scene.people
    theirs = create_schedule(
        actor=people.charlie,
        tenant=people.bio,
        cluster=scene.world.cluster,
        spec=JobSpec(name="nightly", command="genome"),
        terms=Terms("@daily", "UTC"),
    )
    assert call("post", "/v1/scheduler/iso8601", JOB).status_code == 204
    make.membership(people.bob, people.bio, role="manager")
    for method, path, body in [
        ("post", "/v1/scheduler/iso8601", JOB | {"command": "echo $KEY_OF_ASTRO"}),
        ("delete", "/v1/scheduler/job/nightly", None),
    ]:
        answer = call(method, path, body)
        assert (answer.status_code, "?team=" in answer.json()["message"]) == (409, True)
    assert call("delete", "/v1/scheduler/job/nightly?team=astro").status_code == 204
    assert list(Schedule.objects.kept().filter(name="nightly")) == [theirs]

    # What an operator sees of a team is not the operator's own.
    make.membership(people.olga, people.astro)
    _, olgas = create_token(actor=people.olga, name="m", scopes=Scope.values, days=1)
    before = theirs.spec
    assert call("post", "/v1/scheduler/iso8601", JOB, secret=olgas).status_code == 204
    theirs.refresh_from_db()
    assert (theirs.spec, theirs.owner) == (before, people.charlie)


def test_another_site_cannot_use_the_token_that_a_browser_remembers(scene: Scene) -> None:
    word = base64.b64encode(f"bob:{scene.secret}".encode()).decode()
    headers = {"authorization": f"Basic {word}", "sec-fetch-site": "cross-site"}
    answer = Client().post("/api/v2/apps", json.dumps(APP), content_type="text/plain", headers=headers)
    assert (answer.status_code, Service.objects.filter(name="vision-chat").exists()) == (401, False)


def test_a_stranger_finds_neither_apps_nor_jobs(scene: Scene, call) -> None:
    _, strange = create_token(actor=scene.people.charlie, name="m", scopes=Scope.values, days=1)
    assert call("get", "/v2/apps", secret=strange).json() == {"apps": []}
    assert call("get", "/v1/scheduler/jobs", secret=strange).json() == []
    for path in ("/v2/deployments", "/v2/queue", "/v2/tasks", "/v2/groups", "/v1/scheduler/jobs/summary"):
        assert scene.service.name not in call("get", path, secret=strange).content.decode()
        assert scene.schedule.name not in call("get", path, secret=strange).content.decode()
    assert scene.schedule.name in call("get", "/v1/scheduler/jobs").content.decode()
    for method, path in [
        ("get", f"/v2/apps/{scene.service.name}"),
        ("delete", f"/v2/apps/{scene.service.name}"),
        ("delete", f"/v2/apps/{scene.service.name}/tasks"),
        ("post", f"/v2/apps/{scene.service.name}/restart"),
        ("delete", f"/v2/deployments/{scene.service.current_id}"),
        ("get", f"/v1/scheduler/job/{scene.schedule.name}"),
        ("get", f"/v1/scheduler/job/stat/{scene.schedule.name}"),
        ("put", f"/v1/scheduler/job/{scene.schedule.name}"),
        ("delete", f"/v1/scheduler/job/{scene.schedule.name}"),
    ]:
        assert call(method, path, secret=strange).status_code == 404


def test_a_token_needs_the_scope_of_work(scene: Scene, call) -> None:
    _, reader = create_token(actor=scene.people.bob, name="m", scopes=[], days=1)
    assert call("get", "/v2/apps", secret=reader).status_code == 200
    assert call("delete", f"/v2/apps/{scene.service.name}", secret=reader).status_code == 403
    assert call("get", "/v2/apps", secret="fairlot_x_y").status_code == 401
    refused = Client().get("/api/v2/apps")
    assert (refused.status_code, refused["WWW-Authenticate"]) == (401, 'Basic realm="Fairlot"')
