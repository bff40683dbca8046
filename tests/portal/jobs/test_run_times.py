"""Users state how long a job will run and its deadline, and the portal says whether the job will meet the deadline."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils.timezone import now

from scheduling.jobs.run_times import run_time_of
from scheduling.models import Job, JobForecast
from tests.portal.scene import Scene
from tests.portal.submit.test_submit import posted
from tests.scheduling.world import start, world

HOUR = timedelta(hours=1)


@pytest.fixture
def bob(scene: Scene, browser_of) -> Client:
    return browser_of(scene.people.bob)


def test_a_job_keeps_its_expected_run_time_and_its_deadline(bob: Client) -> None:
    assert bob.post("/submit/", posted(expected_hours="1.5", deadline_hours="4")).status_code == 302
    job = Job.objects.latest("id")
    assert (job.expected_seconds, job.deadline - job.created_at) == (5400, 4 * HOUR)
    assert (job.spec["expected_hours"], job.spec["deadline_hours"]) == (1.5, 4)
    html = bob.get(f"/submit/?clone={job.pk}").content.decode()
    assert 'name="expected_hours" value="1.5"' in html
    assert bob.post("/submit/", posted(request_key="k2")).status_code == 302
    assert run_time_of(Job.objects.latest("id"), None, forecast=None, now=now()) is None


@pytest.mark.parametrize(("starts_in", "is_late"), [(None, False), (1, False), (3, True)])
@pytest.mark.parametrize("is_known", [True, False])
def test_a_job_that_waits_tells_whether_it_misses_its_deadline(
    scene: Scene, bob: Client, starts_in: float | None, is_late: bool, is_known: bool
) -> None:
    """A waiting job's page and the API say whether the job will miss its deadline, according to the forecast of its
    start.

    - `starts_in`: hours from now; None if there is no forecast.
    - `is_known`: whether the forecast says that the job starts by then. If not, the forecast only says that the job
      does not start before then.
    """
    job = scene.world.submit(scene.people.bob, scene.people.astro, expected_hours=2, deadline_hours=4)
    JobForecast.objects.filter(job=job).delete()
    if starts_in is not None:
        at = now()
        begins = at + starts_in * HOUR
        JobForecast.objects.create(job=job, at=at, starts_by=begins if is_known else None, earliest=begins)
    told = bob.get(f"/api/v1/jobs/{job.pk}/scheduling").json()
    assert told["is_late"] is is_late
    assert (told["ends_by"] is None) is (starts_in is None or not is_known)
    assert told["deadline"] is not None
    html = bob.get(f"/jobs/{job.pk}/").content.decode()
    assert ("will miss its deadline" in html) is is_late
    assert "expected to hold GPUs for another 2" in html
    assert "The deadline is" in html


def test_a_job_that_runs_counts_what_it_has_had(db: None, browser_of) -> None:
    lab = world(v100=4)
    job = start(lab, expected_hours=2, deadline_hours=1.5)
    lease = lab.age(lab.lease(job), 3600)
    job.refresh_from_db()
    told = run_time_of(job, lease, forecast=None, now=now())
    assert told is not None
    assert told.left.total_seconds() == pytest.approx(3600, abs=30)
    assert not told.is_late
    Job.objects.filter(pk=job.pk).update(deadline=now() + HOUR / 2)
    told = browser_of(lab.people.bob).get(f"/api/v1/jobs/{job.pk}/scheduling").json()
    assert told["is_late"] is True


def test_a_job_that_runs_longer_than_expected_tells_by_how_much(db: None, browser_of) -> None:
    lab = world(v100=4)
    job = start(lab, expected_hours=1, deadline_hours=9)
    lab.age(lab.lease(job), 3 * 3600)
    bob = browser_of(lab.people.bob)
    html = bob.get(f"/jobs/{job.pk}/").content.decode()
    assert "The job has held GPUs for 2 h" in html
    assert "longer than expected." in html
    assert "if it is not stopped earlier" not in html
    told = bob.get(f"/api/v1/jobs/{job.pk}/scheduling").json()
    assert (told["ends_by"], told["is_late"]) == (None, False)


@pytest.mark.parametrize("late", [True, False])
def test_a_job_that_has_ended_tells_whether_it_missed_its_deadline(
    scene: Scene, bob: Client, late: bool
) -> None:
    job = scene.world.submit(scene.people.bob, scene.people.astro, expected_hours=2, deadline_hours=4)
    ended = job.created_at + 4 * HOUR + (HOUR if late else -HOUR)
    Job.objects.filter(pk=job.pk).update(state=Job.State.SUCCEEDED, ended_at=ended)
    told = bob.get(f"/api/v1/jobs/{job.pk}/scheduling").json()
    assert (told["is_late"], told["ends_by"]) == (late, None)
    html = bob.get(f"/jobs/{job.pk}/").content.decode()
    assert ("missed its deadline" in html) is late
    assert "The deadline is" not in html


@pytest.mark.parametrize("kind", ["services", "sessions"])
@pytest.mark.parametrize("field", ["deadline_hours", "time_limit_hours"])
def test_services_and_sessions_have_no_expected_run_time(
    scene: Scene, bob: Client, kind: str, field: str
) -> None:
    spec = {"name": "api", "command": "serve", "environment": "python", "port": 8000, field: 3}
    answer = bob.post(f"/api/v1/{kind}", {"team": "astro", "spec": spec}, content_type="application/json")
    assert answer.status_code == 422
    assert "is only for jobs that end by themselves" in answer.content.decode()
