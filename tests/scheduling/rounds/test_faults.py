"""A failure in one place, such as in one cluster, one job or one order or between two statements, does not affect
anything else."""

from datetime import timedelta

import pytest
from django.conf import LazySettings

from accounting.actions import set_quota
from accounting.core.clock import now_from_database
from accounting.models import LedgerTransaction, Quota, UsageSegment
from fairshare.model import Reason
from scheduling import tasks
from scheduling.backends.base import BackendError, End, Phase
from scheduling.core import enqueue
from scheduling.core.event_texts import text_of
from scheduling.draining.actions import drain_node
from scheduling.execution.operations import perform_operations
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.preflight import preflight
from scheduling.leases import actions as leases
from scheduling.leases.actions import bill_running
from scheduling.leases.history import History
from scheduling.leases.lifecycle import Event, IllegalTransition
from scheduling.models import (
    Cluster,
    HeldGpu,
    Job,
    JobEvent,
    JobSpeed,
    Lease,
    Node,
    Operation,
    Round,
    RoundRecord,
    ShareBalance,
    ShareInterval,
    Trade,
)
from scheduling.models.event_codes import EventCode, Message
from scheduling.retention import prune
from scheduling.rounds.actions import due_kind, run_round
from scheduling.spec.job_spec import JobSpec
from tests.make import membership
from tests.make import tenant as make_tenant
from tests.scheduling.world import OneByOne, World, seen, start, world

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> World:
    return world(v100=4)


# --- one job and the others ------------------------------------------------------------------------


def test_a_job_that_cannot_be_recorded_does_not_delay_the_others(
    lab: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good, third = start(lab), start(lab), start(lab)
    real = leases.ObservationBatch.observe

    def refuse(batch: leases.ObservationBatch, lease: Lease, what: object) -> None:
        if lease.job_id == bad.pk:
            raise IllegalTransition("as if the table had a hole")
        real(batch, lease, what)

    monkeypatch.setattr(leases.ObservationBatch, "observe", refuse)
    ends = [seen(lab.lease(job), Phase.ENDED, end=End.SUCCEEDED, ended_age=0.0) for job in (good, bad, third)]
    leases.apply_observations(cluster_id=lab.cluster.pk, observations=ends)
    assert lab.states([good, bad, third]) == [Job.State.SUCCEEDED, Job.State.RUNNING, Job.State.SUCCEEDED]


def test_the_trouble_of_one_cluster_does_not_keep_the_others_waiting(
    lab: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Cluster.objects.create(name="other")
    asked: list[int] = []

    def fails_for_the_first(*, cluster_id: int) -> None:
        asked.append(cluster_id)
        if len(asked) == 1:
            raise RuntimeError("trouble")

    monkeypatch.setattr("scheduling.tasks.rounds.run_round", fails_for_the_first)
    with pytest.raises(RuntimeError, match="trouble"):
        tasks.run_due_rounds()
    assert sorted(asked) == sorted([lab.cluster.pk, other.pk])


def test_processes_that_vanish_again_and_again_are_given_up_in_the_end(lab: World) -> None:
    job = lab.submit(lab.people.bob, lab.people.astro)
    for attempt in range(1, leases.MAX_LOST_STARTS + 1):
        lab.fill()
        lab.carry_out()
        assert lab.states([job]) == [Job.State.RUNNING]
        lab.see(lab.lease(job), Phase.ENDED, end=End.LOST, ended_age=0.0)
        job.refresh_from_db()
        assert job.failed_starts == attempt
        Job.objects.filter(pk=job.pk).update(not_before=None)
    assert (job.state, job.end_reason) == (Job.State.FAILED, "lost")


def test_a_loss_after_a_steady_run_counts_from_the_start_again(lab: World) -> None:
    job = start(lab)
    Job.objects.filter(pk=job.pk).update(failed_starts=leases.MAX_LOST_STARTS - 1)
    lab.see(lab.age(lab.lease(job), 3600), Phase.ENDED, end=End.LOST, ended_age=0.0)
    job.refresh_from_db()
    assert (job.state, job.failed_starts) == (Job.State.SUSPENDED, 0)


class Deaf(OneByOne):
    """A backend that refuses every order."""

    def refuse(self, *_: object, **__: object) -> None:
        raise BackendError("the disk is full")

    start = thaw = stop = freeze = refuse


def test_a_start_that_the_backend_refuses_again_and_again_gives_its_gpus_back(
    lab: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduling.execution.operations.backend_for", lambda _: Deaf())
    job = lab.submit(lab.people.bob, lab.people.astro)
    lab.fill()
    for _ in range(5):
        assert lab.states([job]) == [Job.State.STARTING]
        Operation.objects.update(not_before=now_from_database())
        perform_operations(cluster=lab.cluster, log_limit_bytes=1000)
    job.refresh_from_db()
    assert (job.state, job.failed_starts) == (Job.State.QUEUED, 1)
    assert "the disk is full" in text_of(job.events.get(kind="start_failed"))
    assert lab.lease(job).state == Lease.State.CLOSED


def test_one_order_that_cannot_be_understood_does_not_keep_the_others(
    lab: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    class Willing(Deaf):
        def start(self, gang: object) -> None:
            if gang.job_id == bad.pk:
                raise KeyError("what nobody thought of")
            started.append(gang.job_id)

    monkeypatch.setattr("scheduling.execution.operations.backend_for", lambda _: Willing())
    bad, good = (lab.submit(lab.people.bob, lab.people.astro) for _ in range(2))
    lab.fill()
    perform_operations(cluster=lab.cluster, log_limit_bytes=1000)
    assert started == [good.pk]
    assert lab.lease(bad).operations.get().error


# --- freezing ----------------------------------------------------------------------------------------


def frozen(lab: World) -> tuple[Job, Lease]:
    """Returns a job whose processes are frozen, and the lease of the attempt in which they were frozen."""
    job = start(lab, gpus=4)
    lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
    lab.contest(job)
    lease = lab.lease(job)
    lab.see(lease, Phase.FROZEN, frozen_age=0.0)
    job.refresh_from_db()
    assert job.frozen
    return job, lease


def freeze(lab: World, job: Job) -> None:
    history = History()
    order = leases.StopOrder(
        Lease.objects.get(pk=lab.lease(job).pk), Message.of(EventCode.MOVED), freeze=True
    )
    leases.ask_to_stop([order], event=Event.PREEMPTED, now=now_from_database(), history=history)
    history.save()


def let_the_rival_end(lab: World, job: Job) -> None:
    """Lets the only other job run and end. Then runs a round that gives the GPUs of that job to `job`."""
    rival = Job.objects.exclude(pk=job.pk).get()
    lab.carry_out()
    lab.see(lab.lease(rival), Phase.ENDED, end=End.SUCCEEDED, ended_age=0.0)
    lab.fill()


def test_a_late_report_of_an_older_freeze_does_not_wake_a_frozen_job() -> None:
    lab = world(v100=4, slicing="freeze")
    job, first = frozen(lab)
    let_the_rival_end(lab, job)
    lab.carry_out()
    assert lab.states([job]) == [Job.State.RUNNING]
    freeze(lab, job)
    lab.see(lab.lease(job), Phase.FROZEN, frozen_age=0.0)
    lab.see(first, Phase.ENDED, end=End.STOPPED, ended_age=0.0)
    job.refresh_from_db()
    assert job.frozen
    lab.see(lab.lease(job), Phase.ENDED, end=End.LOST, ended_age=0.0)
    job.refresh_from_db()
    assert not job.frozen


def test_newcomers_leave_the_gpus_of_frozen_processes_alone_while_other_gpus_will_do() -> None:
    """Frozen processes can go on only on their GPUs, also if these are not the last ones of the node."""
    lab = world(v100=4, slicing="freeze")
    job = start(lab, gpus=1)
    freeze(lab, job)
    lab.see(lab.lease(job), Phase.FROZEN, frozen_age=0.0)
    Job.objects.filter(pk=job.pk).update(not_before=now_from_database() + timedelta(hours=1))
    home = list(HeldGpu.objects.filter(lease__job=job).values_list("node_id", "gpu_index"))
    rivals = [lab.submit(lab.people.charlie, lab.people.bio, gpus=gpus) for gpus in (1, 2)]
    lab.fill()
    taken = HeldGpu.objects.filter(lease__job__in=rivals).values_list("node_id", "gpu_index")
    assert len(taken) == 3
    assert set(home).isdisjoint(taken)
    Job.objects.filter(pk=job.pk).update(not_before=None)
    lab.fill()
    assert list(HeldGpu.objects.filter(lease=lab.lease(job)).values_list("node_id", "gpu_index")) == home
    assert lab.lease(job).operations.get().verb == Operation.Verb.THAW


def test_a_thaw_that_was_taken_back_before_it_began_leaves_the_processes_frozen() -> None:
    lab = world(v100=4, slicing="freeze")
    job, lease = frozen(lab)
    let_the_rival_end(lab, job)
    second = lab.lease(job)
    assert second.operations.get().verb == Operation.Verb.THAW
    lab.submit(lab.people.charlie, lab.people.bio, gpus=4, priority=1)
    Lease.objects.filter(pk=second.pk).update(state=Lease.State.STOPPING)
    Job.objects.filter(pk=job.pk).update(state=Job.State.STOPPING)
    assert leases.close_never_started(cluster_id=lab.cluster.pk, lease_ids=[second.pk]) == {second.pk}
    job.refresh_from_db()
    assert (job.state, job.frozen) == (Job.State.SUSPENDED, True)
    # The first lease still shows on which GPUs the frozen processes are, so a cancel ends the right ones.
    assert Lease.objects.of_frozen_processes().get() == lease
    cancel_job(actor=lab.people.bob, job=job)
    assert lease.operations.filter(verb=Operation.Verb.KILL, done_at=None).exists()


def test_a_job_says_for_how_long_its_turns_held_gpus_and_on_which_generation_it_began() -> None:
    """However its attempts end, a job records the first generation it ran on, and the total time for which its attempts
    held GPUs.

    Here the four attempts end in four ways: frozen, withdrawn before the start, lost, and succeeded.
    """
    lab = world(v100=4, slicing="freeze")
    job, _ = frozen(lab)
    let_the_rival_end(lab, job)
    second = lab.lease(job)
    Lease.objects.filter(pk=second.pk).update(state=Lease.State.STOPPING)
    Job.objects.filter(pk=job.pk).update(state=Job.State.STOPPING)
    leases.close_never_started(cluster_id=lab.cluster.pk, lease_ids=[second.pk])
    lab.node("a100-0", lab.people.a100)
    for end in (End.LOST, End.SUCCEEDED):
        lab.fill()
        lab.carry_out()
        lab.see(lab.lease(job), Phase.ENDED, end=end, ended_age=0.0)
    job.refresh_from_db()
    assert job.state == Job.State.SUCCEEDED
    attempts = list(job.leases.order_by("epoch"))
    assert len(attempts) == 4
    assert job.held_for == sum((turn.held_until - turn.held_from for turn in attempts), timedelta(0))
    assert job.held_for > timedelta(0)
    assert job.first_generation_id == attempts[0].generation_id


def test_a_cancel_after_a_withdrawn_reservation_kills_the_frozen_processes_themselves() -> None:
    lab = world(v100=4, slicing="freeze")
    job, lease = frozen(lab)
    Lease.objects.create(
        job=job, cluster=lab.cluster, epoch=7, generation=lab.people.v100, gpus=4, state="closed"
    )
    cancel_job(actor=lab.people.bob, job=job)
    assert [order.lease for order in Operation.objects.filter(verb=Operation.Verb.KILL)] == [lease]


def test_a_drain_ends_frozen_gangs_on_the_node() -> None:
    lab = world(v100=4, slicing="freeze")
    job, lease = frozen(lab)
    drain_node(actor=lab.people.olga, node=lab.cluster.nodes.get(), reason="fan", mode="now")
    job.refresh_from_db()
    assert (job.state, job.frozen) == (Job.State.SUSPENDED, False)
    assert lease.operations.filter(verb=Operation.Verb.STOP, done_at=None).exists()


def test_a_drain_stops_gangs_that_are_being_frozen() -> None:
    lab = world(v100=4, slicing="freeze")
    job = start(lab, gpus=4)
    lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
    lab.contest(job)
    lease = lab.lease(job)
    assert lease.operations.filter(verb=Operation.Verb.FREEZE).exists()
    drain_node(actor=lab.people.olga, node=lab.cluster.nodes.get(), reason="fan", mode="now")
    assert lease.operations.filter(verb=Operation.Verb.STOP).exists()


def test_a_cancel_during_a_long_grace_orders_the_stop_again_with_a_short_one(lab: World) -> None:
    job = start(lab, gpus=4)
    lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
    lab.contest(job)
    stop = lab.lease(job).operations.filter(verb=Operation.Verb.STOP)
    stop.update(done_at=now_from_database(), attempts=1)
    cancel_job(actor=lab.people.bob, job=job)
    assert lab.states([job]) == [Job.State.CANCELLING]
    assert stop.get().done_at is None


# --- clocks ------------------------------------------------------------------------------------------


def test_a_clock_that_was_set_back_holds_up_neither_rounds_nor_ends(lab: World) -> None:
    job = start(lab)
    ahead = timedelta(hours=1)
    cluster = Cluster.objects.get(pk=lab.cluster.pk)
    cluster.last_quantum_at = now_from_database() + ahead
    assert due_kind(cluster, now_from_database()) == Round.Kind.QUANTUM
    lease = lab.lease(job)
    Lease.objects.filter(pk=lease.pk).update(held_from=lease.held_from + ahead, running_from=None)
    HeldGpu.objects.filter(lease=lease).update(
        during=type(lease.held_gpus.first().during)(lease.held_from + ahead, None, "[)")
    )
    lab.see(lease, Phase.ENDED, end=End.SUCCEEDED, ended_age=0.0)
    assert lab.states([job]) == [Job.State.SUCCEEDED]
    assert not UsageSegment.objects.exists()


def test_gpus_billed_into_the_future_by_a_clock_set_back_are_given_on_from_there(lab: World) -> None:
    job = start(lab, gpus=4)
    lease = lab.lease(job)
    later = now_from_database() + timedelta(minutes=20)
    Lease.objects.filter(pk=lease.pk).update(billed_until=later)
    lab.see(lease, Phase.ENDED, end=End.SUCCEEDED, ended_age=0.0)
    after = lab.submit(lab.people.bob, lab.people.astro, gpus=4)
    lab.fill()
    assert lab.states([after]) == [Job.State.STARTING]
    assert lab.lease(after).held_from == later


def test_a_reservation_that_begins_ahead_of_a_clock_set_back_can_be_taken_back(lab: World) -> None:
    job = lab.submit(lab.people.bob, lab.people.astro)
    lab.fill()
    lease = lab.age(lab.lease(job), -600)
    drain_node(actor=lab.people.olga, node=lab.cluster.nodes.get(), reason="fan", mode="now")
    lease.refresh_from_db()
    assert lease.state == Lease.State.STOPPING
    assert leases.close_never_started(cluster_id=lab.cluster.pk, lease_ids=[lease.pk]) == {lease.pk}
    lease.refresh_from_db()
    job.refresh_from_db()
    assert (lease.held_until, job.held_for) == (lease.held_from, timedelta(0))
    assert job.state == Job.State.SUSPENDED


def test_a_gang_not_seen_since_is_not_billed_to_the_hour(lab: World) -> None:
    """A gang that has not been seen for a while is billed only until it was last seen, not up to the full hour. It may
    have ended in a power cut."""
    job = start(lab)
    lease = lab.age(lab.lease(job), 3 * 3600)
    Lease.objects.filter(pk=lease.pk).update(last_seen_at=now_from_database() - timedelta(hours=2))
    assert bill_running(cluster_id=lab.cluster.pk) == 0
    lab.see(lease, Phase.ENDED, end=End.LOST, ended_age=2.5 * 3600)
    held = sum(segment.gpu_seconds for segment in UsageSegment.objects.filter(lease_id=lease.pk))
    assert float(held) == pytest.approx(0.5 * 3600, abs=30)


# --- rounds and messages -----------------------------------------------------------------------------


def test_a_job_that_was_committed_after_a_later_round_is_seen_at_once(lab: World) -> None:
    """A new job is considered by the next round even if its submit is dated before the last round.

    This happens if the transaction of the submit began before that round and was committed after it.
    """
    start(lab)
    lab.quantum()
    late = lab.submit(lab.people.bob, lab.people.astro)
    Job.objects.filter(pk=late.pk).update(state_since=now_from_database() - timedelta(minutes=1))
    round_ = run_round(cluster_id=lab.cluster.pk)
    assert round_ is not None
    assert round_.kind == Round.Kind.FILL
    assert lab.states([late]) == [Job.State.STARTING]
    assert run_round(cluster_id=lab.cluster.pk) is None


@pytest.mark.django_db(transaction=True)
def test_a_job_is_submitted_although_redis_is_away(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = world(v100=4)
    nowhere = "redis://127.0.0.1:1/0"
    settings.REDIS_URL = nowhere
    monkeypatch.setattr(enqueue.current_app.conf, "broker_url", nowhere)
    # The cached connection pools lead to the real broker; monkeypatch restores them after the test.
    monkeypatch.setattr(enqueue.current_app, "_pool", None)
    monkeypatch.setattr(enqueue.current_app.amqp, "_producer_pool", None)
    job = lab.submit(lab.people.bob, lab.people.astro)
    assert Job.objects.filter(pk=job.pk).exists()
    assert lab.fill() is not None
    assert lab.states([job]) == [Job.State.STARTING]


# --- shares and quotas -------------------------------------------------------------------------------


def test_a_department_with_jobs_of_its_own_counts_without_its_teams() -> None:
    lab = world(v100=4)
    people = lab.people
    membership(people.olga, people.uni)
    for owner, tenant in (
        (people.olga, people.uni),
        (people.bob, people.astro),
        (people.charlie, people.bio),
    ):
        people_job = Job.objects.create(
            cluster=lab.cluster,
            tenant=tenant,
            owner=owner,
            name="own",
            spec=JobSpec(name="own", command="true", gpus_per_worker=4).to_dict(),
            workers=1,
            gpus_per_worker=4,
        )
        assert people_job.pk
    round_ = lab.quantum()
    assert round_ is not None
    entitled = {rate["tenant"]: rate["entitled"] for rate in round_.shares}
    assert entitled.keys() == {people.uni.pk, people.astro.pk, people.bio.pk}
    # Three equal parts: Uni has two teams of 100 tickets each, and one user of its own with 100 tickets.
    assert list(entitled.values()) == pytest.approx([4 / 3] * 3)


def test_a_trade_too_small_for_the_ledger_is_not_booked_and_stops_nothing() -> None:
    lab = world(v100=4, a100=4)
    start(lab)
    round_ = Round.objects.get()
    trade = Trade.objects.create(
        round=round_,
        seller=lab.people.astro,
        buyer=lab.people.bio,
        slow=lab.people.v100,
        fast=lab.people.a100,
        fast_gpus=1e-12,
        slow_gpus=2e-12,
        price=2.0,
        seller_speedup=1.5,
        buyer_speedup=3.0,
        begins=round_.at,
    )
    assert lab.quantum() is not None
    trade.refresh_from_db()
    assert trade.ends is not None
    assert not LedgerTransaction.objects.filter(key=f"trade:{trade.pk}").exists()


def test_time_while_fairlot_was_off_has_no_entitlements_or_trades(lab: World) -> None:
    job = start(lab, gpus=4)
    lab.see(lab.lease(job), Phase.ENDED, end=End.STOPPED, ended_age=0.0)
    off = 8 * 3600
    lab.age(lab.lease(job), off + 10)
    Lease.objects.update(held_until=now_from_database() - timedelta(seconds=off))
    lab.pass_time(off + 10)
    lab.quantum()
    interval = ShareInterval.objects.get(tenant=lab.people.astro)
    assert (interval.ends - interval.begins).total_seconds() == pytest.approx(60, abs=5)
    assert interval.received == pytest.approx(4 * 10, abs=8)


def test_an_idle_cluster_remembers_no_debts(lab: World) -> None:
    job = start(lab, gpus=4)
    ShareBalance.objects.update(owed=500.0)
    lab.see(lab.lease(job), Phase.ENDED, end=End.SUCCEEDED, ended_age=0.0)
    for _ in range(2):
        lab.pass_time(60)
        assert lab.quantum() is None
    assert ShareBalance.objects.get(generation=lab.people.v100).owed == 0


def test_with_one_generation_s_hours_spent_a_job_runs_on_the_other_only() -> None:
    lab = world(v100=4, a100=4)
    set_quota(
        actor=None,
        tenant=lab.people.astro,
        kind=Quota.Kind.GPU_HOURS,
        generation=lab.people.v100,
        limit=0,
    )
    jobs = [lab.submit(lab.people.bob, lab.people.astro) for _ in range(6)]
    wide = lab.submit(lab.people.bob, lab.people.astro, generations=["V100"])
    lab.quantum()
    generations = {lease.generation for lease in lab.holding(Lease.State.STARTING)}
    assert generations == {lab.people.a100}
    assert len(lab.holding(Lease.State.STARTING)) == 4
    wide.refresh_from_db()
    assert wide.reason == Reason.HOURS_SPENT
    assert Reason.NEVER_NO_SUCH_GENERATION not in {Job.objects.get(pk=job.pk).reason for job in jobs}


def test_spent_hours_stop_a_running_gang_at_the_quantum_and_not_before(lab: World) -> None:
    job = start(lab)
    set_quota(actor=None, tenant=lab.people.astro, kind=Quota.Kind.GPU_HOURS, limit=0)
    lab.fill()
    assert lab.states([job]) == [Job.State.RUNNING]
    lab.quantum()
    assert lab.states([job]) == [Job.State.STOPPING]


def test_the_forecast_knows_that_the_hours_are_spent(lab: World) -> None:
    start(lab)
    set_quota(actor=None, tenant=lab.people.astro, kind=Quota.Kind.GPU_HOURS, limit="0.001")
    lab.age(lab.holding(Lease.State.RUNNING)[0], 3600)
    found = preflight(
        actor=lab.people.bob,
        tenant=lab.people.astro,
        cluster=lab.cluster,
        spec=JobSpec(name="x", command="true"),
    )
    assert found.verdict == "later"
    assert "hours" in found.sentences[0]


def test_slow_first_starts_in_a_burst_do_not_stretch_the_quantum(lab: World) -> None:
    for _ in range(4):
        lab.submit(lab.people.bob, lab.people.astro)
    lab.fill()
    for lease in lab.holding(Lease.State.STARTING):
        lab.tried(lease)
        held = lease.held_from - timedelta(seconds=30)
        Lease.objects.filter(pk=lease.pk).update(held_from=held)
        lab.see(lease, Phase.RUNNING, running_age=0.0)
    lab.cluster.refresh_from_db()
    assert lab.cluster.effective_quantum == 60


def test_the_quantum_grows_with_the_time_lost_between_attempts(lab: World) -> None:
    job = start(lab)
    lease = lab.lease(job)
    drain_node(actor=lab.people.olga, node=lab.cluster.nodes.get(), reason="test", mode="now")
    Lease.objects.filter(pk=lease.pk).update(stop_asked_at=now_from_database() - timedelta(seconds=20))
    lab.see(lease, Phase.ENDED, end=End.STOPPED, ended_age=0.0)
    lab.cluster.nodes.update(state=Node.State.READY)
    lab.fill()
    again = lab.lease(job)
    lab.tried(again)
    Lease.objects.filter(pk=again.pk).update(held_from=now_from_database() - timedelta(seconds=10))
    lab.see(again, Phase.RUNNING, running_age=0.0)
    lab.cluster.refresh_from_db()
    assert lab.cluster.switch_seconds == pytest.approx(0.2 * 30, abs=0.2)
    assert lab.cluster.effective_quantum == pytest.approx(6 / 0.05, abs=4)


def test_one_job_with_a_long_grace_cannot_stretch_the_quantum_without_end(lab: World) -> None:
    cluster = Cluster(quantum_seconds=60, switch_seconds=3600, overhead_limit=0.05)
    assert cluster.effective_quantum == 600


def test_a_program_that_restarts_its_steps_is_measured_from_there(lab: World) -> None:
    job = start(lab)
    lease = lab.age(lab.lease(job), 100)
    lab.see(lease, Phase.RUNNING, steps=500.0, steps_age=60.0)
    lab.see(lease, Phase.RUNNING, steps=1.0, steps_age=40.0)
    lab.see(lease, Phase.RUNNING, steps=21.0, steps_age=20.0)
    assert JobSpeed.objects.get(job=job).rate == pytest.approx(1.0, rel=0.1)


# --- growth ------------------------------------------------------------------------------------------


def test_old_details_are_deleted_but_shares_and_bills_stay(lab: World) -> None:
    job = start(lab)
    lab.see(lab.lease(job), Phase.ENDED, end=End.SUCCEEDED, ended_age=0.0)
    lab.pass_time(60)
    lab.quantum()
    kept = {model: model.objects.count() for model in (Round, ShareInterval, Lease, UsageSegment)}
    Operation.objects.update(done_at=now_from_database())
    assert prune(records=timedelta(days=1), attempts=timedelta(days=1)) == 0
    assert RoundRecord.objects.count() > 0
    assert prune(records=timedelta(0), attempts=timedelta(0)) > 0
    assert not RoundRecord.objects.exists()
    assert not Operation.objects.exists()
    assert set(JobEvent.objects.values_list("kind", flat=True)) == {"submitted", "succeeded"}
    assert {model: model.objects.count() for model in kept} == kept


def test_no_department_is_its_own_team(lab: World) -> None:
    """The entitlements of all teams add up to the capacity when a team has both jobs and teams below it. So no GPU
    counts for two teams."""
    deep = make_tenant("Deep", parent=lab.people.astro)
    Job.objects.create(
        cluster=lab.cluster,
        tenant=deep,
        owner=lab.people.bob,
        name="deep",
        spec=JobSpec(name="deep", command="true", gpus_per_worker=4).to_dict(),
        workers=1,
        gpus_per_worker=4,
    )
    lab.submit(lab.people.bob, lab.people.astro, gpus=4)
    round_ = lab.quantum()
    assert round_ is not None
    assert sum(rate["entitled"] for rate in round_.shares) == pytest.approx(4.0)
