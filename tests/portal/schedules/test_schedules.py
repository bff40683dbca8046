"""Users create, change, pause and delete schedules on pages and in the API."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from accounting.models import Membership, Tenant
from portal.submit.fields import Fields, digest
from scheduling.models import Cluster, Job, Schedule, ScheduleRun
from scheduling.schedules.actions import Terms, create_schedule
from scheduling.schedules.schedule_runs import run_schedule_now
from scheduling.spec.job_spec import JobSpec
from tests.make import membership, user
from tests.portal.scene import Scene


def text_of_page(response: Any) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", response.content.decode()).split())


TIMING = {
    "expression": "30 2 * * *", "time_zone": "Europe/Berlin", "begins": "2096-03-24T12:00", "ends": "",
    "missed": "all", "catch_up_hours": "1.5", "overlap": "replace",
}  # fmt: skip


def posted(**changes: object) -> dict[str, object]:
    """Returns the fields of the form as a browser sends them, with `changes`."""
    fields = Fields(name="nightly", command="python train.py")
    yaml = fields.to_yaml()
    texts = {name: getattr(fields, name) for name in Fields.__dataclass_fields__}
    rest = {"yaml": yaml, "agreed": digest(yaml), "request_key": "k1", "do": "submit", "page": "schedule"}
    return texts | TIMING | rest | changes


@pytest.fixture
def bob(scene: Scene, browser_of) -> Client:
    return browser_of(scene.people.bob)


def text_of(response: Any) -> str:
    return re.sub(r"\s+", " ", response.content.decode())


def problem_of(html: str, field: str) -> str:
    return re.search(rf'id="problem-{field}"[^>]*>([^<]*)<', html)[1]


# --- the form --------------------------------------------------------------------------------------


def test_a_right_form_becomes_a_schedule(scene: Scene, bob: Client) -> None:
    response = bob.post("/schedules/new/", posted())
    made = Schedule.objects.latest("id")
    assert (response.status_code, response["Location"]) == (302, f"/schedules/{made.pk}/")
    assert (made.owner, made.tenant, made.name) == (scene.people.bob, scene.people.astro, "nightly")
    assert (made.missed, made.catch_up_seconds, made.overlap) == ("all", 5400, "replace")
    assert made.begins.isoformat() == "2096-03-24T11:00:00+00:00"  # noon in Berlin
    assert "Sat 24 Mar 2096 12:00 CET" in text_of_page(bob.get(f"/schedules/{made.pk}/"))
    # 2:30 does not exist in that night, because the clocks change
    assert made.next_due_at.isoformat() == "2096-03-25T01:00:00+00:00"
    assert not Job.objects.filter(name="nightly").exists()


def test_another_name_leaves_a_timetable_that_was_accepted_once(scene: Scene, bob: Client) -> None:
    bob.post("/schedules/new/", posted())
    made = Schedule.objects.latest("id")
    old = {"expression": "*/90  2 * * *", "begins": made.begins + timedelta(seconds=7)}
    Schedule.objects.filter(pk=made.pk).update(**old)
    assert bob.get(f"/schedules/{made.pk}/edit/").content.count(b"<time") == 10
    again = posted(expression=old["expression"], name="other")
    assert bob.post(f"/schedules/{made.pk}/edit/", again).status_code == 302
    changed = Schedule.objects.get(pk=made.pk)
    assert (changed.name, changed.begins, changed.next_due_at) == ("other", old["begins"], made.next_due_at)


def test_sending_the_form_twice_makes_one(bob: Client) -> None:
    first, second = bob.post("/schedules/new/", posted()), bob.post("/schedules/new/", posted())
    assert first["Location"] == second["Location"]


@pytest.mark.parametrize(
    ("field", "typed", "said"),
    [
        ("expression", "30 2 * *", "five fields"),
        ("expression", "R/2026/P", "R[n]/start/period"),
        ("time_zone", "Berlin", "Europe/Berlin"),
        ("begins", "soon", "a date and time"),
        ("ends", "2095-01-01T00:00", "must not be before the start"),
        ("catch_up_hours", "a day", "number of hours"),
        ("catch_up_hours", "9999", "30 days"),
        ("missed", "perhaps", "skip, once, all"),
        ("overlap", "perhaps", "allow, forbid, replace"),
        ("name", "", "1 to 120 characters"),
        ("workers", "0", "from 1 to 4096"),
    ],
)
def test_each_wrong_field_says_what_is_accepted_and_keeps_what_was_typed(
    scene: Scene, bob: Client, field: str, typed: str, said: str
) -> None:
    before = Schedule.objects.count()
    response = bob.post("/schedules/new/", posted(**{field: typed}))
    html = response.content.decode()
    assert response.status_code == 422
    assert said in problem_of(html, field)
    assert typed in html or field in {"missed", "overlap"}  # a browser cannot send an invalid choice
    assert Schedule.objects.count() == before


def test_all_wrong_times_are_marked_at_once(scene: Scene, bob: Client) -> None:
    wrong = posted(catch_up_hours="-3", begins="2096-03-24T12:00", ends="2095-01-01T00:00", missed="perhaps")
    html = bob.post("/schedules/new/", wrong).content.decode()
    assert "30 days" in problem_of(html, "catch_up_hours")
    assert "must not be before the start" in problem_of(html, "ends")
    assert "skip, once, all" in problem_of(html, "missed")
    html = bob.post(
        "/schedules/new/", posted(catch_up_hours="a day", begins="soon", ends="later")
    ).content.decode()
    for field in ("catch_up_hours", "begins", "ends"):
        assert problem_of(html, field)
    html = bob.post("/schedules/new/", posted(time_zone="Berlin", catch_up_hours="-3")).content.decode()
    assert "Europe/Berlin" in problem_of(html, "time_zone")
    assert "30 days" in problem_of(html, "catch_up_hours")


def test_the_list_leads_to_drafts_of_schedules(scene: Scene, bob: Client) -> None:
    assert 'href="/drafts/"' not in bob.get("/sweeps/").content.decode()
    bob.post("/schedules/new/", posted(do="draft", request_key="d1"))
    assert re.search(r'href="/drafts/">.*?1 draft<', text_of(bob.get("/schedules/")))
    assert "1 draft<" not in text_of(bob.get("/sweeps/"))


def test_the_next_runs_are_shown_in_both_zones_while_one_types(scene: Scene, bob: Client) -> None:
    response = text_of(bob.post("/schedules/preview/", posted()))
    assert response.count("<time") == 10
    assert "Sun 25 Mar 2096 03:00 CEST" in response
    assert "Sun 01:00 UTC" in response
    wrong = text_of(bob.post("/schedules/preview/", posted(expression="* *")))
    assert "<time" not in wrong
    assert "five fields" in problem_of(wrong, "expression")
    assert problem_of(wrong, "time_zone") == ""
    uneven = text_of(bob.post("/schedules/preview/", posted(expression="*/45 * * * *")))
    assert "At minutes 0 and 45 of every hour." in uneven
    assert "start again with each hour" in uneven
    foreign = text_of(bob.post("/schedules/preview/", posted(expression="0 */10 * * * *")))
    assert "*/10 * * * *" in problem_of(foreign, "expression")


def test_without_a_script_the_page_itself_shows_the_next_runs(bob: Client) -> None:
    html = text_of(bob.post("/schedules/new/", posted(do="form", name="changed")))
    assert html.count("<time") == 10
    assert "name: changed" in html
    assert not Schedule.objects.filter(name="changed").exists()


def test_a_job_becomes_a_schedule(scene: Scene, bob: Client) -> None:
    assert f"/schedules/new/?job={scene.job.pk}" in text_of(bob.get(f"/jobs/{scene.job.pk}/"))
    html = text_of(bob.get(f"/schedules/new/?job={scene.job.pk}"))
    assert 'value="supernova"' in html
    assert "SUPERNOVA=1987A" in html


def test_the_check_beside_it_offers_no_submission(bob: Client) -> None:
    html = text_of(bob.post("/submit/convert/?from=form", posted(gpus_per_worker="64")))
    assert "If the job were submitted now" in html
    assert 'name="even_if_never"' not in html


def test_editing_shows_what_is_and_changes_it(scene: Scene, bob: Client) -> None:
    page = f"/schedules/{scene.schedule.pk}/edit/"
    html = text_of(bob.get(page))
    assert 'value="0 0 1 1 *"' in html
    assert 'value="supernova-yearly"' in html
    assert "The schedule nightly has been changed." in text_of(bob.post(page, posted(), follow=True))
    scene.schedule.refresh_from_db()
    assert (scene.schedule.name, scene.schedule.expression) == ("nightly", "30 2 * * *")


def test_a_manager_sees_that_an_edited_schedule_becomes_hers(scene: Scene, browser_of) -> None:
    alice = browser_of(scene.people.alice)
    page = f"/schedules/{scene.schedule.pk}/edit/"
    assert "This schedule belongs to bob. If you save it, you become its owner." in text_of(alice.get(page))
    assert alice.post(page, posted()).status_code == 302
    scene.schedule.refresh_from_db()
    assert scene.schedule.owner == scene.people.alice


# --- who may ---------------------------------------------------------------------------------------

VERBS = ("run", "pause", "resume", "delete")


@pytest.mark.parametrize("role", [Membership.Role.VIEWER, Membership.Role.MEMBER])
def test_a_user_who_only_sees_a_schedule_cannot_change_it(scene: Scene, browser_of, role: str) -> None:
    other = user("vera")
    membership(other, scene.people.astro, role=role)
    browser, page = browser_of(other), f"/schedules/{scene.schedule.pk}/"
    html = text_of(browser.get(page))
    assert "supernova-yearly" in html
    assert "Pause" not in html
    assert browser.get(f"{page}edit/").status_code == 403
    assert browser.post(f"{page}edit/", posted()).status_code == 403
    for verb in VERBS:
        shown = text_of(browser.post(f"{page}{verb}/", follow=True))
        assert "Only the owner, a manager of the team or an operator" in shown
    before = scene.schedule
    assert Schedule.objects.values().get(pk=before.pk) == {
        field.attname: getattr(before, field.attname) for field in Schedule._meta.concrete_fields
    }


@pytest.mark.parametrize("verb", [*VERBS, "edit"])
def test_for_others_it_does_not_exist(scene: Scene, browser_of, verb: str) -> None:
    charlie = browser_of(scene.people.charlie)
    assert charlie.post(f"/schedules/{scene.schedule.pk}/{verb}/", posted()).status_code == 404


# --- its page --------------------------------------------------------------------------------------


def test_pausing_running_and_deleting(scene: Scene, bob: Client) -> None:
    page = f"/schedules/{scene.schedule.pk}/"
    assert "Paused by bob" in text_of(bob.post(f"{page}pause/", follow=True))
    assert "The schedule supernova-yearly has been resumed." in text_of(
        bob.post(f"{page}resume/", follow=True)
    )
    for _ in range(2):
        html = text_of(bob.post(f"{page}run/", {"request_key": "once"}, follow=True))
    job = Job.objects.get(name="supernova-yearly")
    assert f'href="/jobs/{job.pk}/"' in html
    assert "Run at the request of bob." in html
    assert f'by the schedule <a href="{page}">supernova-yearly</a>' in text_of(bob.get(f"/jobs/{job.pk}/"))
    assert "had not ended" in text_of(bob.post(f"{page}run/", follow=True))
    assert "deleted." in text_of(bob.post(f"{page}delete/", follow=True))
    html = text_of(bob.get(page))
    assert "Deleted" in html
    assert "Run now" not in html
    assert "No schedules yet" in text_of(bob.get("/schedules/"))
    # The schedule's page may be open since before the deletion. The message names the deletion, not a missing
    # permission.
    assert "supernova-yearly has been deleted." in text_of(bob.post(f"{page}run/", follow=True))
    assert "supernova-yearly has been deleted and cannot be edited." in text_of(
        bob.get(f"{page}edit/", follow=True)
    )


def test_the_page_tells_when_and_what_became_of_former_runs(scene: Scene, bob: Client) -> None:
    html = text_of(bob.get(f"/schedules/{scene.schedule.pk}/"))
    assert re.search(r"1 Jan 20\d\d 00:00 CET", html)
    assert "A job of Astro had not ended." in html
    assert "name: supernova-yearly" in html
    Cluster.objects.update(detached_at=scene.schedule.created_at)
    assert "is detached. Due runs wait" in text_of(bob.get(f"/schedules/{scene.schedule.pk}/"))


def test_a_run_that_came_late_was_made_up_unless_somebody_asked_for_it() -> None:
    due = datetime(2026, 1, 1, tzinfo=UTC)
    late = ScheduleRun(outcome="submitted", due_at=due, at=due + timedelta(minutes=5))
    assert late.was_made_up
    assert not ScheduleRun(outcome="submitted", due_at=due, at=due + timedelta(seconds=5)).was_made_up
    assert not ScheduleRun(outcome="skipped", due_at=due, at=late.at).was_made_up
    assert not ScheduleRun(outcome="submitted", due_at=due, at=late.at, asked_by_id=1).was_made_up


def test_more_schedules_need_no_more_queries(scene: Scene, bob: Client) -> None:
    def queries(url: str) -> int:
        with CaptureQueriesContext(connection) as counted:
            assert bob.get(url).status_code == 200
        return len(counted)

    def fill(many: int) -> None:
        for _ in range(many):
            schedule = create_schedule(
                actor=scene.people.bob,
                tenant=scene.people.astro,
                cluster=scene.world.cluster,
                spec=JobSpec(name="more", command="true"),
                terms=Terms("0 0 1 1 *", "UTC", overlap="allow"),
            )
            for _ in range(2):
                run_schedule_now(actor=scene.people.bob, schedule=schedule)
        for _ in range(many):
            run_schedule_now(actor=scene.people.bob, schedule=schedule)

    fill(1)
    last = reverse("schedule", args=[Schedule.objects.latest("id").pk])
    few = [queries("/schedules/"), queries(last)]
    fill(5)
    last = reverse("schedule", args=[Schedule.objects.latest("id").pk])
    assert [queries("/schedules/"), queries(last)] == few


# --- the API ---------------------------------------------------------------------------------------

NEW = {
    "spec": {"name": "by-api", "command": "true"}, "expression": "0 12 * * *", "time_zone": "Europe/Berlin",
    "overlap": "allow",
}  # fmt: skip


@pytest.fixture
def api(scene: Scene):
    def call(method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        response = Client().generic(
            method,
            f"/api/v1{path}",
            json.dumps(body) if body is not None else "",
            content_type="application/json",
            headers={"Authorization": f"Bearer {scene.secret}"} | headers,
        )
        return response.status_code, json.loads(response.content) if response.content else None

    return call


def test_the_api_does_all_that_the_pages_do(scene: Scene, api) -> None:
    key = {"Idempotency-Key": "k"}
    status, made = api("POST", "/schedules", NEW, **key)
    assert (status, made["owner"], made["team"]) == (201, "bob", "astro")
    assert api("POST", "/schedules", NEW, **key)[1]["id"] == made["id"]
    one = f"/schedules/{made['id']}"
    shown = api("GET", one)[1]
    assert (len(shown["next_runs"]), shown["words"], shown["notes"]) == (10, "At 12:00 every day", [])
    assert [item["id"] for item in api("GET", "/schedules?limit=1")[1]["items"]] == [made["id"]]
    status, changed = api("PUT", one, NEW | {"expression": "R3/2096-01-31T09:00/P1M"})
    assert (status, changed["next_due_at"]) == (200, "2096-01-31T08:00:00Z")
    assert len(api("GET", one)[1]["next_runs"]) == 3
    assert api("POST", f"{one}/pause")[1]["paused_reason"] == "Paused by bob"
    assert api("POST", f"{one}/resume")[1]["paused_at"] is None
    status, run = api("POST", f"{one}/run", **key)
    assert (status, run["asked_by"], run["outcome"]) == (201, "bob", "submitted")
    assert api("POST", f"{one}/run", **key)[1] == run
    assert api("GET", f"/jobs/{run['job_id']}")[1]["name"] == "by-api"
    assert api("GET", f"{one}/runs")[1] == {"items": [run], "next": None}
    assert api("DELETE", one)[0] == 204
    assert api("DELETE", one)[0] == 204
    assert api("GET", one)[1]["deleted_at"]
    assert made["id"] not in [item["id"] for item in api("GET", "/schedules")[1]["items"]]


@pytest.mark.parametrize(
    ("changes", "status", "field"),
    [
        ({"expression": "nonsense"}, 409, "expression"),
        ({"time_zone": "Mars/Olympus"}, 409, "time_zone"),
        ({"begins": "2026-01-01T00:00:00"}, 422, "begins"),  # the UTC offset is missing
        ({"overlap": "fight"}, 422, "overlap"),
        ({"catch_up_seconds": -1}, 409, "catch_up_seconds"),
        ({"spec": {"name": "x"}}, 422, "command"),
        ({"team": "bio"}, 422, "team"),
        ({"even_if_never": True}, 422, "even_if_never"),
    ],
)
def test_the_api_says_which_field_is_wrong(api, changes: dict[str, object], status: int, field: str) -> None:
    answer, told = api("POST", "/schedules", NEW | changes)
    assert answer == status
    assert field in told["problems"]


def test_a_zero_byte_in_the_api_is_the_callers_mistake(api) -> None:
    answers = [api("GET", "/schedules?owner=%00"), api("POST", "/schedules", NEW | {"team": "a\0"})]
    assert [status for status, _ in answers] == [422, 422]
    assert "zero bytes" in answers[0][1]["problems"]["owner"]
    assert "zero bytes" in answers[1][1]["problems"]["team"]


def test_a_token_without_the_right_to_change_a_schedule_is_refused(scene: Scene, api) -> None:
    Schedule.objects.update(owner=scene.people.alice)
    one = f"/schedules/{scene.schedule.pk}"
    assert api("GET", one)[0] == 200
    calls = [
        ("PUT", one),
        ("DELETE", one),
        *(("POST", f"{one}/{verb}") for verb in ("pause", "resume", "run")),
    ]
    assert {api(method, path, NEW)[0] for method, path in calls} == {403}


def test_a_schedule_of_an_archived_team_is_not_called_active(scene: Scene, browser_of) -> None:
    olga, page = browser_of(scene.people.olga), f"/schedules/{scene.schedule.pk}/"
    assert "Active" in olga.get(page).content.decode()
    Tenant.objects.filter(pk=scene.people.astro.pk).update(archived_at="2026-01-01T00:00Z")
    html = olga.get(page).content.decode()
    assert "Team archived" in html
    assert "Active" not in html


def test_the_list_says_when_a_schedule_runs_and_what_became_of_the_job_of_its_last_run(
    scene: Scene, bob: Client
) -> None:
    schedule = create_schedule(
        actor=scene.people.bob,
        tenant=scene.people.astro,
        cluster=scene.world.cluster,
        spec=JobSpec(name="nightly", command="true"),
        terms=Terms("45 1 * * MON-FRI", "Europe/Berlin"),
    )
    run = run_schedule_now(actor=scene.people.bob, schedule=schedule)
    text = text_of_page(bob.get("/schedules/"))
    assert "At 01:45 on Monday to Friday Europe/Berlin" in text
    assert f"Queued #{run.job_id}" in text
    due = {"schedule": schedule, "due_at": run.at, "due_from": run.at}
    ScheduleRun.objects.create(**due, outcome="skipped")
    assert re.search(rf"Queued #{run.job_id} \S.* Skipped ", text_of_page(bob.get("/schedules/")))
    Job.objects.filter(pk=run.job_id).update(state="failed")
    assert f"Failed #{run.job_id}" in text_of_page(bob.get("/schedules/"))
    schedule.runs.filter(job__isnull=False).delete()
    assert "Skipped" in text_of_page(bob.get("/schedules/"))
    assert f"#{run.job_id}" not in text_of_page(bob.get("/schedules/"))
