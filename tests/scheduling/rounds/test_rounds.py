"""Rounds with a real PostgreSQL database start and stop gangs, and each decision takes effect exactly once."""

import re
import threading
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from importlib import import_module

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from accounting.core.clock import now_from_database
from accounting.models import LedgerEntry, Quota, UsageSegment
from fairshare import codec
from fairshare.model import Reason
from scheduling.backends.base import End, Phase
from scheduling.clusters.actions import pause_cluster, resume_cluster
from scheduling.draining.actions import drain_node, return_node
from scheduling.jobs.actions import cancel_job
from scheduling.models import (
    HeldGpu,
    Job,
    Lease,
    Operation,
    Round,
    RoundRecord,
    ShareBalance,
    ShareInterval,
)
from scheduling.rounds.actions import run_round
from tests import make
from tests.clock import real_now, set_clock
from tests.scheduling.world import world

pytestmark = pytest.mark.django_db


def test_a_submitted_job_holds_its_gpus_after_the_next_round() -> None:
    lab = world(v100=4)
    job = lab.submit(lab.people.bob, lab.people.astro, gpus=2)
    lab.fill()
    job.refresh_from_db()
    lease = lab.lease(job)
    assert (job.state, job.epoch, job.reason) == (Job.State.STARTING, 1, 0)
    assert (lease.state, lease.gpus, lease.generation) == (Lease.State.STARTING, 2, lab.people.v100)
    assert [gpu.during.upper for gpu in lease.held_gpus.all()] == [None, None]
    assert [operation.verb for operation in lease.operations.all()] == [Operation.Verb.START]


def test_a_gang_gets_all_its_gpus_or_none() -> None:
    lab = world(v100=4)
    lab.node("v100-1", lab.people.v100, 2)
    gang = lab.submit(lab.people.bob, lab.people.astro, gpus=2, workers=4)
    fits = lab.submit(lab.people.bob, lab.people.astro, gpus=2, workers=3)
    lab.quantum()
    gang.refresh_from_db()
    assert gang.state == Job.State.QUEUED
    assert gang.reason == Reason.NEVER_TOO_LARGE
    places = [(gpu.rank, gpu.node.name) for gpu in lab.lease(fits).held_gpus.all()]
    assert len(places) == 6
    assert len({(rank, node) for rank, node in places}) == 3  # each worker has all its GPUs on one node


def test_gpus_change_hands_only_when_the_former_holder_is_seen_gone() -> None:
    lab = world(v100=4)
    old = lab.submit(lab.people.bob, lab.people.astro, gpus=4)
    lab.fill()
    lab.carry_out()
    new = lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
    lab.contest(old)
    assert lab.states([old, new]) == [Job.State.STOPPING, Job.State.QUEUED]
    promised = lab.lease(new)
    assert promised.state == Lease.State.RESERVED
    assert Job.objects.get(pk=new.pk).reason == Reason.GPUS_DRAINING
    lab.see(lab.lease(old), Phase.ENDED, end=End.STOPPED, ended_age=0.0)
    assert lab.states([old, new]) == [Job.State.SUSPENDED, Job.State.STARTING]
    former, present = lab.lease(old).held_gpus.first(), lab.lease(new).held_gpus.first()
    assert former.gpu_index == present.gpu_index
    assert former.during.upper <= present.during.lower


def test_the_ledger_bills_held_time_to_the_microsecond() -> None:
    lab = world(v100=4)
    job = lab.submit(lab.people.bob, lab.people.astro, gpus=4)
    lab.fill()
    lab.carry_out()
    lease = lab.age(lab.lease(job), 100)
    lab.see(lease, Phase.ENDED, end=End.SUCCEEDED, ended_age=0.0, exit_code=0)
    lease.refresh_from_db()
    held = lease.held_until - lease.held_from
    exact = Decimal(4) * Decimal(held.days * 86400 + held.seconds) + Decimal(4 * held.microseconds).scaleb(-6)
    segments = UsageSegment.objects.filter(lease_id=lease.pk)
    assert sum(segment.gpu_seconds for segment in segments) == exact
    usage = LedgerEntry.objects.filter(transaction__segments__in=segments, account__kind="usage").distinct()
    assert sum(entry.amount for entry in usage) == exact
    assert lab.states([job]) == [Job.State.SUCCEEDED]


def test_a_reservation_that_a_later_round_does_not_renew_is_withdrawn() -> None:
    lab = world(v100=4)
    old = lab.submit(lab.people.bob, lab.people.astro, gpus=4)
    lab.fill()
    lab.carry_out()
    new = lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
    lab.contest(old)
    assert lab.lease(new).state == Lease.State.RESERVED
    pause_cluster(actor=lab.people.olga, cluster=lab.cluster, reason="new switch")
    drain_node(actor=lab.people.olga, node=lab.cluster.nodes.get(), reason="fan", mode="now")
    lease = lab.lease(new)
    assert (lease.state, lease.held_gpus.count()) == (Lease.State.CLOSED, 0)
    assert lab.states([new]) == [Job.State.QUEUED]


def test_tickets_decide_how_time_is_shared() -> None:
    """Two teams with tickets 1 : 3 share one node for 40 quanta; their GPU time has the same ratio."""
    lab = world(v100=4)
    lab.people.bio.tickets = 300
    lab.people.bio.save()
    for _ in range(8):
        lab.submit(lab.people.bob, lab.people.astro)
        lab.submit(lab.people.charlie, lab.people.bio)
    received = {lab.people.astro.pk: 0, lab.people.bio.pk: 0}
    for _ in range(40):
        lab.quantum()
        lab.carry_out()
        for lease in lab.holding(Lease.State.RUNNING):
            lab.age(lease, 60)
            received[lease.job.tenant_id] += lease.gpus
        lab.pass_time(60)
    astro, bio = received[lab.people.astro.pk], received[lab.people.bio.pk]
    assert astro + bio == 160  # no GPU was ever idle
    assert bio / astro == pytest.approx(3, rel=0.05)


def test_intervals_say_what_each_team_was_entitled_to_and_received() -> None:
    lab = world(v100=4)
    job = lab.submit(lab.people.bob, lab.people.astro, gpus=4)
    lab.quantum()
    lab.carry_out()
    lab.age(lab.lease(job), 60)
    lab.pass_time(60)
    lab.quantum()
    interval = ShareInterval.objects.get(tenant=lab.people.astro, generation=lab.people.v100)
    seconds = (interval.ends - interval.begins).total_seconds()
    assert seconds == pytest.approx(60, abs=5)
    # A team is entitled to the whole cluster while no other team has jobs.
    assert interval.entitled == pytest.approx(4 * seconds)
    assert interval.received == pytest.approx(4 * seconds, rel=0.05)
    assert (interval.lent, interval.borrowed, interval.bought, interval.sold) == (0, 0, 0, 0)


def test_idle_gpus_do_not_count_as_lent() -> None:
    lab = world(v100=4)
    lab.submit(lab.people.bob, lab.people.astro)
    [alone] = lab.quantum().shares
    assert (alone["entitled"], alone["lent"], alone["unused"]) == (4, 0, 3)


def test_as_much_is_lent_as_is_borrowed_of_each_generation() -> None:
    lab = world(v100=8)
    vision = make.tenant("Vision", parent=lab.people.uni)
    dana = make.user("dana")
    make.membership(dana, vision)
    lab.submit(lab.people.bob, lab.people.astro)  # Astro is entitled to 8/3 GPUs and needs 1
    lab.submit(dana, vision)
    for _ in range(4):  # Bio needs 4 GPUs
        lab.submit(lab.people.charlie, lab.people.bio)
    rates = {rate["tenant"]: rate for rate in lab.quantum().shares}
    assert sum(rate["lent"] for rate in rates.values()) == pytest.approx(4 / 3)
    assert sum(rate["borrowed"] for rate in rates.values()) == pytest.approx(4 / 3)
    for lender in (lab.people.astro, vision):
        assert rates[lender.pk]["lent"] == pytest.approx(2 / 3)
        assert rates[lender.pk]["unused"] == pytest.approx(1)
    lab.carry_out()
    lab.pass_time(60)
    lab.quantum()
    interval = ShareInterval.objects.filter(tenant=vision).earliest("begins")
    seconds = (interval.ends - interval.begins).total_seconds()
    assert interval.unused == pytest.approx(seconds)
    assert interval.lent == pytest.approx(2 / 3 * seconds)


def test_intervals_of_before_are_split_into_lent_and_unused() -> None:
    lab = world(v100=4)
    lab.submit(lab.people.bob, lab.people.astro)
    of, now = lab.quantum(), now_from_database()
    for team, lent, borrowed in ((lab.people.astro, 80, 0), (lab.people.uni, 40, 0), (lab.people.bio, 0, 30)):
        ShareInterval.objects.create(
            cluster=lab.cluster, round=of, tenant=team, generation=lab.people.v100, begins=now, ends=now,
            entitled=100, received=0, lent=lent, borrowed=borrowed, bought=0, sold=0,
        )  # fmt: skip
    split = import_module("scheduling.migrations.0006_what_nobody_uses_is_not_lent").SPLIT
    with connection.cursor() as cursor:
        cursor.execute(split)
    amounts = ShareInterval.objects.order_by("-lent").values_list("lent", "unused", "borrowed")
    assert list(amounts) == [(20, 60, 0), (10, 30, 0), (0, 0, 30)]


def test_a_paused_cluster_starts_nothing_and_says_so() -> None:
    lab = world(v100=4)
    running = lab.submit(lab.people.bob, lab.people.astro)
    lab.fill()
    lab.carry_out()
    pause_cluster(actor=lab.people.olga, cluster=lab.cluster, reason="new switch")
    waiting = lab.submit(lab.people.bob, lab.people.astro)
    lab.quantum()
    assert lab.states([running, waiting]) == [Job.State.RUNNING, Job.State.QUEUED]
    assert Job.objects.get(pk=waiting.pk).reason == Reason.CLUSTER_PAUSED
    assert lab.cluster.pauses.get().during.upper is None
    resume_cluster(actor=lab.people.olga, cluster=lab.cluster)
    assert lab.cluster.pauses.get().during.upper is not None
    lab.fill()
    assert lab.states([waiting]) == [Job.State.STARTING]


def test_a_drained_node_is_cleared_and_its_jobs_go_on_elsewhere() -> None:
    lab = world(v100=4)
    job = lab.submit(lab.people.bob, lab.people.astro, gpus=2)
    lab.fill()
    lab.carry_out()
    node = lab.cluster.nodes.get()
    drain_node(actor=lab.people.olga, node=node, reason="new fan", mode="now")
    lab.carry_out()
    lab.quantum()
    job.refresh_from_db()
    assert (job.state, job.reason) == (Job.State.SUSPENDED, Reason.NODES_AWAY)
    spare = lab.node("v100-1", lab.people.v100)
    lab.quantum()
    assert {gpu.node for gpu in lab.lease(job).held_gpus.all()} == {spare}
    return_node(actor=lab.people.olga, node=node)
    node.refresh_from_db()
    assert node.state == "ready"


def test_a_spent_quota_of_gpu_hours_stops_and_holds_the_team() -> None:
    lab = world(v100=4)
    job = lab.submit(lab.people.bob, lab.people.astro, gpus=4)
    lab.fill()
    lab.carry_out()
    Quota.objects.create(
        tenant=lab.people.uni, kind=Quota.Kind.GPU_HOURS, period="month", limit=Decimal("0.1")
    )
    lab.age(lab.lease(job), 120)  # 4 GPUs for 120 s are 0.13 GPU-hours, which the ledger does not contain yet
    lab.quantum()
    lab.carry_out()
    lab.quantum()
    job.refresh_from_db()
    assert (job.state, job.reason) == (Job.State.SUSPENDED, Reason.HOURS_SPENT)


def test_a_quota_of_gpus_at_once_holds_for_all_teams_below() -> None:
    lab = world(v100=4)
    Quota.objects.create(tenant=lab.people.uni, kind=Quota.Kind.GPUS, limit=3)
    jobs = [lab.submit(lab.people.bob, lab.people.astro) for _ in range(2)]
    jobs += [lab.submit(lab.people.charlie, lab.people.bio) for _ in range(2)]
    too_large = lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
    lab.quantum()
    held = sum(lease.gpus for lease in lab.holding(Lease.State.STARTING))
    waiting = Job.objects.filter(pk__in=[job.pk for job in jobs], state=Job.State.QUEUED).get()
    too_large.refresh_from_db()
    assert (held, waiting.reason) == (3, Reason.QUOTA_IN_USE)
    assert too_large.reason == Reason.NEVER_OVER_QUOTA


def test_a_round_that_is_not_due_does_nothing() -> None:
    lab = world(v100=4)
    lab.submit(lab.people.bob, lab.people.astro)
    assert run_round(cluster_id=lab.cluster.pk) is not None
    assert run_round(cluster_id=lab.cluster.pk) is None
    lab.submit(lab.people.bob, lab.people.astro)
    again = run_round(cluster_id=lab.cluster.pk)
    assert again is not None
    assert again.kind == Round.Kind.FILL


def test_jobs_that_have_ended_are_not_among_those_that_are_due_again() -> None:
    lab = world(v100=1)
    jobs = [lab.submit(lab.people.bob, lab.people.astro) for _ in range(3)]
    Job.objects.update(not_before=now_from_database())
    ended = [job.pk for job in jobs[1:]]
    Job.objects.filter(pk__in=ended).update(state=Job.State.SUCCEEDED, ended_at=now_from_database())
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE scheduling_job")
        cursor.execute("SELECT reltuples FROM pg_class WHERE relname = 'job_backs_off'")
        assert cursor.fetchone() == (1.0,)


@pytest.mark.parametrize("ordering", ["stride", "lottery"])
def test_a_round_can_be_drawn_again_and_a_forged_one_is_found(
    ordering: str, capsys: pytest.CaptureFixture
) -> None:
    lab = world(v100=4, a100=4, ordering=ordering)
    for _ in range(6):
        lab.submit(lab.people.bob, lab.people.astro)
        lab.submit(lab.people.charlie, lab.people.bio, gpus=2)
    round_ = lab.quantum()
    call_command("verify_round", round_.number)
    assert "the repeated decision matches" in capsys.readouterr().out
    other = lab.quantum()
    RoundRecord.objects.filter(round=round_).update(decision=_without_one_gang(other))
    with pytest.raises(CommandError, match="DIFFERS"):
        call_command("verify_round", round_.number)


def test_the_database_refuses_two_holders_of_one_gpu() -> None:
    lab = world(v100=1)
    job = lab.submit(lab.people.bob, lab.people.astro)
    other = lab.submit(lab.people.bob, lab.people.astro)
    lab.fill()
    gpu = lab.lease(job).held_gpus.get()
    lease = Lease.objects.create(
        job=other, cluster=lab.cluster, epoch=1, generation=lab.people.v100, gpus=1, state="starting"
    )
    with pytest.raises(IntegrityError, match="a_gpu_is_held_once_at_any_moment"), transaction.atomic():
        HeldGpu.objects.create(
            lease=lease,
            node=gpu.node,
            rank=0,
            gpu_index=gpu.gpu_index,
            during=DateTimeTZRange(now_from_database(), None),
        )


def test_the_database_refuses_two_held_or_two_reserved_leases_of_a_job() -> None:
    lab = world(v100=2)
    job = lab.submit(lab.people.bob, lab.people.astro)
    lab.fill()
    facts = {"job": job, "cluster": lab.cluster, "generation": lab.people.v100, "gpus": 1}
    for state in Lease.HOLDING:
        with pytest.raises(IntegrityError, match="one_held_lease_a_job"), transaction.atomic():
            Lease.objects.create(epoch=9, state=state, **facts)
    Lease.objects.create(epoch=9, **facts)
    with pytest.raises(IntegrityError, match="one_reserved_lease_a_job"), transaction.atomic():
        Lease.objects.create(epoch=10, **facts)


@pytest.mark.django_db(transaction=True)
def test_workers_that_try_at_once_run_one_round() -> None:
    lab = world(v100=4)
    for _ in range(4):
        lab.submit(lab.people.bob, lab.people.astro)
    barrier = threading.Barrier(4)

    def try_once() -> None:
        barrier.wait()
        try:
            run_round(cluster_id=lab.cluster.pk)
        finally:
            connection.close()

    threads = [threading.Thread(target=try_once) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Round.objects.count() == 1
    assert Lease.objects.count() == 4


def test_absence_earns_no_credit() -> None:
    lab = world(v100=4)
    job = lab.submit(lab.people.bob, lab.people.astro, gpus=4)
    lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
    lab.quantum()
    first = lab.holding(Lease.State.STARTING)[0]
    lab.carry_out()
    loser = lab.people.bio if first.job_id == job.pk else lab.people.astro
    lab.age(lab.lease(first.job), 60)
    lab.pass_time(60)
    lab.quantum()
    owed = ShareBalance.objects.get(tenant=loser, generation=lab.people.v100).owed
    assert owed == pytest.approx(120, rel=0.1)  # GPU-seconds: half of four GPUs for a minute
    waiting = Job.objects.get(tenant=loser)
    cancel_job(actor=waiting.owner, job=waiting)
    lab.carry_out()
    lab.quantum()
    lab.quantum()
    assert ShareBalance.objects.get(tenant=loser, generation=lab.people.v100).owed == 0


def _without_one_gang(round_: Round) -> bytes:
    decision = codec.decode_decision(bytes(round_.record.decision))
    return codec.encode(replace(decision, run=decision.run[::-1].copy()))


def test_time_counted_beyond_the_end_of_a_lease_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a round counted a gang as running although it had already ended, the time after its end is subtracted from the
    team's received time.

    This happens when the end is reported. Here the time is ten seconds.
    """
    lab = world(v100=2)
    mine = [lab.submit(lab.people.bob, lab.people.astro) for _ in range(2)]
    lab.submit(lab.people.charlie, lab.people.bio)
    lab.quantum()
    lab.carry_out()
    running = next(job for job in mine if Job.objects.get(pk=job.pk).state == Job.State.RUNNING)
    lab.age(lab.lease(running), 60)
    lab.pass_time(60)
    set_clock(monkeypatch, real_now())  # no time passes between the round and the end of the gang
    lab.quantum()
    owed = ShareBalance.objects.get(user=lab.people.bob, cluster=lab.cluster)
    interval = ShareInterval.objects.filter(tenant=lab.people.astro).latest("round__number")
    # Backdates that round by ten seconds; the gang ends another ten seconds earlier.
    with connection.cursor() as cursor:
        for table, columns in (("cluster", ("last_round_at",)), ("shareinterval", ("begins", "ends"))):
            sets = ", ".join(f"{column} = {column} - interval '10 s'" for column in columns)
            cursor.execute(f"UPDATE scheduling_{table} SET {sets}")  # noqa: S608 - own names
    lab.see(lab.lease(running), Phase.ENDED, end=End.SUCCEEDED, ended_age=20.0, exit_code=0)
    after = ShareBalance.objects.get(pk=owed.pk)
    again = ShareInterval.objects.get(pk=interval.pk)
    assert after.owed - owed.owed == pytest.approx(10, abs=0.5)
    assert interval.received - again.received == pytest.approx(10, abs=0.5)


def test_time_long_before_the_end_of_a_lease_is_not_taken_back_and_no_obstacle() -> None:
    """When the end of a lease is reported, share intervals from long before stay unchanged and cause no error."""
    lab = world(v100=2)
    job = lab.submit(lab.people.bob, lab.people.astro)
    lab.quantum()
    lab.carry_out()
    for _ in range(3):
        lab.pass_time(60)
        lab.quantum()
    # PostgreSQL may compute the overlap of such an interval with later time before it filters it out.
    long_ago = now_from_database() - timedelta(days=1)
    ShareInterval.objects.update(begins=long_ago, ends=long_ago + timedelta(minutes=1), received=60.0)
    lab.age(lab.lease(job), 60)
    lab.see(lab.lease(job), Phase.ENDED, end=End.SUCCEEDED, ended_age=30.0, exit_code=0)
    assert lab.states([job]) == [Job.State.SUCCEEDED]
    assert set(ShareInterval.objects.values_list("received", flat=True)) == {60.0}


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("scheduling_job", ["reason"]),
        ("scheduling_sharebalance", ["owed", "share", "corrected"]),
    ],
)
def test_columns_that_every_round_changes_are_not_indexed(table: str, columns: list[str]) -> None:
    """The columns that every round changes have no index. So PostgreSQL can do HOT updates, which write to none of the
    table's indexes."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexdef FROM pg_indexes WHERE tablename = %s", [table])
        indexes = [definition for (definition,) in cursor.fetchall()]
    assert len(indexes) > 1
    assert not [one for one in indexes if re.search(rf"\b({'|'.join(columns)})\b", one)]
