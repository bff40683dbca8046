"""Jobs and sweeps announce what their people want to know."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import F

from accounting.models import NotificationEvent
from accounting.models.notifications import EventKind
from scheduling import tasks
from scheduling.backends.base import End, Phase
from scheduling.core.announcing import announce_waits
from scheduling.jobs.actions import cancel_job
from scheduling.models import Job, Schedule
from scheduling.schedules.schedule_runs import run_schedule_now
from tests.scheduling.scheduled import make, spec, terms
from tests.scheduling.world import World, world


@pytest.fixture
def lab(db: None) -> World:
    return world(v100=4)


def events(**of: object) -> list[tuple[str, str, list[int], str]]:
    found = NotificationEvent.objects.filter(**of).order_by("pk")
    return [(event.kind, event.title, event.concerns, event.actor_name) for event in found]


def test_a_job_announces_its_end_to_its_owner_once(lab: World) -> None:
    bob = lab.people.bob
    job = lab.submit(bob, lab.people.astro, name="train")
    lab.fill()
    lab.carry_out()
    assert events() == []
    for _ in range(2):
        lab.see(lab.lease(job), Phase.ENDED, end=End.FAILED, exit_code=3, ended_age=0.0)
    assert events() == [(EventKind.JOB_FAILED, "“train” failed", [bob.pk], "")]
    assert NotificationEvent.objects.get().path == f"/jobs/{job.pk}/"


def test_runs_of_a_schedule_that_fail_in_a_row_are_announced_once_a_day(lab: World) -> None:
    bob = lab.people.bob
    schedule = make(lab, terms(expression="* * * * *"), spec=spec(name="boom"))

    def run(end: End, code: int) -> Job:
        job = run_schedule_now(actor=bob, schedule=schedule).job
        lab.fill()
        lab.carry_out()
        lab.see(lab.lease(job), Phase.ENDED, end=end, exit_code=code, ended_age=0.0)
        return job

    first = run(End.FAILED, 3)
    run(End.FAILED, 3)
    failure = (EventKind.JOB_FAILED, "A run of the schedule “boom” failed", [bob.pk], "")
    assert events() == [failure]
    event = NotificationEvent.objects.get()
    assert event.path == f"/schedules/{schedule.pk}/"
    assert f"(job {first.pk}). If the next runs fail too, this is announced once a day." in event.text
    Schedule.objects.update(name="each minute")
    worked = run(End.SUCCEEDED, 0)
    assert events()[1:] == [
        (EventKind.JOB_ENDED, "“boom”, a run of the schedule “each minute”, succeeded", [bob.pk], "")
    ]
    assert NotificationEvent.objects.get(kind=EventKind.JOB_ENDED).path == f"/jobs/{worked.pk}/"
    run(End.FAILED, 3)
    run(End.FAILED, 3)
    assert len(events(kind=EventKind.JOB_FAILED)) == 2, "a failure after a success is news"


def test_an_end_names_who_cancelled(lab: World) -> None:
    job = lab.submit(lab.people.bob, lab.people.astro, name="train")
    cancel_job(actor=lab.people.alice, job=job)
    assert events() == [(EventKind.JOB_ENDED, "“train” cancelled", [lab.people.bob.pk], "alice")]


def test_a_wait_is_announced_once_for_each_attempt_and_time(lab: World) -> None:
    waits = lab.submit(lab.people.bob, lab.people.astro, name="long")
    lab.submit(lab.people.bob, lab.people.astro, name="new")
    Job.objects.filter(pk=waits.pk).update(created_at=F("created_at") - timedelta(minutes=61))
    assert [announce_waits(), announce_waits()] == [1, 0]
    assert events(job_id=waits.pk) == [
        (EventKind.JOB_WAITING, "“long” has waited for 60 min", [lab.people.bob.pk], "")
    ]
    Job.objects.filter(pk=waits.pk).update(epoch=1)
    tasks.announce_waits()
    assert len(events(job_id=waits.pk)) == 2, "it waits for its next attempt"
