"""Observations of processes, in any order and repeated, become leases, job states and bills."""

from datetime import timedelta
from itertools import pairwise

import pytest

from accounting.core.clock import now_from_database
from accounting.models import UsageSegment
from fairshare.model import Reason
from scheduling.backends.base import End, Phase
from scheduling.jobs.actions import cancel_job
from scheduling.leases.actions import bill_running, close_never_started
from scheduling.models import Job, JobSpeed, Lease, Operation
from tests.scheduling.world import World, start, world

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> World:
    return world(v100=4)


def test_the_same_end_seen_twice_is_booked_once(lab: World) -> None:
    job = start(lab)
    lease = lab.lease(job)
    for _ in range(3):
        gone = lab.see(lease, Phase.ENDED, end=End.SUCCEEDED, ended_age=0.0, exit_code=0)
        assert [item.pk for item in gone] == [lease.pk]
    job.refresh_from_db()
    assert (job.state, job.exit_code) == (Job.State.SUCCEEDED, 0)
    assert job.events.filter(kind="succeeded").count() == 1
    assert UsageSegment.objects.filter(lease_id=lease.pk).count() == 1


def test_a_late_report_about_an_older_lease_changes_nothing(lab: World) -> None:
    job = start(lab)
    old = lab.lease(job)
    lab.see(old, Phase.ENDED, end=End.LOST, ended_age=0.0)
    lab.fill()
    new = lab.lease(job)
    assert new.epoch == old.epoch + 1
    lab.see(old, Phase.RUNNING, running_age=0.0)
    lab.see(old, Phase.ENDED, end=End.FAILED, ended_age=0.0, exit_code=1)
    assert lab.states([job]) == [Job.State.STARTING]


def test_a_vanished_gang_is_closed_when_it_was_last_seen(lab: World) -> None:
    job = start(lab)
    lease = lab.age(lab.lease(job), 300)
    lab.see(lease, Phase.ENDED, end=End.LOST, ended_age=120.0, seen_age=120.0)
    lease.refresh_from_db()
    age = (now_from_database() - lease.held_until).total_seconds()
    assert age == pytest.approx(120, abs=5)
    assert lab.states([job]) == [Job.State.SUSPENDED]  # the job can continue from its checkpoint


def test_a_gang_seen_running_was_last_seen_no_earlier_than_it_began(
    lab: World,
) -> None:
    job = lab.submit(lab.people.bob, lab.people.astro)
    lab.fill()
    lease = lab.age(lab.lease(job), 60)
    lab.see(lease, Phase.STARTING, seen_age=1.0)
    lab.see(lease, Phase.RUNNING, running_age=0.3)
    lease.refresh_from_db()
    assert lease.running_from <= lease.last_seen_at
    before = lease.last_seen_at
    lab.see(lease, Phase.RUNNING, running_age=0.3, seen_age=5.0)
    lease.refresh_from_db()
    assert lease.last_seen_at == before, "an older word takes nothing back"


def test_an_end_never_lies_before_the_beginning_nor_in_the_future(lab: World) -> None:
    job = start(lab)
    lease = lab.lease(job)
    lab.see(lease, Phase.ENDED, end=End.LOST, ended_age=10_000.0)
    lease.refresh_from_db()
    assert lease.held_until == lease.held_from
    assert not UsageSegment.objects.exists()
    other = start(lab)
    lease = lab.lease(other)
    lab.see(lease, Phase.ENDED, end=End.SUCCEEDED, ended_age=-500.0)
    lease.refresh_from_db()
    assert lease.held_until <= now_from_database()


def test_a_job_that_cannot_start_is_tried_again_later_and_then_given_up(lab: World) -> None:
    job = lab.submit(lab.people.bob, lab.people.astro)
    for attempt in (1, 2, 3):
        lab.fill()
        lab.see(lab.lease(job), Phase.ENDED, end=End.START_FAILED, ended_age=0.0, message="no such program")
        job.refresh_from_db()
        assert job.failed_starts == attempt
        if attempt < 3:
            assert job.state == Job.State.QUEUED
            lab.fill()
            job.refresh_from_db()
            assert (job.state, job.reason) == (Job.State.QUEUED, Reason.BACKING_OFF)
            Job.objects.filter(pk=job.pk).update(not_before=now_from_database() - timedelta(seconds=1))
    assert (job.state, job.end_message) == (Job.State.FAILED, "no such program")


def test_a_job_that_ends_while_it_is_told_to_stop_has_succeeded(lab: World) -> None:
    job = start(lab, gpus=4)
    lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
    lab.contest(job)
    lease = lab.lease(job)
    assert lab.states([job]) == [Job.State.STOPPING]
    lab.see(lease, Phase.ENDED, end=End.SUCCEEDED, ended_age=0.0, exit_code=0)
    assert lab.states([job]) == [Job.State.SUCCEEDED]


@pytest.mark.parametrize("end", [End.STOPPED, End.FAILED, End.LOST])
def test_a_cancelled_job_is_cancelled_however_its_processes_ended(lab: World, end: End) -> None:
    job = start(lab)
    cancel_job(actor=lab.people.alice, job=job)
    assert lab.states([job]) == [Job.State.CANCELLING]
    lab.see(lab.lease(job), Phase.ENDED, end=end, ended_age=0.0, exit_code=143)
    assert lab.states([job]) == [Job.State.CANCELLED]


def test_a_failure_keeps_its_reason(lab: World) -> None:
    job = start(lab)
    message = "Worker 0 ended with exit code 3"
    lab.see(lab.lease(job), Phase.ENDED, end=End.FAILED, ended_age=0.0, exit_code=3, message=message)
    job.refresh_from_db()
    assert (job.state, job.exit_code, job.end_message) == (Job.State.FAILED, 3, message)


def test_progress_becomes_speed_from_differences_within_a_lease(lab: World) -> None:
    job = start(lab)
    lease = lab.age(lab.lease(job), 100)
    lab.see(lease, Phase.RUNNING, steps=50.0, steps_age=40.0)
    assert not JobSpeed.objects.exists()  # a speed needs two reports
    lab.see(lease, Phase.RUNNING, steps=90.0, steps_age=20.0)
    lab.see(lease, Phase.RUNNING, steps=130.0, steps_age=0.0)
    speed = JobSpeed.objects.get(job=job, generation=lab.people.v100)
    assert speed.steps == 80
    assert speed.rate == pytest.approx(2.0, rel=0.05)
    job.refresh_from_db()
    assert job.steps_done == 130


@pytest.mark.parametrize("steps", [1e19, float("inf"), float("nan"), -1.0])
def test_invalid_step_counts_are_ignored(lab: World, steps: float) -> None:
    job = start(lab)
    lease = lab.age(lab.lease(job), 100)
    lab.see(lease, Phase.RUNNING, steps=50.0, steps_age=40.0)
    lab.see(lease, Phase.RUNNING, steps=steps, steps_age=20.0)
    job.refresh_from_db()
    assert job.steps_done == 50
    assert not JobSpeed.objects.exists()


def test_parts_of_a_step_are_a_speed_once_they_add_up(lab: World) -> None:
    job = start(lab)
    lease = lab.age(lab.lease(job), 100)
    lab.see(lease, Phase.RUNNING, steps=0.0, steps_age=40.0)
    lab.see(lease, Phase.RUNNING, steps=1e-300, steps_age=20.0)
    assert not JobSpeed.objects.exists()
    lab.see(lease, Phase.RUNNING, steps=0.1, steps_age=0.0)
    assert JobSpeed.objects.get(job=job).rate == pytest.approx(0.0025, rel=0.05)


def test_the_last_steps_count_even_if_earlier_ones_were_recorded_late(lab: World) -> None:
    job = start(lab)
    lease = lab.age(lab.lease(job), 100)
    lab.see(lease, Phase.RUNNING, steps=50.0, steps_age=40.0)
    lab.see(lease, Phase.RUNNING, steps=90.0, steps_age=0.0)
    lab.see(lease, Phase.ENDED, end=End.SUCCEEDED, steps=100.0, steps_age=5.0)
    job.refresh_from_db()
    assert job.steps_done == 100
    assert JobSpeed.objects.get(job=job).steps == 40


def test_frozen_processes_are_continued_and_their_gpus_are_not_billed_meanwhile() -> None:
    lab = world(v100=4, slicing="freeze")
    job = start(lab, gpus=4)
    other = lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
    lab.contest(job)
    first = lab.lease(job)
    assert first.operations.filter(verb=Operation.Verb.FREEZE).exists()
    lab.carry_out()
    job.refresh_from_db()
    assert (job.state, job.frozen) == (Job.State.SUSPENDED, True)
    assert lab.states([other]) == [Job.State.RUNNING]
    lab.see(lab.lease(other), Phase.ENDED, end=End.SUCCEEDED, ended_age=0.0)
    lab.fill()
    again = lab.lease(job)
    assert [operation.verb for operation in again.operations.all()] == [Operation.Verb.THAW]
    assert {g.gpu_index for g in again.held_gpus.all()} == {g.gpu_index for g in first.held_gpus.all()}


def test_cancelling_a_frozen_job_kills_its_processes() -> None:
    lab = world(v100=4, slicing="freeze")
    job = start(lab, gpus=4)
    lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
    lab.contest(job)
    lease = lab.lease(job)
    lab.carry_out()
    cancel_job(actor=lab.people.bob, job=job)
    assert lab.states([job]) == [Job.State.CANCELLED]
    assert lease.operations.filter(verb=Operation.Verb.KILL, done_at=None).exists()


def test_long_leases_are_billed_by_the_hour_without_gap_or_overlap(lab: World) -> None:
    job = start(lab)
    lease = lab.age(lab.lease(job), 3 * 3600)
    assert bill_running(cluster_id=lab.cluster.pk) == 1
    assert bill_running(cluster_id=lab.cluster.pk) == 0
    lab.see(lease, Phase.ENDED, end=End.SUCCEEDED, ended_age=0.0)
    lease.refresh_from_db()
    segments = list(UsageSegment.objects.filter(lease_id=lease.pk).order_by("period"))
    assert segments[0].period.lower == lease.held_from
    assert segments[-1].period.upper == lease.held_until
    for before, after in pairwise(segments):
        assert before.period.upper == after.period.lower
    assert len(segments) >= 3


def test_a_lease_told_to_stop_before_it_began_is_closed_without_waiting(lab: World) -> None:
    job = lab.submit(lab.people.bob, lab.people.astro)
    lab.fill()
    cancel_job(actor=lab.people.bob, job=job)
    lease = lab.lease(job)
    close_never_started(cluster_id=lab.cluster.pk, lease_ids=[lease.pk])
    lease.refresh_from_db()
    assert lease.state == Lease.State.CLOSED
    assert lab.states([job]) == [Job.State.CANCELLED]
