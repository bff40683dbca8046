"""Users change one job on its page and in the API, and several selected jobs from the job list."""

from __future__ import annotations

import re
from datetime import timedelta

from django.utils.dateparse import parse_datetime

from scheduling.models import Job
from tests.portal.scene import Scene, with_a_session


def edited(**changes: object) -> dict[str, object]:
    return {"priority": "3", "labels": "", "expected_hours": "", "deadline_hours": ""} | changes


def test_the_owner_edits_a_waiting_job(scene: Scene, browser_of) -> None:
    waiting = scene.world.submit(scene.people.alice, scene.people.astro, name="nebula")
    alice, url = browser_of(scene.people.alice), f"/jobs/{waiting.pk}/edit/"
    assert f'href="{url}"' in alice.get(f"/jobs/{waiting.pk}/").content.decode()
    assert 'value="A100"' in alice.get(url).content.decode()
    values = edited(priority="12", generations=["A100"], labels="project=apollo", deadline_hours="0.5")
    html = alice.post(url, values, follow=True).content.decode()
    assert "nebula has been changed." in html
    job = Job.objects.get(pk=waiting.pk)
    assert (job.priority, job.spec["generations"], job.spec["labels"]) == (
        12,
        ["A100"],
        {"project": "apollo"},
    )
    html = alice.get(url).content.decode()
    assert 'value="12"' in html
    assert re.search('value="A100"[^>]* checked', html)
    assert not re.search('value="V100"[^>]* checked', html)


def test_invalid_values_are_shown_beside_their_fields(scene: Scene, browser_of) -> None:
    alice, url = browser_of(scene.people.alice), f"/jobs/{scene.waiting.pk}/edit/"
    values = edited(priority="101", labels="a=1\na=2", expected_hours="-1")
    answer = alice.post(url, values)
    assert answer.status_code == 422
    assert "line 2 names a a second time" in answer.content.decode()
    answer = alice.post(url, values | {"labels": "-a"})
    html = answer.content.decode()
    assert answer.status_code == 422
    for field in ("priority", "labels", "expected_hours"):
        assert f'id="edit-{field}_error"' in html, field
    assert not scene.waiting.events.filter(kind="edited").exists()


def test_a_running_job_keeps_its_gpu_types_and_others_find_no_form(scene: Scene, browser_of) -> None:
    url = f"/jobs/{scene.job.pk}/edit/"
    assert "only while the job waits" in browser_of(scene.people.bob).get(url).content.decode()
    assert browser_of(scene.people.charlie).get(url).status_code == 404
    assert browser_of(scene.people.charlie).post(url, edited()).status_code == 404
    Job.objects.filter(pk=scene.job.pk).update(owner=scene.people.alice)
    bob = browser_of(scene.people.bob)
    assert "Only the owner, a manager of the team or an operator" in bob.get(url).content.decode()
    assert bob.post(url, edited(priority="9")).status_code == 422


def test_the_api_changes_only_the_given_fields(scene: Scene, browser_of) -> None:
    bob, url = browser_of(scene.people.bob), f"/api/v1/jobs/{scene.job.pk}"
    changed = bob.patch(url, {"labels": {"run": "7"}}, content_type="application/json")
    assert (changed.status_code, changed.json()["labels"], changed.json()["priority"]) == (
        200,
        {"run": "7"},
        3,
    )
    refused = bob.patch(url, {"priority": 500}, content_type="application/json")
    assert (refused.status_code, list(refused.json()["problems"])) == (422, ["priority"])
    assert bob.patch(url, {"generations": ["V100"]}, content_type="application/json").status_code == 409
    charlie = browser_of(scene.people.charlie)
    assert charlie.patch(url, {"priority": 1}, content_type="application/json").status_code == 404


def test_selected_jobs_are_listed_before_they_are_cancelled(scene: Scene, browser_of) -> None:
    alice = browser_of(scene.people.alice)
    jobs = [scene.job.pk, scene.waiting.pk, scene.other.pk]  # the last one is another team's
    html = alice.post(
        "/jobs/selected/", {"do": "cancel", "job": jobs, "back": "state=active"}
    ).content.decode()
    assert "2 of 2 selected jobs will be cancelled." in html
    assert scene.other.name not in html
    assert Job.objects.get(pk=scene.waiting.pk).state == Job.State.QUEUED
    answer = alice.post(
        "/jobs/selected/",
        {"do": "cancel", "job": jobs, "back": "state=active", "confirmed": "yes"},
        follow=True,
    )
    assert answer.redirect_chain[0][0] == "/jobs/?state=active"
    assert "2 jobs cancelled." in answer.content.decode()
    states = [Job.objects.get(pk=pk).state for pk in jobs]
    assert states == [Job.State.CANCELLING, Job.State.CANCELLED, Job.objects.get(pk=scene.other.pk).state]
    again = alice.post("/jobs/selected/", {"do": "cancel", "job": jobs}).content.decode()
    assert "0 of 2 selected jobs" in again
    assert again.count("skipped: has already ended") == 2


def test_selected_jobs_get_a_priority_and_labels_and_what_is_refused_is_named(
    scene: Scene, browser_of
) -> None:
    bob, jobs = browser_of(scene.people.bob), [scene.job.pk, scene.waiting.pk]
    page = bob.post("/jobs/selected/", {"do": "priority", "job": jobs}).content.decode()
    assert "1 of 2 selected jobs will be changed." in page
    assert "you may not change this job" in page
    confirmed = {"job": jobs, "confirmed": "yes"}
    html = bob.post(
        "/jobs/selected/", confirmed | {"do": "priority", "priority": "8"}, follow=True
    ).content.decode()
    assert "1 job changed." in html
    assert f"supernova-next #{scene.waiting.pk}: Only the owner" in html
    labels = {"do": "labels", "labels": "project=apollo\nrun", "removed": ""}
    bob.post("/jobs/selected/", confirmed | labels)
    bob.post("/jobs/selected/", confirmed | {"do": "labels", "labels": "", "removed": "run"})
    job = Job.objects.get(pk=scene.job.pk)
    assert (job.priority, job.spec["labels"]) == (8, {"project": "apollo"})
    wrong = bob.post("/jobs/selected/", confirmed | {"do": "priority", "priority": "many"})
    assert wrong.status_code == 422


def test_the_owner_changes_the_time_limit_and_the_page_says_when_the_job_stops(
    scene: Scene, browser_of
) -> None:
    """The limit is set in the form, for selected jobs and in the API, while the job runs."""
    bob, url = browser_of(scene.people.bob), f"/jobs/{scene.job.pk}"
    assert "time limit" not in bob.get(f"{url}/").content.decode()
    assert bob.get(f"/api/v1{url}").json()["stops_at"] is None
    bob.post(f"{url}/edit/", edited(time_limit_hours="30.5"))
    assert 'name="time_limit_hours" value="30.5"' in bob.get(f"{url}/edit/").content.decode()
    html = bob.get(f"{url}/").content.decode()
    assert "If the job keeps its GPUs, a time limit stops it by <time" in html
    assert "The job's own time limit is 1 d 6 h on GPUs." in html
    chosen = {"do": "time_limit", "job": [scene.job.pk], "confirmed": "yes"}
    assert bob.post("/jobs/selected/", chosen | {"time_limit_hours": "0"}, follow=True).status_code == 200
    assert Job.objects.get(pk=scene.job.pk).time_limit_hours == 30.5
    bob.post("/jobs/selected/", chosen | {"time_limit_hours": "20"})
    assert ">20 h<" in bob.get("/jobs/?columns=name,time_limit&sort=time_limit").content.decode()
    held = scene.job.leases.latest("epoch").held_from
    stops = parse_datetime(bob.get(f"/api/v1{url}").json()["stops_at"])
    assert abs(stops - held - timedelta(hours=20)) < timedelta(seconds=1)
    assert bob.get(f"/api/v1{url}/scheduling").json()["stops_at"] is not None
    changed = bob.patch(f"/api/v1{url}", {"time_limit_hours": None}, content_type="application/json").json()
    assert (changed["spec"]["time_limit_hours"], changed["stops_at"]) == (None, None)


def test_a_waiting_job_says_how_much_of_its_time_limit_it_has_used(scene: Scene, browser_of) -> None:
    Job.objects.filter(pk=scene.waiting.pk).update(
        time_limit_hours=1.5, held_for=timedelta(minutes=20), first_started_at=scene.waiting.created_at,
        first_generation=scene.people.v100,
    )  # fmt: skip
    html = browser_of(scene.people.bob).get(f"/jobs/{scene.waiting.pk}/").content.decode()
    assert "The job's own time limit is 1 h 30 min on GPUs, of which it has used 20 min." in html


def test_selected_jobs_are_submitted_again_once(scene: Scene, browser_of) -> None:
    alice = browser_of(scene.people.alice)
    alice.post(f"/jobs/{scene.waiting.pk}/cancel/")
    form = {"do": "again", "job": [scene.waiting.pk], "confirmed": "yes", "request_key": "k"}
    for _ in range(2):
        assert "1 job submitted again." in alice.post("/jobs/selected/", form, follow=True).content.decode()
    names = Job.objects.filter(name__startswith="supernova-next").values_list("name", flat=True)
    assert sorted(names) == ["supernova-next", "supernova-next 2"]


def test_a_session_is_not_submitted_again_as_a_job(scene: Scene, browser_of) -> None:
    with_a_session(scene)
    session = Job.objects.get(kind=Job.Kind.SESSION)
    bob, form = browser_of(scene.people.bob), {"do": "again", "job": [session.pk]}
    assert "0 of 1 selected job will be" in bob.post("/jobs/selected/", form).content.decode()
    html = bob.post("/jobs/selected/", form | {"confirmed": "yes"}, follow=True).content.decode()
    assert "start it on the page of sessions or services" in html
    assert Job.objects.filter(name=session.name).count() == 1


def test_without_a_selection_the_list_says_what_to_do(scene: Scene, browser_of) -> None:
    bob = browser_of(scene.people.bob)
    html = bob.post("/jobs/selected/", {"do": "cancel"}, follow=True).content.decode()
    assert "Select one or more jobs first." in html
    assert bob.post("/jobs/selected/", {"do": "explode", "job": [scene.job.pk]}).status_code == 302


def test_the_labels_of_an_ended_job_change_on_its_page_for_selected_jobs_and_in_the_api(
    scene: Scene, browser_of
) -> None:
    alice, url = browser_of(scene.people.alice), f"/jobs/{scene.waiting.pk}"
    alice.post(f"{url}/cancel/")
    page = alice.get(f"{url}/").content.decode()
    assert f'href="{url}/edit/"' in page
    assert 'data-opens="sharing"' not in page
    form = alice.get(f"{url}/edit/").content.decode()
    assert re.findall(r'<(?:input|textarea|select)[^>]* id="edit-(\w+)"', form) == ["labels"]
    alice.post(f"{url}/edit/", {"labels": "project=apollo"})
    chosen = {"do": "labels", "job": [scene.waiting.pk]}
    asked = alice.post("/jobs/selected/", chosen).content.decode()
    assert "1 of 1 selected job will be changed." in asked
    alice.post("/jobs/selected/", chosen | {"labels": "run=2", "removed": "", "confirmed": "yes"})
    assert Job.objects.get(pk=scene.waiting.pk).spec["labels"] == {"project": "apollo", "run": "2"}
    api = {"path": f"/api/v1{url}", "content_type": "application/json"}
    assert alice.patch(data={"labels": {"run": "3"}}, **api).json()["labels"] == {"run": "3"}
    refused = alice.patch(data={"priority": 4, "labels": {}}, **api)
    assert refused.status_code == 409
    assert "not priority" in refused.json()["detail"]
    assert Job.objects.get(pk=scene.waiting.pk).spec["labels"] == {"run": "3"}
    others = browser_of(scene.people.bob)
    assert f'href="{url}/edit/"' not in others.get(f"{url}/").content.decode()


def test_a_form_that_was_opened_before_the_job_ended_saves_nothing(scene: Scene, browser_of) -> None:
    alice, url = browser_of(scene.people.alice), f"/jobs/{scene.waiting.pk}"
    alice.post(f"{url}/cancel/")
    answer = alice.post(f"{url}/edit/", edited(priority="9", labels="run=2"))
    html = answer.content.decode()
    assert answer.status_code == 422
    assert "The job has ended meanwhile." in html
    assert "run=2" in html
    assert not scene.waiting.events.filter(kind="edited").exists()


def test_selected_jobs_are_compared_by_their_metrics(scene: Scene, browser_of) -> None:
    alice, jobs = browser_of(scene.people.alice), [scene.waiting.pk, scene.job.pk]
    listed = alice.get("/jobs/").content.decode()
    assert re.search(r'value="compare" data-least="2" data-most="6"', listed)
    answer = alice.post("/jobs/selected/", {"do": "compare", "job": jobs}, follow=True)
    one, other = sorted(jobs)
    assert answer.redirect_chain == [(f"/jobs/{one}/metrics/?with={other}", 302)]
    assert answer.status_code == 200
    # One of the two is another team's, so that only one is left.
    hidden = {"do": "compare", "job": [scene.job.pk, scene.other.pk], "back": "state=active"}
    few = alice.post("/jobs/selected/", hidden, follow=True)
    assert few.redirect_chain[0][0] == "/jobs/?state=active"
    assert "Select 2 to 6 jobs to compare their metrics." in few.content.decode()
    many = [scene.world.submit(scene.people.alice, scene.people.astro, name=f"n{n}").pk for n in range(7)]
    assert alice.post("/jobs/selected/", {"do": "compare", "job": many})["Location"] == "/jobs/"
    last = alice.post("/jobs/selected/", {"do": "compare", "job": many[:6]})["Location"]
    assert last == f"/jobs/{many[0]}/metrics/?with={','.join(map(str, many[1:6]))}"
