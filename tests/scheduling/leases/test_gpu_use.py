"""Measurements of GPU use become idle intervals, bills and closed hours, even if they are repeated or arrive out of
order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import Sum
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting.closing.hours import open_book
from accounting.core.calendar import start_of_hour
from accounting.core.clock import now_from_database
from accounting.models import CapacitySegment, NodeHour, UsageHour, UsageSegment
from scheduling.backends.base import End, Phase, Use
from scheduling.books.closing import LATE, close_hours
from scheduling.idle.actions import idle_to_step, set_idle_rule, snooze_idle, step_idle
from scheduling.idle.steps import Step
from scheduling.leases import gpu_use
from scheduling.leases.actions import MEASURE_PATIENCE, _being_measured, bill, bill_running
from scheduling.leases.gpu_use import end_with, note_gpu_use
from scheduling.models import GpuUse, IdleStretch, Lease, ProcesslessStretch
from tests.accounting.ledger.test_at_once import at_once
from tests.scheduling.books.test_closing import ran, there_since
from tests.scheduling.world import World, start, world

pytestmark = pytest.mark.django_db(transaction=True)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


@pytest.fixture
def lab(transactional_db: None) -> World:
    return world(v100=4, a100=8)


@pytest.fixture
def hour(lab: World, books_at: Callable[[datetime], None]) -> datetime:
    """Returns the start of the hour before the last full hour.

    The nodes already existed then. This hour and all later hours are not closed yet.
    """
    last = start_of_hour(now_from_database()) - 2 * HOUR
    books_at(last + 2 * HOUR + LATE)
    there_since(last - HOUR)
    with transaction.atomic():
        open_book(book=lab.cluster.pk, since=last)
    return last


def idle(lab: World, lease: Lease, since: datetime, until: datetime) -> None:
    """Reports at the moment `until` that the lease's GPUs have been idle since `since`."""
    tell(lab, lease, until, unused_for=(until - since).total_seconds())


def tell(lab: World, lease: Lease, at: datetime, *, unused_for: float = 0.0) -> None:
    use = Use(token=lease.token, unused_for=unused_for, percent=0.0 if unused_for else 80.0, by_gpus=True)
    note_gpu_use(cluster_id=lab.cluster.pk, uses=[use], seen_at=at)


def stretches(lease: Lease) -> list[tuple[datetime, datetime]]:
    found = IdleStretch.objects.filter(lease=lease).order_by("during").values_list("during", flat=True)
    return [(one.lower, one.upper) for one in found]


def test_overlapping_or_adjacent_intervals_are_merged_and_repeats_change_nothing(
    lab: World, hour: datetime
) -> None:
    lease = lab.lease(start(lab))
    ran(lease, hour)
    told = [(5, 10), (20, 25), (10, 12), (5, 12), (30, 31), (21, 30), (5, 10)]
    for since, until in told:
        idle(lab, lease, hour + since * MINUTE, hour + until * MINUTE)
    assert stretches(lease) == [
        (hour + 5 * MINUTE, hour + 12 * MINUTE),
        (hour + 20 * MINUTE, hour + 31 * MINUTE),
    ]


def test_held_time_without_a_process_is_recorded(lab: World, hour: datetime) -> None:
    lease = lab.lease(start(lab, gpus=2))
    ran(lease, hour)

    def told(at: int, unused: int, processless: int) -> None:
        use = Use(
            token=lease.token, unused_for=unused * 60.0, percent=0.0, by_gpus=True, processless_for=processless * 60.0
        )  # fmt: skip
        note_gpu_use(cluster_id=lab.cluster.pk, uses=[use], seen_at=hour + at * MINUTE)

    told(10, 10, 4)
    told(12, 12, 6)
    told(12, 12, 6)
    assert GpuUse.objects.get().processless_since == hour + 6 * MINUTE
    told(20, 20, 0)
    assert GpuUse.objects.get().processless_since is None
    assert stretches(lease) == [(hour, hour + 20 * MINUTE)]
    [stretch] = ProcesslessStretch.objects.all()
    assert (stretch.during.lower, stretch.during.upper) == (hour + 6 * MINUTE, hour + 12 * MINUTE)
    tenant = lease.job.tenant_id

    def between(first: int, last: int, tenants: list[int] | None) -> dict[int, Decimal]:
        bounds = hour + first * MINUTE, hour + last * MINUTE
        return ProcesslessStretch.objects.gpu_seconds_by_tenant(*bounds, tenants)

    assert between(0, 60, None) == {tenant: 2 * 360}
    assert between(8, 60, [tenant]) == {tenant: 2 * 240}
    assert between(12, 60, None) == between(0, 60, [tenant + 1]) == {}
    lease.held_until = hour + 9 * MINUTE
    end_with([lease])
    assert between(0, 60, None) == {tenant: 2 * 180}


def test_before_all_workers_ran_nothing_is_idle(lab: World, hour: datetime) -> None:
    lease = lab.lease(start(lab))
    ran(lease, hour, running_from=hour + 10 * MINUTE)
    idle(lab, lease, hour, hour + 5 * MINUTE)
    idle(lab, lease, hour, hour + 12 * MINUTE)
    assert stretches(lease) == [(hour + 10 * MINUTE, hour + 12 * MINUTE)]


def test_measurements_of_unknown_or_closed_leases_have_no_effect(lab: World, hour: datetime) -> None:
    lease = lab.lease(start(lab))
    ran(lease, hour)
    other = Lease(token="6a7f4bd6-3a1f-4dc6-8df0-6d3c5b60d8d2", job=lease.job)
    idle(lab, other, hour, hour + 5 * MINUTE)
    Lease.objects.filter(pk=lease.pk).update(state=Lease.State.CLOSED, held_until=hour + MINUTE)
    idle(lab, lease, hour, hour + 5 * MINUTE)
    assert not IdleStretch.objects.exists()
    assert not GpuUse.objects.exists()


def test_a_closed_hour_counts_as_idle_what_was_billed_as_idle(lab: World, hour: datetime) -> None:
    lease = lab.lease(start(lab, gpus=2))
    ran(lease, hour + 10 * MINUTE, running_from=hour + 15 * MINUTE)
    idle(lab, lease, hour + 20 * MINUTE, hour + 35 * MINUTE)
    idle(lab, lease, hour + 50 * MINUTE, hour + 61 * MINUTE)
    bill_running(cluster_id=lab.cluster.pk)
    assert close_hours(cluster_id=lab.cluster.pk) == 2
    nodes = NodeHour.objects.exclude(idle=0).order_by("hour")
    told = [[float(amount) / 60 for amount in (one.idle, one.assembling, one.busy)] for one in nodes]
    assert told == [[50, 10, 40], [2, 0, 118]]
    assert [one.idle for one in UsageHour.objects.order_by("hour")] == [one.idle for one in nodes]
    call_command("verify_ledger")


def test_a_report_after_its_hour_was_billed_changes_nothing(lab: World, hour: datetime) -> None:
    lease = lab.lease(start(lab))
    ran(lease, hour)
    idle(lab, lease, hour + 10 * MINUTE, hour + 20 * MINUTE)
    bill_running(cluster_id=lab.cluster.pk)
    late = now_from_database()
    idle(lab, lease, hour + 5 * MINUTE, late)
    idle(lab, lease, hour + 5 * MINUTE, late)
    this = hour + 2 * HOUR
    assert stretches(lease) == [(hour + 10 * MINUTE, hour + 20 * MINUTE), (this, late)]
    assert GpuUse.objects.get().idle_for == 10 * MINUTE + (late - this)
    assert close_hours(cluster_id=lab.cluster.pk) == 2
    assert [one.idle for one in UsageSegment.objects.order_by("period")] == [600, 0]
    call_command("verify_ledger")


def test_the_database_keeps_stretches_of_billed_time(lab: World, hour: datetime) -> None:
    lease = lab.lease(start(lab))
    ran(lease, hour)
    until = now_from_database()
    idle(lab, lease, hour + 10 * MINUTE, until)
    bill_running(cluster_id=lab.cluster.pk)
    (kept,) = IdleStretch.objects.all()
    shorter = DateTimeTZRange(hour + 11 * MINUTE, until)
    cut = DateTimeTZRange(hour + 10 * MINUTE, hour + 59 * MINUTE)
    for during in (shorter, cut):
        with pytest.raises(IntegrityError, match="billed time"):
            IdleStretch.objects.filter(pk=kept.pk).update(during=during)
    with pytest.raises(IntegrityError, match="billed time"):
        kept.delete()
    with pytest.raises(IntegrityError, match="billed time"):
        IdleStretch.objects.create(lease=lease, during=DateTimeTZRange(hour, hour + MINUTE))
    longer = DateTimeTZRange(hour + 10 * MINUTE, until + MINUTE)
    assert IdleStretch.objects.filter(pk=kept.pk).update(during=longer)


def test_an_hour_waits_a_little_for_its_last_measurements(lab: World, hour: datetime) -> None:
    """An hour stays open for up to 100 s (MEASURE_PATIENCE) after its end, because its last measurement arrives later.

    Otherwise idle time at the end of each hour would be lost.
    """
    lease = lab.lease(start(lab))
    ran(lease, hour)
    this = hour + 2 * HOUR
    idle(lab, lease, this - 10 * MINUTE, this - timedelta(seconds=1))
    soon = this + MEASURE_PATIENCE / 2
    assert list(_being_measured(this, soon)) == [lease.pk]
    assert list(_being_measured(this, this + MEASURE_PATIENCE)) == []
    idle(lab, lease, this - 10 * MINUTE, this)
    assert list(_being_measured(this, soon)) == []
    assert bill_running(cluster_id=lab.cluster.pk) == 1
    assert UsageSegment.objects.order_by("period").last().idle == 600


def test_bills_do_not_wait_for_measurements_that_have_ended(lab: World, hour: datetime) -> None:
    lease = lab.lease(start(lab))
    ran(lease, hour)
    this = hour + 2 * HOUR
    idle(lab, lease, this - 10 * MINUTE, this - MEASURE_PATIENCE - timedelta(seconds=1))
    assert list(_being_measured(this, this + timedelta(seconds=1))) == []


def test_a_gang_that_ended_before_its_measurement_was_idle_until_its_end(lab: World, hour: datetime) -> None:
    lease = lab.lease(start(lab))
    ran(lease, hour)
    idle(lab, lease, hour + 10 * MINUTE, hour + 40 * MINUTE)
    silence = (now_from_database() - hour - 30 * MINUTE).total_seconds()
    lab.see(lease, Phase.ENDED, end=End.LOST, ended_age=silence)
    lease.refresh_from_db()
    assert stretches(lease) == [(hour + 10 * MINUTE, lease.held_until)]
    segment = UsageSegment.objects.get()
    assert (
        segment.idle == Decimal((lease.held_until - hour - 10 * MINUTE) / timedelta(microseconds=1)) / 10**6
    )
    assert close_hours(cluster_id=lab.cluster.pk) == 2
    call_command("verify_ledger")


def test_idle_intervals_after_a_leases_end_are_removed(lab: World, hour: datetime) -> None:
    lease = lab.lease(start(lab))
    ran(lease, hour)
    idle(lab, lease, hour + 10 * MINUTE, hour + 40 * MINUTE)
    lease.held_until = hour + 5 * MINUTE
    with transaction.atomic():
        end_with([lease])
    assert stretches(lease) == []


def test_idleness_lasts_over_turns_until_a_use(lab: World, hour: datetime) -> None:
    lease = lab.lease(start(lab))
    ran(lease, hour)
    tell(lab, lease, hour + MINUTE)
    assert GpuUse.objects.get().idle_since is None
    idle(lab, lease, hour + 5 * MINUTE, hour + 10 * MINUTE)
    idle(lab, lease, hour + 20 * MINUTE, hour + 25 * MINUTE)
    use = GpuUse.objects.get()
    assert (use.idle_since, use.idle_for, use.used_at) == (
        hour + 5 * MINUTE, 10 * MINUTE, hour + MINUTE,
    )  # fmt: skip
    tell(lab, lease, hour + 3 * MINUTE)  # a late report of earlier use; the GPUs have been idle since
    assert GpuUse.objects.get().idle_since == hour + 5 * MINUTE
    tell(lab, lease, hour + 26 * MINUTE)
    use = GpuUse.objects.get()
    assert (use.idle_since, use.idle_for, use.used_at) == (None, timedelta(0), hour + 26 * MINUTE)
    idle(lab, lease, hour + 20 * MINUTE, hour + 25 * MINUTE)  # the same report once more
    assert GpuUse.objects.get().idle_since is None


def next_turn(lab: World, lease: Lease, ended: datetime, running_from: datetime) -> Lease:
    """Ends the attempt at `ended`, starts the job's next attempt at `running_from`, and returns the new lease."""
    silence = (now_from_database() - ended).total_seconds()
    Lease.objects.filter(pk=lease.pk).update(state=Lease.State.STOPPING, stop_asked_at=ended)
    lab.see(lease, Phase.ENDED, end=End.STOPPED, ended_age=silence)
    lab.fill()
    lab.carry_out()
    begun = lab.lease(lease.job)
    assert (begun.epoch, begun.state) == (lease.epoch + 1, Lease.State.RUNNING)
    ran(begun, running_from)
    return begun


def test_the_grace_counts_only_time_with_gpus_after_the_warning(lab: World) -> None:
    """Only the time in which the job holds GPUs after the warning uses up the grace period.

    The job is preempted a minute after the warning, waits two hours, and then loads a checkpoint for 30 seconds.
    """
    set_idle_rule(actor=None, action="stop", after_minutes=30, grace_minutes=30, snooze_hours=0)
    now = now_from_database()
    first = lab.lease(start(lab))
    job, preempted = first.job_id, now - 3 * HOUR
    ran(first, preempted - HOUR)
    idle(lab, first, preempted - HOUR, preempted)
    GpuUse.objects.update(warned_at=preempted - MINUTE, first_told_at=preempted - MINUTE)
    second = next_turn(lab, first, preempted, now - HOUR)
    at = now - HOUR + MINUTE / 2
    idle(lab, second, now - HOUR, at)
    use = GpuUse.objects.get()
    assert (use.idle_for, use.idle_warned) == (HOUR + MINUTE / 2, MINUTE * 3 / 2)
    GpuUse.objects.update(measured_until=now)  # as if GPU use were measured until now
    assert step_idle(job_id=job) is Step.NOTHING
    GpuUse.objects.update(measured_until=at)
    silent = now - 2 * MINUTE - HOUR / 2  # between `at` and this moment nothing was measured
    idle(lab, second, silent, now)
    assert GpuUse.objects.get().idle_warned == HOUR / 2 + MINUTE * 7 / 2
    assert step_idle(job_id=job) is Step.STOP


def test_measurements_of_the_previous_attempt_warn_or_stop_no_job(lab: World) -> None:
    set_idle_rule(actor=None, action="stop", after_minutes=30, grace_minutes=10, snooze_hours=0)
    now = now_from_database()
    first = lab.lease(start(lab))
    preempted, resumed = now - 2 * MINUTE, now - MINUTE
    ran(first, now - HOUR)
    idle(lab, first, now - HOUR, preempted)
    second = next_turn(lab, first, preempted, resumed)
    assert step_idle(job_id=first.job_id) is Step.NOTHING
    GpuUse.objects.update(
        warned_at=now - 20 * MINUTE, first_told_at=now - 20 * MINUTE, idle_warned=18 * MINUTE
    )
    assert idle_to_step(now_from_database()) == []
    assert step_idle(job_id=first.job_id) is Step.NOTHING
    idle(lab, second, resumed, now)
    assert GpuUse.objects.get().idle_warned == 19 * MINUTE
    assert step_idle(job_id=first.job_id) is Step.STOP


def test_a_warning_restarts_the_grace_without_late_reports_of_earlier_time(
    lab: World,
) -> None:
    set_idle_rule(actor=None, action="stop", after_minutes=30, grace_minutes=10, snooze_hours=0)
    now = now_from_database()
    lease = lab.lease(start(lab))
    ran(lease, now - HOUR)
    idle(lab, lease, now - HOUR, now - MINUTE)
    # a warning from before the last use, which no longer counts
    GpuUse.objects.update(warned_at=now - 2 * HOUR, idle_warned=HOUR)
    assert step_idle(job_id=lease.job_id) is Step.WARN
    assert GpuUse.objects.get().idle_warned == timedelta(0)
    idle(lab, lease, now - MINUTE, now)
    assert GpuUse.objects.get().idle_warned == timedelta(0)
    assert step_idle(job_id=lease.job_id) is Step.NOTHING


def test_many_gangs_are_recorded_with_few_queries(lab: World, hour: datetime) -> None:
    """Reports on many gangs are recorded with few queries. One batch may repeat a report or contain only parts of
    it."""
    leases = [lab.lease(start(lab)) for _ in range(6)]
    for lease in leases:
        ran(lease, hour)

    def note(some: Sequence[Lease], minute: int) -> int:
        at = hour + minute * MINUTE
        # (age of the report, idle time until then), in seconds
        pieces = [(0, 60), (0, 60), (120, 60), (60, 60), (30, 45)]
        uses = [
            Use(token=one.token, unused_for=lasted, percent=0.0, by_gpus=True, age=ago)
            for one in some
            for ago, lasted in pieces
        ]
        with CaptureQueriesContext(connection) as asked:
            note_gpu_use(cluster_id=lab.cluster.pk, uses=uses, seen_at=at)
        return len(asked)

    few = note(leases[:1], 10)
    assert note(leases[1:], 10) == few
    assert note(leases, 20) == note(leases[:2], 30)
    for lease in leases[:2]:
        assert stretches(lease) == [
            (hour + (minute - 3) * MINUTE, hour + minute * MINUTE) for minute in (10, 20, 30)
        ]
    # Late reports of earlier idle time do not add to the current idle time.
    assert {use.idle_for for use in GpuUse.objects.all()} == {7 * MINUTE, 4 * MINUTE}


def test_a_gang_may_be_idle_for_days(lab: World, hour: datetime) -> None:
    lease = lab.lease(start(lab))
    ran(lease, hour - 50 * HOUR)
    for until in (hour, hour + MINUTE):
        idle(lab, lease, hour - 50 * HOUR, until)
    assert GpuUse.objects.get().idle_for == 50 * HOUR + MINUTE


def test_a_postponement_during_a_measurement_is_kept(lab: World, hour: datetime, monkeypatch) -> None:
    """A measurement must not overwrite the postponement that the job's owner has just saved."""
    job = start(lab)
    lease = lab.lease(job)
    ran(lease, hour)
    set_idle_rule(actor=None, action="stop", after_minutes=1, grace_minutes=1, snooze_hours=9)
    idle(lab, lease, hour, hour + 5 * MINUTE)
    until = now_from_database() + HOUR
    save = gpu_use._MergedStretches.save

    def put_off_meanwhile(book: gpu_use._MergedStretches) -> None:
        save(book)
        put_off = lambda: snooze_idle(actor=lab.people.bob, job=job, until=until, reason="waits")  # noqa: E731
        assert at_once(put_off) == [None]

    with monkeypatch.context() as patched:
        patched.setattr(gpu_use._MergedStretches, "save", put_off_meanwhile)
        idle(lab, lease, hour, hour + 6 * MINUTE)
    use = GpuUse.objects.get()
    assert (use.snoozed_until, use.idle_for) == (until, 6 * MINUTE)


SAMPLES = st.lists(
    st.tuples(st.integers(0, 110), st.integers(0, 30), st.booleans()), min_size=1, max_size=12
)  # (minute of the report, idle minutes until then, whether the first hour is billed afterwards)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(samples=SAMPLES, running=st.integers(0, 70), held=st.integers(71, 119))
def test_idle_busy_and_assembling_time_sum_to_the_held_time(
    lab: World, hour: datetime, samples: Sequence[tuple[int, int, bool]], running: int, held: int
) -> None:
    """The idle intervals of a lease are disjoint. The billed idle, busy and assembling GPU-seconds add up to the time
    for which the lease held GPUs.

    Reports come late, repeated, in any order and with gaps, before and after bills.
    """
    lease = lab.lease(start(lab, gpus=2))
    ran(lease, hour, running_from=hour + running * MINUTE, until=hour + held * MINUTE)
    for at, unused, is_billed in samples:
        tell(lab, lease, hour + at * MINUTE, unused_for=60.0 * unused)
        if is_billed:
            bill_until(lease, hour + HOUR)
    silence = (now_from_database() - hour - held * MINUTE).total_seconds()
    lab.see(lease, Phase.ENDED, end=End.SUCCEEDED, exit_code=0, ended_age=silence)
    lease.refresh_from_db()
    kept = stretches(lease)
    assert all(before[1] < after[0] for before, after in pairwise(kept))
    assert all(lease.running_from <= since < until <= lease.held_until for since, until in kept)
    of_lease = UsageSegment.objects.filter(lease_id=lease.pk)
    sums = of_lease.aggregate(Sum("gpu_seconds"), Sum("idle"), Sum("assembling"))
    assert sums["idle__sum"] == 2 * sum((_seconds(*one) for one in kept), Decimal(0))
    assert sums["assembling__sum"] == 2 * _seconds(lease.held_from, lease.running_from)
    assert sums["gpu_seconds__sum"] == 2 * _seconds(lease.held_from, lease.held_until)
    lease.held_gpus.all().delete()  # frees the GPUs for hypothesis' next example


def bill_until(lease: Lease, moment: datetime) -> None:
    with transaction.atomic():
        again = Lease.objects.select_related("job__owner", "job__tenant", "generation").get(pk=lease.pk)
        bill([again], until=moment)
        again.save(update_fields=["billed_until"])


def _seconds(begins: datetime, ends: datetime) -> Decimal:
    return Decimal((ends - begins) // timedelta(microseconds=1)).scaleb(-6)


def test_the_books_close_over_random_tellings(lab: World, books_at: Callable[[datetime], None]) -> None:
    """Hours in which several gangs ran and many measurements overlapped can be closed. The booked sums equal the bills.

    The gangs use GPUs of two generations, and one gang has ended.
    """
    first = start_of_hour(now_from_database()) - 2 * HOUR
    books_at(first + 2 * HOUR + LATE)
    there_since(first - HOUR)
    with transaction.atomic():
        open_book(book=lab.cluster.pk, since=first)
    leases = [lab.lease(start(lab, gpus=gpus)) for gpus in (1, 2, 4)]
    for number, lease in enumerate(leases):
        ran(lease, first + number * 7 * MINUTE, running_from=first + (5 + number * 7) * MINUTE)
        for minute in range(10 + number, 118, 9):
            idle(lab, lease, first + minute * MINUTE, first + (minute + 3 + number) * MINUTE)
        idle(lab, lease, first + 50 * MINUTE, first + 125 * MINUTE)
    silence = (now_from_database() - first - 100 * MINUTE).total_seconds()
    lab.see(leases[1], Phase.ENDED, end=End.SUCCEEDED, exit_code=0, ended_age=silence)
    bill_running(cluster_id=lab.cluster.pk)
    assert close_hours(cluster_id=lab.cluster.pk) == 2
    booked = CapacitySegment.objects.aggregate(Sum("idle"), Sum("busy"), Sum("assembling"))
    billed = UsageSegment.objects.aggregate(Sum("idle"), Sum("gpu_seconds"))
    assert booked["idle__sum"] == billed["idle__sum"] > 0
    assert sum(booked.values()) == billed["gpu_seconds__sum"]
    call_command("verify_ledger")
