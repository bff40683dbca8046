"""Preemptible jobs run only on GPUs that nobody else can use.

A job is preemptible by its spec, by a user's choice, or by a rule.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest
from django.db.models import F, Func, Value
from django.db.models.functions import Lower

from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent, Price, Quota, User
from fairshare.model import Reason
from scheduling.anomalies.history_reader import read_past
from scheduling.backends.base import End, Phase
from scheduling.core.event_texts import text_of
from scheduling.idle.actions import set_idle_rule, step_idle
from scheduling.idle.steps import Step
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.explain import explain
from scheduling.jobs.preemptible import set_preemptible
from scheduling.jobs.preflight import preflight
from scheduling.models import GpuUse, Job, JobEvent, PreemptibleTime, Round, ShareBalance, ShareInterval
from scheduling.rounds.actions import decisions_equal, redraw
from scheduling.services.actions import create_service
from scheduling.services.replicas import step_service
from scheduling.shares.finish_times import _Rhos
from scheduling.spec.job_spec import JobSpec
from tests.notified import mails
from tests.scheduling.idle.test_idle_gpus import MINUTE, idle
from tests.scheduling.world import World, start, world

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lab(transactional_db: None) -> World:
    return world(v100=4)


def charlies(lab: World, gpus: int = 4) -> Job:
    return lab.submit(lab.people.charlie, lab.people.bio, gpus=gpus)


def owed(user: User) -> float:
    return sum(ShareBalance.objects.filter(user=user).values_list("owed", flat=True))


def test_it_runs_on_what_is_idle_and_gives_way(lab: World) -> None:
    job = start(lab, gpus=4, preemptible=True)
    assert PreemptibleTime.objects.get().lease == lab.lease(job)
    other = charlies(lab)
    lab.quantum()
    lab.carry_out()
    assert lab.states([job, other]) == [Job.State.SUSPENDED, Job.State.RUNNING]
    lab.fill()
    job.refresh_from_db()
    assert job.reason == Reason.PREEMPTIBLE
    assert explain(job).sentence == (
        "The job is preemptible; the job runs only on GPUs that no other job can use, and there are none now."
    )
    lab.see(lab.lease(other), Phase.ENDED, end=End.SUCCEEDED)
    lab.fill()
    lab.carry_out()
    assert lab.states([job]) == [Job.State.RUNNING]
    # The job added nothing to its team's entitlement.
    assert not ShareInterval.objects.filter(tenant=lab.people.astro, entitled__gt=0).exists()


def test_preemptible_time_is_not_taken_from_a_users_share(lab: World) -> None:
    idle_one = start(lab, gpus=2, preemptible=True)
    own = lab.submit(lab.people.bob, lab.people.astro, gpus=2)
    lab.fill()
    lab.carry_out()
    lab.quantum()  # this round records which of the two jobs runs on idle GPUs
    for job in (idle_one, own):
        lab.age(lab.lease(job), 60)
    PreemptibleTime.objects.update(
        during=Func(Lower("during") - timedelta(seconds=60), Value(None), function="tstzrange")
    )
    lab.pass_time(60)
    lab.quantum()
    # The preemptible job's two GPUs do not count against Bob's share.
    assert owed(lab.people.bob) == pytest.approx(0, abs=5)
    received = sum(ShareInterval.objects.values_list("received", flat=True))
    assert received == pytest.approx(2 * 60, abs=10)  # reports on shares do not count them either


def test_time_counted_beyond_an_end_is_not_returned_as_share(lab: World) -> None:
    job = start(lab, gpus=2, preemptible=True)
    own = lab.submit(lab.people.bob, lab.people.astro, gpus=2)
    lab.fill()
    lab.carry_out()
    lab.quantum()
    before = owed(lab.people.bob)
    for one in (job, own):
        lab.age(lab.lease(one), 60)
    PreemptibleTime.objects.update(
        during=Func(Lower("during") - timedelta(seconds=60), Value(None), function="tstzrange")
    )
    lab.see(lab.lease(job), Phase.ENDED, end=End.SUCCEEDED, ended_age=30.0)
    assert owed(lab.people.bob) == pytest.approx(before, abs=1)
    lab.see(lab.lease(own), Phase.ENDED, end=End.SUCCEEDED, ended_age=30.0)
    assert owed(lab.people.bob) - before == pytest.approx(2 * 30, abs=10)


def test_own_jobs_that_take_part_go_first(lab: World) -> None:
    job = lab.submit(lab.people.bob, lab.people.astro, gpus=4, preemptible=True, priority=5)
    own = lab.submit(lab.people.bob, lab.people.astro, gpus=4)
    lab.quantum()
    lab.carry_out()
    assert lab.states([job, own]) == [Job.State.QUEUED, Job.State.RUNNING]


def test_a_user_who_may_cancel_a_job_makes_it_preemptible_and_back(lab: World) -> None:
    people = lab.people
    job = start(lab, gpus=4)
    for stranger in (people.charlie,):
        with pytest.raises(NotAllowed):
            set_preemptible(actor=stranger, job=job, preemptible=True)
    assert set_preemptible(actor=people.alice, job=job, preemptible=True).preemptible
    set_preemptible(actor=people.alice, job=job, preemptible=True)  # which changes nothing
    event = AuditEvent.objects.get(verb="job.preemptible")
    assert (event.actor_name, event.before, event.after) == (
        "alice",
        {"preemptible": False},
        {"preemptible": True},
    )
    assert text_of(JobEvent.objects.get(kind="sharing")) == "alice made the job preemptible"
    other = charlies(lab)
    lab.quantum()
    lab.carry_out()
    assert lab.states([job, other]) == [Job.State.SUSPENDED, Job.State.RUNNING]
    set_preemptible(actor=people.bob, job=job, preemptible=False)
    round_ = lab.quantum()
    assert round_ is not None
    assert {rate["tenant"]: rate["entitled"] for rate in round_.shares}[people.astro.pk] == 2.0


def test_a_job_that_waits_and_takes_part_again_is_looked_at_by_the_next_round(lab: World) -> None:
    charlie = start(lab, gpus=2)
    job = lab.submit(lab.people.bob, lab.people.astro, gpus=4, preemptible=True)
    lab.fill()
    assert not Job.objects.new_to_rounds().exists()
    set_preemptible(actor=lab.people.bob, job=job, preemptible=False)
    assert list(Job.objects.new_to_rounds()) == [job]
    lab.fill()
    assert lab.states([charlie, job]) == [Job.State.RUNNING, Job.State.QUEUED]


def test_ended_jobs_and_replicas_do_not_change(lab: World) -> None:
    job = start(lab)
    cancel_job(actor=lab.people.bob, job=job)
    with pytest.raises(Refused, match="has ended"):
        set_preemptible(actor=lab.people.bob, job=job, preemptible=True)


def test_a_replica_is_as_its_service_says(lab: World) -> None:
    service = create_service(
        actor=lab.people.bob,
        tenant=lab.people.astro,
        cluster=lab.cluster,
        spec=JobSpec(name="answers", command="true", port=8000, preemptible=True),
        replicas=1,
    )
    step_service(service_id=service.pk)
    replica = Job.objects.get(service=service)
    assert replica.preemptible
    with pytest.raises(Refused, match="Change the service"):
        set_preemptible(actor=lab.people.bob, job=replica, preemptible=False)


def test_a_team_that_may_borrow_little_may_use_idle_gpus(lab: World) -> None:
    Quota.objects.create(tenant=lab.people.astro, kind=Quota.Kind.BORROWED, limit=0, at_limit="block")
    job = start(lab, gpus=2)
    set_preemptible(actor=lab.people.bob, job=job, preemptible=True)
    lab.quantum()
    lab.quantum()
    assert lab.states([job]) == [Job.State.RUNNING]


def test_it_is_judged_neither_by_finish_time_nor_as_an_anomaly(lab: World) -> None:
    whole, changed = (start(lab, gpus=1, preemptible=wish) for wish in (True, False))
    own = start(lab, gpus=1)
    set_preemptible(actor=lab.people.bob, job=changed, preemptible=True)
    now = now_from_database()
    seen = read_past(lab.cluster, now - 60 * MINUTE, now + 60 * MINUTE).past
    told = {job.key: (job.preemptible, job.carried) for job in seen.jobs}
    assert told == {whole.pk: (True, False), changed.pk: (False, True), own.pk: (False, False)}
    for job in (whole, changed, own):
        lab.see(lab.lease(job), Phase.ENDED, end=End.SUCCEEDED)
    rhos = _Rhos(lab.cluster.pk, list(Job.objects.order_by("pk")))
    assert [rhos.of(job, 1.0) for job in rhos.jobs[:2]] == [None, None]
    assert rhos.sharers()[2] == pytest.approx(1.0)


def test_it_is_told_when_it_would_start_before_it_is_submitted(lab: World) -> None:
    people = lab.people
    spec = JobSpec(name="x", command="true", gpus_per_worker=4)
    start(lab, gpus=4)
    wishes = [spec.model_copy(update={"preemptible": wish}) for wish in (False, True)]
    shared, left = [
        preflight(actor=people.charlie, tenant=people.bio, cluster=lab.cluster, spec=one) for one in wishes
    ]
    assert shared.expected_start_seconds is not None
    assert left.expected_start_seconds is not None
    assert shared.expected_start_seconds[1] < left.expected_start_seconds[1]
    assert left.sentences[-1].startswith("The job is preemptible")


def test_it_is_told_what_preemptible_time_costs(lab: World) -> None:
    people = lab.people

    def cost() -> Decimal:
        spec = JobSpec(name="x", command="true", gpus_per_worker=2, preemptible=True)
        told = preflight(actor=people.bob, tenant=people.astro, cluster=lab.cluster, spec=spec)
        return told.cost_per_hour["V100"][0]

    Price.objects.filter(generation=people.v100).update(per_gpu_hour=3)
    assert cost() == 6
    Price.objects.filter(generation=people.v100).update(borrowed=2)
    assert cost() == 4
    Price.objects.filter(generation=people.v100).update(preemptible=1)
    assert cost() == 2


def test_a_round_is_drawn_again_from_its_record_with_it(lab: World) -> None:
    start(lab, gpus=2, preemptible=True)
    lab.submit(lab.people.charlie, lab.people.bio, gpus=1, preemptible=True)
    lab.quantum()
    assert decisions_equal(*redraw(Round.objects.select_related("record").latest("number")))


class TestARuleForIdleGpus:
    @pytest.fixture
    def lab(self, transactional_db: None, settings) -> World:
        settings.EMAIL_HOST = "mail.example.org"
        lab = world(v100=4)
        for name in ("alice", "bob"):
            User.objects.filter(username=name).update(email=f"{name}@example.org")
        set_idle_rule(actor=None, action="preemptible", after_minutes=30, grace_minutes=10, snooze_hours=2)
        return lab

    def test_takes_a_job_out_of_the_sharing_after_a_warning_and_tells_its_people(self, lab: World) -> None:
        job = start(lab, gpus=4)
        idle(lab, job, 31 * MINUTE)
        assert step_idle(job_id=job.pk) is Step.WARN
        assert text_of(JobEvent.objects.get(kind="warned")) == (
            "The job's GPUs have been idle for 31 min: the job becomes preemptible after another 10 min without use"
        )
        self.overdue_since_warned(job)
        assert step_idle(job_id=job.pk) is Step.PREEMPTIBLE
        assert step_idle(job_id=job.pk) is Step.NOTHING
        job.refresh_from_db()
        assert (job.preemptible, job.state) == (True, Job.State.RUNNING)
        assert AuditEvent.objects.get(verb="job.preemptible").actor is None
        said = "Preemptible from now on: the job's GPUs were idle for 42 min"
        assert text_of(JobEvent.objects.get(kind="sharing")) == said
        assert sorted(said in one.text for one in mails().all()) == [False, False, True, True]
        other = charlies(lab)
        lab.quantum()
        lab.carry_out()
        assert lab.states([job, other]) == [Job.State.SUSPENDED, Job.State.RUNNING]

    def overdue_since_warned(self, job: Job) -> None:
        GpuUse.objects.filter(job=job).update(
            warned_at=F("warned_at") - 11 * MINUTE, idle_warned=11 * MINUTE, idle_for=42 * MINUTE
        )

    def test_a_new_warning_precedes_a_new_stop(self, lab: World) -> None:
        job = start(lab, gpus=4)
        idle(lab, job, 31 * MINUTE)
        step_idle(job_id=job.pk)
        self.overdue_since_warned(job)
        assert step_idle(job_id=job.pk) is Step.PREEMPTIBLE
        set_preemptible(actor=lab.people.bob, job=job, preemptible=False)
        assert step_idle(job_id=job.pk) is Step.WARN
        assert step_idle(job_id=job.pk) is Step.NOTHING

    def test_says_nothing_of_who_takes_no_part_anyway(self, lab: World) -> None:
        job = start(lab, gpus=4, preemptible=True)
        idle(lab, job, 31 * MINUTE)
        assert step_idle(job_id=job.pk) is Step.NOTHING
        set_idle_rule(actor=None, action="stop", after_minutes=30, grace_minutes=10, snooze_hours=2)
        assert step_idle(job_id=job.pk) is Step.WARN

    def test_that_stops_is_not_put_off_by_leaving_the_sharing_and_coming_back(self, lab: World) -> None:
        set_idle_rule(actor=None, action="stop", after_minutes=30, grace_minutes=10, snooze_hours=2)
        job = start(lab, gpus=4)
        idle(lab, job, 31 * MINUTE)
        assert step_idle(job_id=job.pk) is Step.WARN
        for wish in (True, False):
            set_preemptible(actor=lab.people.bob, job=job, preemptible=wish)
        self.overdue_since_warned(job)
        assert step_idle(job_id=job.pk) is Step.STOP
