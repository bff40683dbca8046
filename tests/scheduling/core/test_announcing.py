"""Jobs and sweeps announce what their people want to know."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db.models import F

from accounting.actions.notifications import OF_A_JOB, set_rule
from accounting.models import Notification, NotificationEvent
from accounting.models.notifications import OF_RUNS, EventKind
from accounting.notifications.routing import route_events
from scheduling import tasks
from scheduling.backends.base import End, Phase
from scheduling.core.announcing import announce_waits
from scheduling.jobs.actions import cancel_job
from scheduling.leases.history import History
from scheduling.leases.lifecycle import Event
from scheduling.models import Job, Schedule
from scheduling.models.event_codes import Cause, EventCode, Message
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


NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)
SAID = Message.of(EventCode.STARTED, gpus=1, generation="V100")


def take_turn(job: Job, cause: str, *, at: datetime = NOON) -> None:
    """Takes the GPUs of a running job away because of `cause`, and gives it others."""
    history = History()
    history.move(job, Event.PREEMPTED, at=at, said=SAID, cause=cause)
    history.move(job, Event.RELEASED, at=at, said=SAID)
    history.change(job, epoch=job.epoch + 1)
    history.move(job, Event.PICKED, at=at, said=SAID)
    history.move(job, Event.STARTED, at=at, said=SAID)
    history.save()


def started(lab: World, name: str, **more: object) -> Job:
    job = lab.submit(lab.people.bob, lab.people.astro, name=name, **more)
    lab.fill()
    lab.carry_out()
    job.refresh_from_db()
    return job


def titles(job: Job) -> list[str]:
    return [title for _, title, _, _ in events(job_id=job.pk)]


def test_starts_and_suspensions_are_announced_to_followers_alone(lab: World) -> None:
    people = lab.people
    other = started(lab, "other")
    take_turn(other, Cause.DRAINED)
    assert events() == []
    train = lab.submit(people.bob, people.astro, name="train")
    set_rule(actor=people.alice, about="job", job_id=train.pk, kinds=OF_A_JOB)
    lab.fill()
    lab.carry_out()
    train.refresh_from_db()
    take_turn(train, Cause.DRAINED)
    take_turn(other, Cause.DRAINED)
    assert titles(train) == ["“train” started", "“train” was suspended", "“train” goes on"]
    assert titles(other) == []
    event = NotificationEvent.objects.earliest("pk")
    assert (event.kind, event.text, event.path) == (
        EventKind.JOB_STARTED,
        "Running on 1 V100",
        f"/jobs/{train.pk}/",
    )
    route_events()
    assert set(Notification.objects.values_list("user__username", flat=True)) == {"alice"}


def test_turns_with_other_jobs_are_announced_once_a_day_and_moves_never(lab: World) -> None:
    set_rule(actor=lab.people.bob, kinds=[str(kind) for kind in OF_RUNS])
    train = started(lab, "train")
    for minute in range(3):
        take_turn(train, Cause.CLAIMED, at=NOON + timedelta(minutes=minute))
        take_turn(train, Cause.OWN_JOBS, at=NOON + timedelta(minutes=minute))
        take_turn(train, Cause.MOVED, at=NOON + timedelta(minutes=minute))
    assert titles(train) == ["“train” started", "“train” was suspended", "“train” goes on"]
    take_turn(train, Cause.CLAIMED, at=NOON + timedelta(days=1))
    assert titles(train)[3:] == ["“train” was suspended", "“train” goes on"]
    for _ in range(2):
        take_turn(train, Cause.LOST, at=NOON + timedelta(days=1))
    assert titles(train)[5:] == ["“train” was suspended"] * 2


def test_a_team_is_informed_of_starts_if_a_rule_asks_for_them(lab: World) -> None:
    set_rule(actor=lab.people.alice, about="team", tenant=lab.people.astro, kinds=[EventKind.JOB_STARTED])
    train = started(lab, "train")
    assert titles(train) == ["“train” started"]
    route_events()
    assert Notification.objects.get().user == lab.people.alice


def test_a_job_that_vanishes_before_it_ran_is_not_suspended(lab: World) -> None:
    set_rule(actor=lab.people.bob, kinds=[str(kind) for kind in OF_RUNS])
    job = lab.submit(lab.people.bob, lab.people.astro, name="train")
    history = History()
    history.move(job, Event.PICKED, at=NOON, said=SAID)
    history.move(job, Event.RELEASED, at=NOON, said=SAID)
    history.save()
    assert titles(job) == []
