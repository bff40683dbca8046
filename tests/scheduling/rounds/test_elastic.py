"""Rounds choose with how many workers an elastic job starts, and resize it by a stop and a start."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import F

from accounting.actions import set_quota
from accounting.models import Quota, UsageSegment
from portal.jobs.detail import leases_of, why_ended
from scheduling.backends.base import End, Phase
from scheduling.core.event_texts import text_of
from scheduling.jobs.editing import edit_job
from scheduling.jobs.explain import explain
from scheduling.jobs.preflight import preflight
from scheduling.models import Cluster, Job, JobSpeed, Lease, RoundRecord
from scheduling.models.event_codes import Cause
from scheduling.rounds.actions import decisions_equal, redraw
from scheduling.shares.intervals import _received
from scheduling.spec.job_spec import JobSpec
from tests.scheduling.world import World, start, world

pytestmark = pytest.mark.django_db


def ranks(lease: Lease) -> list[int]:
    return sorted(set(lease.held_gpus.values_list("rank", flat=True)))


def shrunk() -> tuple[World, Job, Job]:
    """Returns a world in which a gang of four workers of Bob's shrinks to one, because Charlie's job needs 3 GPUs."""
    lab = world(v100=4)
    gang = start(lab, max_workers=4)
    lab.age(lab.lease(gang), 300)
    lab.pass_time(60)
    other = lab.submit(lab.people.charlie, lab.people.bio, gpus=3)
    lab.fill()
    return lab, gang, other


def test_a_gang_starts_with_all_the_workers_that_fit_and_is_billed_for_them() -> None:
    lab = world(v100=4)
    lab.submit(lab.people.charlie, lab.people.bio)
    gang = start(lab, workers=2, max_workers=8)
    lease = lab.lease(gang)
    assert (lease.gpus, ranks(lease)) == (3, [0, 1, 2])
    assert (gang.gpus, gang.most_gpus) == (2, 8)
    lab.age(lease, 60)
    lab.submit(lab.people.charlie, lab.people.bio)
    lab.pass_time(60)
    lab.fill()
    lab.carry_out()
    segments = UsageSegment.objects.filter(job_id=gang.pk)
    assert {one.gpus for one in segments} == {3}


def test_a_gang_shrinks_for_a_waiting_job_and_no_retry_is_counted() -> None:
    lab, gang, other = shrunk()
    old, new = gang.leases.order_by("epoch")
    assert (old.state, old.stop_cause, new.state, new.gpus) == ("stopping", Cause.RESIZED, "reserved", 1)
    said = text_of(gang.events.filter(code="resized").get())
    assert said.endswith("continues with 1 instead of 4 workers")
    lab.carry_out()
    assert lab.states([gang, other]) == [Job.State.RUNNING, Job.State.RUNNING]
    assert ranks(lab.lease(gang)) == [0]
    gang.refresh_from_db()
    assert (gang.failures, gang.failed_starts, gang.epoch) == (0, 0, 2)
    assert {one.gpus for one in UsageSegment.objects.filter(job_id=gang.pk)} == {4}


def test_a_gang_grows_into_idle_gpus_once_it_has_run_for_two_quanta() -> None:
    lab, gang, other = shrunk()
    lab.carry_out()
    lab.see(lab.lease(other), Phase.ENDED, end=End.SUCCEEDED, exit_code=0, ended_age=0.0)
    lab.quantum()
    assert lab.lease(gang).epoch == 2
    # Its GPUs were held by its earlier attempt 121 s ago, so `age` cannot backdate them.
    Lease.objects.filter(pk=lab.lease(gang).pk).update(held_from=F("held_from") - timedelta(seconds=121))
    lab.pass_time(60)
    lab.quantum()
    lab.carry_out()
    assert (lab.lease(gang).epoch, lab.lease(gang).gpus) == (3, 4)


def test_a_gang_shrinks_to_what_its_team_has_left_of_its_hours_instead_of_being_stopped() -> None:
    lab = world(v100=4)
    gang = start(lab, max_workers=4)
    lab.age(lab.lease(gang), 60)
    set_quota(actor=None, tenant=lab.people.astro, kind=Quota.Kind.GPU_HOURS, limit="0.1")
    lab.quantum()
    lab.carry_out()
    lease = lab.lease(gang)
    assert (lab.states([gang]), lease.epoch) == ([Job.State.RUNNING], 2)
    assert 1 <= lease.gpus < 4


def test_a_round_that_sized_gangs_is_verified_from_its_record() -> None:
    _, gang, _ = shrunk()
    assert gang.leases.count() == 2
    for record in RoundRecord.objects.select_related("round"):
        assert decisions_equal(*redraw(record.round))


def test_an_elastic_gang_is_stopped_and_never_frozen() -> None:
    lab = world(v100=2, slicing=Cluster.Slicing.FREEZE)
    gang = start(lab, workers=2, max_workers=3)
    lab.submit(lab.people.charlie, lab.people.bio, gpus=2)
    lab.contest(gang)
    lab.carry_out()
    gang.refresh_from_db()
    assert (gang.state, gang.frozen) == (Job.State.SUSPENDED, False)


def test_only_the_least_size_counts_towards_the_share() -> None:
    lab = world(v100=4)
    gang = start(lab, max_workers=4)
    lease = lab.age(lab.lease(gang), 100)
    assert lease.held_from
    seconds = _received(lab.cluster, lease.held_from, lease.last_seen_at)
    assert sum(seconds.values()) == pytest.approx((lease.last_seen_at - lease.held_from).total_seconds())


def test_the_speed_of_a_gang_is_that_of_its_least_size() -> None:
    lab = world(v100=4)
    gang = start(lab, max_workers=4)
    lease = lab.age(lab.lease(gang), 60)
    lab.see(lease, Phase.RUNNING, steps=0.0, steps_age=10.0)
    lab.see(lease, Phase.RUNNING, steps=400.0, steps_age=0.0)
    assert JobSpeed.objects.get(job=gang).rate == pytest.approx(10, rel=0.2)


def test_a_gang_whose_size_was_fixed_while_it_ran_goes_on_until_its_quantum_ends() -> None:
    lab = world(v100=4)
    gang = start(lab, max_workers=4)
    Job.objects.filter(pk=gang.pk).update(max_workers=None)
    lab.fill()
    assert lab.lease(gang).epoch == 1
    lab.quantum()
    lab.carry_out()
    assert (lab.lease(gang).epoch, lab.lease(gang).gpus) == (2, 1)


def test_the_page_says_why_a_gang_runs_with_its_number_of_workers() -> None:
    lab = world(v100=4)
    gang = start(lab, workers=2, max_workers=4)
    assert explain(gang).sentence == "Running with 4 of 2 to 4 workers."
    edit_job(actor=lab.people.bob, job=gang, changes={"max_workers": 6})
    gang.refresh_from_db()
    assert "4 of 2 to 6 workers, because no other V100 is idle" in explain(gang).sentence
    lab.node("v100-1", lab.people.v100, 3)
    said = explain(gang).sentence
    assert "GPUs for 3 more workers are idle now" in said


def test_the_logs_of_all_workers_that_a_gang_ever_had_stay_known() -> None:
    lab = world(v100=4)
    gang = start(lab, workers=2, max_workers=4)
    edit_job(actor=lab.people.bob, job=gang, changes={"max_workers": None})
    gang = Job.objects.get(pk=gang.pk)
    assert (gang.max_workers, gang.spec["max_workers"]) == (None, 2)
    assert gang.worker_names == ["0", "1", "2", "3"]


def test_an_attempt_that_ended_for_another_size_says_so() -> None:
    lab, gang, _ = shrunk()
    lab.carry_out()
    assert why_ended(leases_of(gang).get(epoch=1)) == "resized"


def test_a_candidate_may_be_elastic_beside_others() -> None:
    lab = world(v100=4)
    lab.submit(lab.people.charlie, lab.people.bio)
    spec = JobSpec(name="a", command="true", workers=2, max_workers=8)
    found = preflight(actor=lab.people.bob, tenant=lab.people.astro, cluster=lab.cluster, spec=spec)
    assert found.verdict == "now"
    assert found.detail[-1].endswith("The cost shown is that of 2 workers.")
