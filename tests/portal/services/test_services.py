"""Users create, update, scale, stop and remove services on pages and in the API."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.html import escape

from accounting.core.clock import now_from_database
from accounting.models import AuditEvent, Membership
from fairlot_client.cli.commands.programs import SERVICE as SERVICE_LINES
from portal.services.detail import members_of, sentences_of
from portal.submit.fields import Fields, digest
from scheduling.advance.actions import reserve_in_advance
from scheduling.advance.proposals import Terms
from scheduling.backends.base import End, Phase
from scheduling.jobs.actions import cancel_job
from scheduling.models import Job, JobForecast, Lease, Service
from scheduling.services.actions import change_service, create_service
from scheduling.services.replicas import step_service
from scheduling.sessions.actions import start_session
from scheduling.spec.job_spec import JobSpec
from tests.make import membership, user
from tests.portal.scene import Scene

RULES = {
    "replicas": "2", "max_surge": "1", "max_unavailable": "0", "progress_deadline_seconds": "600",
    "auto_rollback": "on",
}  # fmt: skip


def posted(**changes: object) -> dict[str, object]:
    """Returns the fields that a browser posts when a user submits the form for a new service. `changes` replaces fields
    or adds more."""
    fields = Fields(name="chat", command="python serve.py", port="8000", readiness_path="/health")
    texts = {name: getattr(fields, name) for name in Fields.__dataclass_fields__} | {
        name: value for name, value in changes.items() if name in Fields.__dataclass_fields__
    }
    yaml = Fields(**texts).to_yaml()
    rest = {"yaml": yaml, "agreed": digest(yaml), "request_key": "k1", "do": "submit"}
    return texts | RULES | rest | changes


@pytest.fixture
def bob(scene: Scene, browser_of) -> Client:
    return browser_of(scene.people.bob)


def text_of(response: Any) -> str:
    return re.sub(r"\s+", " ", response.content.decode())


def problem_of(html: str, field: str) -> str:
    return re.search(rf'id="problem-{field}"[^>]*>([^<]*)<', html)[1]


def page_of(service: Service) -> str:
    return f"/services/{service.pk}/"


# --- the form --------------------------------------------------------------------------------------


def test_a_right_form_becomes_a_service(scene: Scene, bob: Client) -> None:
    response = bob.post("/services/new/", posted(max_unavailable="1"))
    made = Service.objects.latest("id")
    assert (response.status_code, response["Location"]) == (302, page_of(made))
    assert (made.owner, made.tenant, made.name) == (scene.people.bob, scene.people.astro, "chat")
    assert (made.replicas, made.max_unavailable, made.auto_rollback) == (2, 1, True)
    assert made.current.spec["readiness_path"] == "/health"


@pytest.mark.parametrize(
    ("field", "typed", "said"),
    [
        ("replicas", "many", "from 0 to 1000"),
        ("replicas", "1001", "from 0 to 1000"),
        ("max_surge", "", "from 0 to 1000"),
        ("progress_deadline_seconds", "1", "from 10 to 86400"),
        ("name", "Chat Service", "lower-case letters, digits and hyphens"),
        ("name", "supernova-api", "already"),
        ("port", "", "a service answers requests at this port"),
        ("port", "80", "from 1024 to 65535"),
        ("readiness_path", "health", "must begin with /"),
        ("workers", "0", "from 1 to 4096"),
    ],
)
def test_each_wrong_field_says_what_is_accepted_and_keeps_what_was_typed(
    scene: Scene, bob: Client, field: str, typed: str, said: str
) -> None:
    changes = {field: typed} | ({"readiness_path": ""} if field == "port" else {})
    response = bob.post("/services/new/", posted(**changes))
    html = response.content.decode()
    assert response.status_code == 422
    assert said.lower() in problem_of(html, field).lower()
    assert f'value="{typed}"' in html
    assert Service.objects.count() == 1


def test_without_a_script_form_and_yaml_follow_each_other(bob: Client) -> None:
    html = text_of(bob.post("/services/new/", posted(do="form", readiness_path="/up", agreed="")))
    assert "readiness_path: /up" in html
    assert Service.objects.count() == 1


def test_a_digest_that_is_none_is_no_upload(scene: Scene, bob: Client) -> None:
    """The database refuses NUL, so such a text must not reach a query."""
    response = bob.post(f"{page_of(scene.service)}update/", posted(code_upload="\0", do="form"))
    assert response.status_code in (200, 422)


def test_an_update_makes_a_revision_and_the_page_shows_what_changed(scene: Scene, bob: Client) -> None:
    page = page_of(scene.service)
    assert 'value="supernova-api"' in text_of(bob.get(f"{page}update/"))
    assert bob.post(f"{page}update/", posted(command="python better.py")).status_code == 302
    html = text_of(bob.get(page))
    assert "bob created revision 2" in html
    assert "- command: serve" in html
    assert "+ command: python better.py" in html
    assert "Revision 2 is being rolled out: 0 of 2 replicas have become ready." in html
    shown = text_of(bob.post(f"{page}rollback/", {"revision": "1"}, follow=True))
    assert "The service supernova-api is being rolled back to revision 1." in shown
    assert "bob rolled the service back from revision 2 to 1" in shown
    assert "has no revision 7" in text_of(bob.post(f"{page}rollback/", {"revision": "7"}, follow=True))


# --- its page --------------------------------------------------------------------------------------


def bring_up(scene: Scene, service: Service, *, ready: bool) -> None:
    scene.world.fill()
    scene.world.carry_out()
    for lease in Lease.objects.filter(job__service=service, state=Lease.State.RUNNING):
        facts = (
            {"ready_age": 0.0}
            if ready
            else {"why_not_ready": "the answer to GET /health has HTTP status 503"}
        )
        scene.world.see(lease, Phase.RUNNING, address="127.0.0.1:20001", **facts)


def test_it_says_what_is_up_what_waits_and_why(scene: Scene, bob: Client) -> None:
    cancel_job(actor=scene.people.alice, job=scene.waiting)
    gone = {"end": End.SUCCEEDED, "ended_age": 0.0, "exit_code": 0}
    scene.world.see(scene.world.lease(scene.other), Phase.ENDED, **gone)
    service = scene.service
    step_service(service_id=service.pk)
    html = text_of(bob.get(page_of(service)))
    assert "0 of 2 replicas are ready." in html
    assert "2 replicas wait for GPUs" in html
    bring_up(scene, service, ready=False)
    html = text_of(bob.get(page_of(service)))
    assert "2 running replicas are not ready: the answer to GET /health has HTTP status 503." in html
    bring_up(scene, service, ready=True)
    html = text_of(bob.get(page_of(service)))
    assert "2 of 2 replicas are ready." in html
    assert "127.0.0.1:20001" in html
    assert "cost so far: " in html
    replica = Job.objects.filter(service=service).earliest("pk")
    assert "ready at <code>127.0.0.1:20001</code>" in text_of(bob.get(f"/jobs/{replica.pk}/"))


def test_the_address_of_a_service_opens_it_and_can_be_copied(
    scene: Scene, bob: Client, settings: Any
) -> None:
    settings.FAIRLOT_SESSIONS_URL = "http://*.example.test"
    html = text_of(bob.get(page_of(scene.service)))
    address = f"http://service-{scene.service.pk}.example.test"
    link = f'<a href="{page_of(scene.service)}open/" target="_blank" rel="noopener noreferrer" id="address">'
    assert f"{link}{address}</a>" in html
    assert 'data-copies="address"' in html


def test_the_api_says_of_a_stuck_rollout_what_its_page_says(scene: Scene, bob: Client, api) -> None:
    """The page and the API say the same about a stuck rollout.

    The new replica waits for GPUs, because the old replica keeps its GPUs until the new one is ready.
    """
    service = scene.service
    gone = {"end": End.SUCCEEDED, "ended_age": 0.0, "exit_code": 0}
    scene.world.see(scene.world.lease(scene.other), Phase.ENDED, **gone)
    change_service(actor=scene.people.bob, service=service, replicas=1)
    cancel_job(actor=scene.people.alice, job=scene.waiting)
    step_service(service_id=service.pk)
    bring_up(scene, service, ready=True)
    step_service(service_id=service.pk)
    one = f"/services/{service.pk}"
    shown = api("GET", one)[1]
    assert (shown["trouble"], shown["status"]) == ("", "Up")
    change_service(
        actor=scene.people.bob, service=service, spec=JobSpec(name=service.name, command="new", port=8080)
    )
    step_service(service_id=service.pk)
    shown, html = api("GET", one)[1], text_of(bob.get(page_of(service)))
    assert shown["trouble"].startswith("The rollout waits for GPUs, because")
    assert shown["status"] == "Rolling out"
    listed = next(item for item in api("GET", "/services")[1]["items"] if item["id"] == service.pk)
    assert listed["trouble"] == shown["trouble"]
    for sentence in [shown["trouble"], *shown["sentences"]]:
        assert sentence in html
    rollout = "Revision 2 is being rolled out: 0 of 1 replica has become ready; 1 replica of older revisions"
    assert rollout in html
    assert "1 wanted, 1 more until the change is complete" in html
    assert "1 replica waits for GPUs: " in html
    assert "The job needs" not in html, "the paragraph on the rollout explains the wait"
    assert "Set maximum missing replicas to 1" in html
    then = "The service then answers nobody until the new replica is ready."
    assert then in shown["trouble"]
    assert "so it is with these numbers" not in html
    assert "The rollout may end all replicas" not in text_of(bob.get(f"{page_of(service)}update/"))
    unstuck = text_of(bob.post(f"{page_of(service)}allow-missing/", follow=True))
    assert f"A rollout of supernova-api may now leave 1 replica missing. {then}" in unstuck
    assert "so it is with these numbers" in unstuck
    assert "The rollout may end all replicas" in text_of(bob.get(f"{page_of(service)}update/"))
    assert "The rollout waits for GPUs" not in unstuck
    assert "Set maximum missing replicas to 1" not in unstuck
    service.refresh_from_db()
    assert service.max_unavailable == 1
    change_service(actor=scene.people.bob, service=service, max_unavailable=3)
    bob.post(f"{page_of(service)}allow-missing/")
    service.refresh_from_db()
    assert service.max_unavailable == 3, "the button makes no rollout stricter"


def test_a_rollout_that_crashes_is_in_trouble_and_says_what_comes_next(
    scene: Scene, bob: Client, api
) -> None:
    service, people = scene.service, scene.people
    for job in (scene.waiting, scene.job):
        cancel_job(actor=people.alice, job=job)
    scene.world.carry_out()
    change_service(actor=people.bob, service=service, replicas=1, max_unavailable=1)
    step_service(service_id=service.pk)
    bring_up(scene, service, ready=True)
    step_service(service_id=service.pk)
    change_service(
        actor=people.bob, service=service, spec=JobSpec(name=service.name, command="crashes", port=8080)
    )
    for _ in range(3):
        step_service(service_id=service.pk)
        scene.world.fill()
        scene.world.carry_out()
    html = text_of(bob.get(page_of(service)))
    assert re.search(r"Rolling out, no replica is ready since [^.]+: 1 replica wanted\.", html)
    assert "note-warn" in html.split('id="replicas-title"')[0]
    assert api("GET", f"/services/{service.pk}")[1]["status"] == "Down"
    assert "supernova-api" in text_of(bob.get("/services/?state=down")), "the list has the same state"
    assert "supernova-api" not in text_of(bob.get("/services/?state=rolling")).split("</thead>")[-1]
    [gap] = api("GET", f"/services/{service.pk}")[1]["interruptions"]
    assert (gap["cause"], gap["ended_at"]) == ("replaced", None)
    assert "still interrupted" in html
    assert "Roll back to revision 1</button>" in html.split('id="replicas-title"')[0], (
        "a rollout can be given up"
    )
    bad = Job.objects.unfinished().get(service=service, revision__number=2)
    gone = {"end": End.FAILED, "ended_age": 0.0, "exit_code": 3, "message": "exited with code 3"}
    scene.world.see(scene.world.lease(bad), Phase.ENDED, **gone)
    Job.objects.filter(pk=bad.pk).update(ended_at=now_from_database() + timedelta(seconds=45))
    html, shown = text_of(bob.get(page_of(service))), api("GET", f"/services/{service.pk}")[1]
    note = html.split('id="replicas-title"')[0]
    assert shown["status"] == "In trouble"
    assert "note-bad" in note
    for said in (
        "In trouble",
        "exited with code 3",
        "Next try: <time",
        "rolls the service back to revision 1",
        ">in 46 s<",
    ):
        assert said in note, said
    assert re.search("Next try: <time [^>]*>in [0-9]+ (s|min)<", note)
    assert "Roll back to revision 1</button>" in note
    assert "No replica runs or waits now. Next try: <time" in html
    assert shown["next_try_at"] < shown["gives_up_at"]
    assert shown["rolls_back_to"] == 1
    lines = dict(SERVICE_LINES)
    assert lines["rollout fails"](shown).endswith("Z, then rolls back to revision 1")
    assert lines["rollout fails"]({}) == ""
    assert "In trouble" in text_of(bob.get("/services/"))
    bob.post(f"{page_of(service)}rollback/", {"revision": "1"})
    html = text_of(bob.get(page_of(service)))
    row = html.split('id="revision-2"')[1].split("</details>")[0]
    assert (
        "0 of 1 replica had become ready when bob replaced the revision (exited with code 3)"
        in row.split("</summary>")[0]
    )
    assert f"/jobs/{bad.pk}/log/" in row
    assert "Revision 2 failed, and the service was rolled back to revision 1" in html


def test_reservations_that_take_the_gpus_of_a_replica_or_session_are_announced(
    scene: Scene, bob: Client, api
) -> None:
    people, service = scene.people, scene.service
    for job in (scene.waiting, scene.job, scene.other):
        cancel_job(actor=people.ada, job=job)
    scene.world.carry_out()
    spec = JobSpec(name="notes", command="jupyter lab", port=8888)
    session = start_session(actor=people.bob, tenant=people.astro, cluster=scene.world.cluster, spec=spec)
    step_service(service_id=service.pk)
    bring_up(scene, service, ready=True)
    begins = now_from_database() + timedelta(hours=1)
    names = [node.name for node in scene.world.cluster.nodes.order_by("pk")]
    for node in scene.world.cluster.nodes.filter(gpus__gt=0).order_by("pk"):
        terms = Terms(
            name="course", tenant=people.bio, generation=node.generation, nodes=(node,), lends=False,
            begins=begins, ends=begins + timedelta(hours=2),
        )  # fmt: skip
        reserve_in_advance(actor=people.olga, cluster=scene.world.cluster, terms=terms)
    told = api("GET", f"/services/{service.pk}")[1]["reserved_ahead"]
    assert {name for one in told for name in one["nodes"]} <= set(names)
    assert told
    assert {one["team"] for one in told} == {""}, "Bob does not see Bio"
    assert all(one["stops_at"] < one["begins_at"] < one["ends_at"] for one in told)
    replicas = Job.objects.filter(service=service, state=Job.State.RUNNING)
    assert {name for one in told for name in one["jobs"]} == {job.name for job in replicas}
    [one] = api("GET", f"/sessions/{session.pk}")[1]["reserved_ahead"]
    assert one["jobs"] == ["notes"]
    for page in (page_of(service), f"/sessions/{session.pk}/"):
        html = text_of(bob.get(page))
        assert "reserved for another team from <time" in html
        assert "what runs there may be stopped. It then waits for other GPUs." in html


def test_the_expected_start_of_a_replica_has_the_format_of_all_times(scene: Scene) -> None:
    service = scene.service
    step_service(service_id=service.pk)
    starts = datetime(now_from_database().year, 11, 28, 4, 14, 20, tzinfo=UTC)
    replica = Job.objects.filter(service=service).earliest("pk")
    JobForecast.objects.create(job=replica, at=starts, earliest=starts, starts_by=starts)
    told = sentences_of(service, members_of(service), reader=scene.people.bob)
    holds = "8 of 10 such forecasts should hold."
    if starts < now_from_database():
        assert f"The first waiting replica is expected to start by 28 Nov 04:14:20. {holds}" in told
    soon = now_from_database() + timedelta(minutes=2)
    JobForecast.objects.update(earliest=soon, starts_by=soon + timedelta(minutes=1))
    [said] = [
        one for one in sentences_of(service, members_of(service), reader=scene.people.bob) if holds in one
    ]
    assert re.search("start between .*[0-9]{2}:[0-9]{2}:[0-9]{2} and ", said)


@pytest.mark.parametrize("cause", ["no replicas", "failed", "no name"])
def test_the_api_gives_each_trouble_that_the_page_shows(scene: Scene, bob: Client, api, cause: str) -> None:
    service = scene.service
    facts = {
        "no replicas": {"trouble": "the team is archived"},
        "no name": {"why_unknown": "the namespace is full"},
    }
    Service.objects.filter(pk=service.pk).update(**facts.get(cause, {}))
    if cause == "failed":
        service.revisions.update(
            failed_at=timezone.now(), why_failed="0 of 2 replicas became ready (exit code 127)"
        )
    shown = api("GET", f"/services/{service.pk}")[1]
    said = {
        "no replicas": "the team is archived",
        "no name": "the namespace is full",
        "failed": "exit code 127",
    }[cause]
    assert said in shown["trouble"]
    assert escape(shown["trouble"]) in text_of(bob.get(page_of(service)))


def test_scaling_stopping_starting_and_removing(scene: Scene, bob: Client) -> None:
    page = page_of(scene.service)
    change_service(actor=scene.people.bob, service=scene.service, max_surge=7)
    assert "The service supernova-api has been scaled." in text_of(
        bob.post(f"{page}scale/", {"replicas": "5"}, follow=True)
    )
    html = text_of(bob.get(page))
    assert "from 2 to 5 replicas" in html
    assert html.index('id="scale"') < html.index('id="replicas-title"') < html.index('id="rollouts"')
    html = text_of(bob.post(f"{page}scale/", {"replicas": "0"}, follow=True))
    assert "Scaled to 0" in html
    assert "The service is scaled to 0 replicas. Callers get the status 503 from Fairlot." in html
    assert "0 of 0" not in html
    audited = AuditEvent.objects.filter(verb="service.change").latest("pk")
    assert (audited.before, audited.after) == ({"replicas": 5}, {"replicas": 0}), (
        "scaling changes nothing else"
    )
    assert "The service supernova-api has been changed." in text_of(
        bob.post(f"{page}rollouts/", RULES | {"max_surge": "2", "auto_rollback": ""}, follow=True)
    )
    scene.service.refresh_from_db()
    assert (scene.service.replicas, scene.service.max_surge, scene.service.auto_rollback) == (0, 2, False)
    for verb, name, value, said in (
        ("scale", "replicas", "lots", "Must be a whole number from 0 to 1000"),
        ("rollouts", "progress_deadline_seconds", "9", "Must be a whole number from 10 to 86400"),
        (
            "rollouts",
            "max_surge",
            "0",
            "Must be 1 or more while “Maximum missing replicas during a rollout” is 0",
        ),
    ):
        wrong = bob.post(f"{page}{verb}/", RULES | {"max_unavailable": "0", name: value})
        assert wrong.status_code == 422
        field = wrong.content.decode().partition(f'<input id="{name}"')[2].partition(">")[0]
        assert f'value="{value}"' in field
        assert "aria-invalid" in field
        assert said in text_of(wrong)
        assert ('id="rollouts" open' in text_of(wrong)) == (verb == "rollouts")
    assert bob.get(f"{page}scale/").headers["Location"] == page, "a reload after a refusal"
    stopped = text_of(bob.post(f"{page}stop/", follow=True))
    assert "The service is stopped. Callers get the status 503 from Fairlot." in stopped
    assert "Started by bob" in text_of(bob.post(f"{page}start/", follow=True))
    assert "No services yet" in text_of(bob.post(f"{page}remove/", follow=True))
    html = text_of(bob.get(page))
    assert "The service was removed." in html
    assert "Update" not in html
    assert bob.get(f"{page}update/").status_code == 403


def test_replicas_are_left_out_of_the_jobs_unless_asked_for_and_lead_to_their_service(
    scene: Scene, bob: Client
) -> None:
    step_service(service_id=scene.service.pk)
    replica = Job.objects.filter(service=scene.service).earliest("pk")
    assert replica.name not in text_of(bob.get("/jobs/"))
    for query in ("kind=replica", "kind=all", f"service={scene.service.pk}"):
        assert replica.name in text_of(bob.get(f"/jobs/?{query}")), query
    assert "supernova-next" not in text_of(bob.get("/jobs/?kind=replica"))
    assert "There is no kind" in text_of(bob.get("/jobs/?kind=nonsense"))
    head = text_of(bob.get(f"/jobs/{replica.pk}/"))
    assert f'a replica of the service <a href="{page_of(scene.service)}">supernova-api</a>' in head


def test_more_services_and_replicas_need_no_more_queries(scene: Scene, bob: Client) -> None:
    def queries(url: str) -> int:
        with CaptureQueriesContext(connection) as counted:
            assert bob.get(url).status_code == 200
        return len(counted)

    def fill(first: int, last: int, replicas: int) -> Service:
        for number in range(first, last):
            made = create_service(
                actor=scene.people.bob,
                tenant=scene.people.astro,
                cluster=scene.world.cluster,
                spec=JobSpec(name=f"more-{number}", command="serve", port=8000),
                replicas=replicas,
            )
            step_service(service_id=made.pk)
        return made

    one = fill(0, 1, 1)
    few = [queries("/services/"), queries(page_of(one))]
    six = fill(1, 6, 6)
    assert [queries("/services/"), queries(page_of(six))] == few
    assert few[0] <= 20
    assert few[1] <= 35


# --- who may ---------------------------------------------------------------------------------------

VERBS = ("scale", "rollouts", "allow-missing", "stop", "start", "rollback", "remove")


@pytest.mark.parametrize("role", [Membership.Role.VIEWER, Membership.Role.MEMBER])
def test_a_user_who_only_sees_a_service_cannot_change_it(scene: Scene, browser_of, role: str) -> None:
    other = user("vera")
    membership(other, scene.people.astro, role=role)
    browser, page = browser_of(other), page_of(scene.service)
    html = text_of(browser.get(page))
    assert "supernova-api" in html
    assert "Remove" not in html
    assert browser.get(f"{page}update/").status_code == 403
    assert browser.post(f"{page}update/", posted()).status_code == 403
    for verb in VERBS:
        shown = text_of(browser.post(f"{page}{verb}/", RULES | {"revision": "1"}, follow=True))
        assert "Only the owner, a manager of the team or an operator" in shown
    assert Service.objects.values().get(pk=scene.service.pk) == {
        field.attname: getattr(scene.service, field.attname) for field in Service._meta.concrete_fields
    }


@pytest.mark.parametrize("verb", [*VERBS, "update"])
def test_for_others_it_does_not_exist(scene: Scene, browser_of, verb: str) -> None:
    charlie = browser_of(scene.people.charlie)
    assert charlie.post(f"{page_of(scene.service)}{verb}/", posted()).status_code == 404


# --- the API ---------------------------------------------------------------------------------------

NEW = {"spec": {"name": "by-api", "command": "serve", "port": 8000}, "replicas": 2}


@pytest.fixture
def api(scene: Scene):
    def call(method: str, path: str, body: object = None) -> tuple[int, Any]:
        response = Client().generic(
            method,
            f"/api/v1{path}",
            json.dumps(body) if body is not None else "",
            content_type="application/json",
            headers={"Authorization": f"Bearer {scene.secret}"},
        )
        return response.status_code, json.loads(response.content) if response.content else None

    return call


def test_the_api_does_all_that_the_pages_do(scene: Scene, api) -> None:
    status, made = api("POST", "/services", NEW)
    assert (status, made["owner"], made["team"], made["replicas"]) == (201, "bob", "astro", 2)
    assert api("POST", "/services", NEW)[0] == 409
    one = f"/services/{made['id']}"
    assert [item["id"] for item in api("GET", "/services?limit=1")[1]["items"]] == [made["id"]]
    step_service(service_id=made["id"])
    full = api("GET", one)[1]
    assert [member["name"] for member in full["members"]] == ["by-api-0-1", "by-api-1-1"]
    assert {member["ready"] for member in full["members"]} == {False}
    status, changed = api("PATCH", one, {"replicas": 3})
    assert (status, changed["replicas"], changed["revision"]) == (200, 3, 1)
    assert api("PATCH", one, {"spec": NEW["spec"] | {"command": "better"}})[1]["revision"] == 2
    assert [revision["number"] for revision in api("GET", one)[1]["revisions"]] == [2, 1]
    assert api("POST", f"{one}/rollback", {"revision": 1})[1]["revision"] == 1
    assert api("PATCH", one, {"stopped": True})[1]["stopped_at"]
    assert api("PATCH", one, {"stopped": False})[1]["stopped_at"] is None
    told = [event["kind"] for event in api("GET", f"{one}/events")[1]["items"]]
    assert told == ["started", "stopped", "rolled_back", "updated", "scaled", "created"]
    job = api("GET", f"/jobs/{full['members'][0]['job_id']}")[1]
    assert (job["kind"], job["service_id"]) == ("replica", made["id"])
    assert len(api("GET", "/jobs?kind=replica")[1]["items"]) == 2
    assert api("DELETE", one)[0] == 204
    assert api("DELETE", one)[0] == 204
    assert api("GET", one)[1]["removed_at"]
    assert made["id"] not in [item["id"] for item in api("GET", "/services")[1]["items"]]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"replicas": 1001}, "replicas"),
        ({"max_surge": 0}, "max_surge"),
        ({"progress_deadline_seconds": 0}, "progress_deadline_seconds"),
        ({"spec": {"name": "x", "command": "x"}}, "port"),
        ({"spec": {"name": "Not A Name", "command": "x", "port": 8000}}, "name"),
        ({"spec": {"name": "x", "command": "x", "port": 8000, "readiness_path": "x"}}, "readiness_path"),
        ({"team": "bio"}, "team"),
    ],
)
def test_the_api_says_which_field_is_wrong(api, changes: dict[str, object], field: str) -> None:
    answer, told = api("POST", "/services", NEW | changes)
    assert answer == 422
    assert field in told["problems"]


def test_a_token_without_the_right_to_change_a_service_is_refused(scene: Scene, api) -> None:
    Service.objects.update(owner=scene.people.alice)
    one = f"/services/{scene.service.pk}"
    assert api("GET", one)[0] == 200
    calls = [
        ("PATCH", one, {"replicas": 1}),
        ("DELETE", one, None),
        ("POST", f"{one}/rollback", {"revision": 1}),
    ]
    assert {api(*call)[0] for call in calls} == {403}
