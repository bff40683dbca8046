"""Users submit preemptible jobs, see which jobs are preemptible, and make a job preemptible or not, on pages and in the
API."""

from __future__ import annotations

from scheduling.models import Job
from tests.portal.scene import Scene
from tests.portal.submit.test_submit import posted, problem_of


def page_of(browser, job: Job) -> str:
    return browser.get(f"/jobs/{job.pk}/").content.decode()


def test_a_user_who_may_cancel_a_job_makes_it_preemptible_and_back(scene: Scene, browser_of) -> None:
    bob, url = browser_of(scene.people.bob), f"/jobs/{scene.job.pk}/sharing/"
    assert "Make this job preemptible?" in page_of(bob, scene.job)
    html = bob.post(url, {"preemptible": "true"}, follow=True).content.decode()
    assert f"the job {scene.job.name} runs only on GPUs that nobody else wants." in html
    assert "End preemptible mode?" in html
    assert ">preemptible</a>" in html.split('id="job-head"')[1].split("</header>")[0]
    html = bob.post(url, {"preemptible": ""}, follow=True).content.decode()
    assert f"the job {scene.job.name} runs within the fair share." in html
    assert browser_of(scene.people.charlie).post(url, {"preemptible": "true"}).status_code == 404
    scene.job.refresh_from_db()
    assert not scene.job.preemptible


def test_a_user_who_may_only_read_is_offered_no_change(scene: Scene, browser_of) -> None:
    Job.objects.filter(pk=scene.job.pk).update(owner=scene.people.alice)
    bob, url = browser_of(scene.people.bob), f"/jobs/{scene.job.pk}/sharing/"
    assert "/sharing/" not in page_of(bob, scene.job)
    html = bob.post(url, {"preemptible": "true"}, follow=True).content.decode()
    assert "Only the owner, a manager of the team or an operator may change this job." in html


def test_an_ended_job_offers_no_change(scene: Scene, browser_of) -> None:
    bob = browser_of(scene.people.bob)
    bob.post(f"/jobs/{scene.job.pk}/cancel/")
    assert "/sharing/" not in page_of(bob, scene.job)


def test_the_api_tells_of_it_and_changes_it(scene: Scene, browser_of) -> None:
    bob, url = browser_of(scene.people.bob), f"/api/v1/jobs/{scene.job.pk}"
    assert bob.get(url).json()["preemptible"] is False
    changed = bob.post(f"{url}/preemptible", {"preemptible": True}, content_type="application/json")
    assert (changed.status_code, changed.json()["preemptible"]) == (200, True)
    assert bob.get(url).json()["preemptible"] is True
    charlie = browser_of(scene.people.charlie)
    refused = charlie.post(f"{url}/preemptible", {"preemptible": False}, content_type="application/json")
    assert refused.status_code == 404


def test_form_and_yaml_ask_for_it(scene: Scene, browser_of) -> None:
    bob = browser_of(scene.people.bob)
    form = posted(name="leftovers", preemptible="true")
    assert "preemptible: true" in str(form["yaml"])
    assert "preemptible: true" in bob.post("/submit/convert/", form).content.decode()
    bob.post("/submit/", form)
    job = Job.objects.get(name="leftovers")
    assert (job.preemptible, job.spec["preemptible"]) == (True, True)
    clone = bob.get(f"/submit/?clone={job.pk}").content.decode()
    assert '<option value="true" selected>' in clone
    odd = bob.post("/submit/", posted(name="odd", preemptible="perhaps"))
    assert odd.status_code == 422
    assert problem_of(odd.content.decode(), "preemptible") == "Must be true or false, not &quot;perhaps&quot;"
    assert not Job.objects.filter(name="odd").exists()


def test_lists_tell_of_it_and_find_it(scene: Scene, browser_of) -> None:
    bob = browser_of(scene.people.bob)
    assert scene.job.name not in bob.get("/jobs/?preemptible=true").content.decode()
    assert bob.get("/api/v1/jobs?preemptible=true").json()["items"] == []
    Job.objects.filter(pk=scene.job.pk).update(preemptible=True)
    html = bob.get("/jobs/?preemptible=true").content.decode()
    assert scene.job.name in html
    assert ">preemptible</span>" in html.split('id="jobs-table"')[1]
    (found,) = bob.get("/api/v1/jobs?preemptible=true").json()["items"]
    assert found["id"] == scene.job.pk
