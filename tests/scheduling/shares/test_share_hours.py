"""Hourly rollups of share intervals give the same sums as the intervals, for any period."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from accounting.core.calendar import HOUR, start_of_hour
from accounting.core.clock import now_from_database
from scheduling.backends.base import End
from scheduling.backends.base import Phase as BackendPhase
from scheduling.core.amounts import MEASURES, Amounts
from scheduling.execution.reconcile import _repeat_orders
from scheduling.models import (
    Cluster,
    FinishTime,
    Job,
    Lease,
    Operation,
    Round,
    ShareBalance,
    ShareBook,
    ShareHour,
    ShareInterval,
)
from scheduling.shares.hour_sums import sum_next_share_hour, sum_share_hours
from scheduling.shares.intervals import ObservedLease, correct_rounds
from scheduling.shares.share_hours import read_sums, write_hours_again
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db(transaction=True)
BEGIN = datetime(2026, 3, 2, 7, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def lab(transactional_db: None) -> World:
    return world(v100=4, a100=4)


def round_at(lab: World, at: datetime) -> Round:
    number = Round.objects.count() + 1
    return Round.objects.create(
        cluster=lab.cluster, number=number, kind="quantum", at=at, ordering="stride", seed=1, gpus_up=8, gpus_given=0,
        jobs_considered=0, started=0, stopped=0, read_ms=0, decide_ms=0,
    )  # fmt: skip


def interval(
    lab: World, begins: datetime, ends: datetime, *, tenant=None, of=None, **amounts: float
) -> ShareInterval:
    people = lab.people
    return ShareInterval.objects.create(
        cluster=lab.cluster, round=round_at(lab, begins), tenant=tenant or people.astro, generation=of or people.a100,
        begins=begins, ends=ends, **dict.fromkeys(MEASURES, 0.0) | amounts,
    )  # fmt: skip


def rounds_until(lab: World, moment: datetime) -> None:
    Cluster.objects.filter(pk=lab.cluster.pk).update(last_round_at=moment)


def test_hours_without_shares_are_rolled_up_in_one_step(lab: World) -> None:
    """A long time without any round is rolled up in one step. A job that ended in this time still counts in the hour of
    its end."""
    interval(lab, BEGIN, BEGIN + HOUR, entitled=1.0)
    back = BEGIN + timedelta(days=150)
    interval(lab, back, back + HOUR, entitled=2.0)
    job = lab.submit(lab.people.bob, lab.people.astro)
    Job.objects.filter(pk=job.pk).update(
        state=Job.State.CANCELLED, created_at=BEGIN, ended_at=BEGIN + 50.5 * HOUR
    )
    rounds_until(lab, back + HOUR)
    assert sum_share_hours(cluster_id=lab.cluster.pk) == 3
    assert {(one.hour, one.entitled) for one in ShareHour.objects.all()} == {(BEGIN, 1.0), (back, 2.0)}
    assert ShareBook.objects.get().until == back + HOUR
    assert FinishTime.objects.get().job == job


def forget(lab: World) -> None:
    ShareHour.objects.all().delete()
    ShareBook.objects.all().delete()
    ShareInterval.objects.all().delete()
    Round.objects.all().delete()


def by_hand(since: datetime, until: datetime) -> dict[tuple[int, int], Amounts]:
    """Returns the amounts from `since` to `until` by (tenant id, generation id), summed from each share interval."""
    found: dict[tuple[int, int], Amounts] = {}
    for one in ShareInterval.objects.filter(begins__lt=until, ends__gt=since):
        part = (min(one.ends, until) - max(one.begins, since)) / (one.ends - one.begins)
        if part == 0:  # an empty interval has no rows
            continue
        amounts = Amounts(*(getattr(one, name) for name in MEASURES)) * part
        key = one.tenant_id, one.generation_id
        found[key] = found.get(key, Amounts()) + amounts
    return found


def same(one: Amounts, other: Amounts) -> bool:
    return all(getattr(one, name) == pytest.approx(getattr(other, name), abs=1e-6) for name in MEASURES)


rows = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 150), st.booleans(), st.booleans(), st.integers(0, 10_000)),
    max_size=12,
)
minutes = st.integers(-30, 500)


@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # no shrinking, which would take minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rows=rows, until=st.integers(0, 480), stretch=st.tuples(minutes, minutes), cut=minutes)
def test_rollups_equal_the_rows_for_any_interval(
    lab: World, rows: list, until: int, stretch: tuple[int, int], cut: int
) -> None:
    forget(lab)
    people = lab.people
    for begin, length, other, fast, amount in rows:
        begins = BEGIN + begin * MINUTE
        interval(
            lab, begins, begins + length * MINUTE + timedelta(microseconds=7),
            tenant=people.bio if other else people.astro, of=people.a100 if fast else people.v100,
            entitled=amount, received=amount / 3, lent=7.5, sold=amount / 7,
        )  # fmt: skip
    since, to = (BEGIN + at * MINUTE for at in sorted(stretch))
    expected = by_hand(since, to)
    before = read_sums([(since, to)])
    rounds_until(lab, BEGIN + until * MINUTE)
    sum_share_hours(cluster_id=lab.cluster.pk)
    after = read_sums([(since, to)])
    for found in (before, after):
        got = {(tenant, kind): one for (_, tenant, kind), one in found.items()}
        assert got.keys() >= expected.keys()
        assert all(same(one, expected.get(key, Amounts())) for key, one in got.items())
    # The amounts of two adjacent intervals add up to the amounts of the whole interval.
    middle = min(max(BEGIN + cut * MINUTE, since), to)
    parts = read_sums([(since, middle), (middle, to)])
    for tenant, kind in expected:
        total = sum((parts.get((n, tenant, kind), Amounts()) for n in (0, 1)), Amounts())
        assert same(total, expected[tenant, kind])


def test_an_hour_is_summed_when_a_round_came_after_it(lab: World) -> None:
    interval(lab, BEGIN + 10 * MINUTE, BEGIN + 70 * MINUTE, entitled=3600)
    assert sum_share_hours(cluster_id=lab.cluster.pk) == 0  # no round has run yet
    rounds_until(lab, BEGIN + 59 * MINUTE)
    assert sum_share_hours(cluster_id=lab.cluster.pk) == 0
    rounds_until(lab, BEGIN + 70 * MINUTE)
    assert sum_share_hours(cluster_id=lab.cluster.pk) == 1
    assert [(one.hour, one.entitled) for one in ShareHour.objects.all()] == [(BEGIN, pytest.approx(3000))]
    assert sum_share_hours(cluster_id=lab.cluster.pk) == 0
    book = ShareBook.objects.get()
    assert (book.since, book.until) == (BEGIN, BEGIN + HOUR)


def test_summing_twice_changes_nothing(lab: World) -> None:
    interval(lab, BEGIN, BEGIN + HOUR, entitled=3600)
    rounds_until(lab, BEGIN + HOUR)
    sum_share_hours(cluster_id=lab.cluster.pk)
    with transaction.atomic():
        write_hours_again(lab.cluster.pk, since=BEGIN - HOUR, until=BEGIN + 9 * HOUR)
    assert [one.entitled for one in ShareHour.objects.all()] == [pytest.approx(3600)]


def test_each_cluster_closes_its_own_hours(lab: World) -> None:
    interval(lab, BEGIN, BEGIN + HOUR, entitled=3600)
    far = World(lab.people, Cluster.objects.create(name="far"))
    interval(far, BEGIN, BEGIN + HOUR, entitled=60)
    rounds_until(lab, BEGIN + HOUR)
    sum_share_hours(cluster_id=lab.cluster.pk)
    stretch = [(BEGIN, BEGIN + HOUR)]
    key = 0, lab.people.astro.pk, lab.people.a100.pk
    sums = [read_sums(stretch, cluster=of)[key].entitled for of in (lab.cluster, far.cluster, None)]
    assert sums == [pytest.approx(3600), pytest.approx(60), pytest.approx(3660)]
    assert read_sums(stretch, tenants=[lab.people.bio.pk]) == {}


def test_a_real_round_writes_the_intervals_that_are_rolled_up(lab: World) -> None:
    lab.submit(lab.people.bob, lab.people.astro, gpus=2)
    lab.fill()
    lab.carry_out()
    lab.pass_time(7300)
    lab.quantum()
    assert sum_share_hours(cluster_id=lab.cluster.pk) >= 1
    received = read_sums([(now_from_database() - 9 * HOUR, now_from_database())])
    assert sum(one.received for one in received.values()) == pytest.approx(
        sum(one.received for one in ShareInterval.objects.all())
    )


def test_a_correction_of_a_rolled_up_hour_corrects_its_rollup(lab: World) -> None:
    job = lab.submit(lab.people.bob, lab.people.astro, gpus=1)
    lab.fill()
    lab.carry_out()
    hour = start_of_hour(now_from_database()) - 3 * HOUR
    lease = lab.lease(job)
    interval(lab, hour, hour + HOUR, of=lease.generation, received=3600)
    rounds_until(lab, hour + 2 * HOUR)
    sum_share_hours(cluster_id=lab.cluster.pk)
    Lease.objects.filter(pk=lease.pk).update(
        held_from=hour, held_until=hour + 15 * MINUTE, state=Lease.State.CLOSED, last_seen_at=hour + 2 * HOUR
    )
    lease.refresh_from_db()
    with transaction.atomic():
        correct_rounds(Cluster.objects.get(pk=lab.cluster.pk), [ObservedLease(lease, hour + 2 * HOUR)])
    assert ShareInterval.objects.get(begins=hour).received == pytest.approx(900)
    assert ShareHour.objects.get(hour=hour).received == pytest.approx(900)


@pytest.fixture
def silent(lab: World) -> tuple[datetime, Lease]:
    """Returns (start of an hour, lease of one GPU). The lease began with the hour, and its gang was last seen almost
    ten minutes later.

    Rollups exist for this hour and the next one. They contain ten minutes of the lease's GPU time.
    """
    lab.submit(lab.people.bob, lab.people.astro, gpus=1)
    lab.fill()
    lab.carry_out()
    hour = start_of_hour(now_from_database()) - 4 * HOUR
    lease = Lease.objects.get()
    for begins, ends, received in ((0, 10, 600), (10, 60, 0), (60, 120, 0)):
        interval(lab, hour + begins * MINUTE, hour + ends * MINUTE, of=lease.generation, received=received)
    rounds_until(lab, hour + 2 * HOUR)
    assert sum_share_hours(cluster_id=lab.cluster.pk) == 2
    Lease.objects.filter(pk=lease.pk).update(
        held_from=hour, running_from=hour, last_seen_at=hour + 10 * MINUTE - MINUTE / 6
    )
    ShareBalance.objects.update(owed=0.0, share=1.0)
    return hour, lease


def received(of: type[ShareInterval] | type[ShareHour], by: str) -> list[float]:
    return [round(one, 3) for one in of.objects.order_by(by).values_list("received", flat=True)]


def test_gpus_held_unobserved_count_once_they_are_seen_again(
    lab: World, silent: tuple[datetime, Lease]
) -> None:
    hour, lease = silent
    for _ in range(2):
        lab.see(lease, BackendPhase.RUNNING, running_age=(now_from_database() - hour).total_seconds())
        assert received(ShareInterval, "begins") == [600, 3000, 3600]
        assert received(ShareHour, "hour") == [3600, 3600]
    balance = ShareBalance.objects.get(tenant=lab.people.astro, generation=lease.generation)
    assert balance.owed == pytest.approx(-6600)


def test_a_lease_that_ended_unobserved_counts_until_its_end(
    lab: World, silent: tuple[datetime, Lease]
) -> None:
    hour, lease = silent
    age = (now_from_database() - hour - 40 * MINUTE).total_seconds()
    lab.see(lease, BackendPhase.ENDED, end=End.SUCCEEDED, exit_code=0, ended_age=age)
    assert received(ShareInterval, "begins") == [600, pytest.approx(1800, abs=5), 0]
    assert received(ShareHour, "hour") == [pytest.approx(2400, abs=5), 0]


def test_what_was_missed_and_yet_there_while_all_was_heard_counts(
    lab: World, silent: tuple[datetime, Lease]
) -> None:
    hour, _ = silent
    Operation.objects.update(attempts=1, done_at=now_from_database())
    Cluster.objects.update(last_observed_at=hour + 70 * MINUTE)
    lab.cluster.refresh_from_db()
    _repeat_orders(lab.cluster, {}, now_from_database())
    assert received(ShareInterval, "begins") == [600, 3000, 600]
    assert received(ShareHour, "hour") == [3600, 600]


def test_two_workers_sum_an_hour_once(lab: World, in_two_threads) -> None:
    interval(lab, BEGIN, BEGIN + HOUR, entitled=3600)
    rounds_until(lab, BEGIN + HOUR)
    done = in_two_threads(lambda: sum_next_share_hour(cluster_id=lab.cluster.pk))
    assert sorted(done) == [False, True]
    assert [one.entitled for one in ShareHour.objects.all()] == [pytest.approx(3600)]


@pytest.fixture
def in_two_threads():
    """Returns a function that calls its argument in two threads at the same time and returns a list of both results."""

    def run(act):
        both = Barrier(2)

        def one() -> object:
            try:
                both.wait()
                return act()
            finally:
                connection.close()

        with ThreadPoolExecutor(2) as pool:
            return [future.result() for future in [pool.submit(one) for _ in range(2)]]

    return run


def ended(
    lab: World, *, since: datetime, until: datetime, held: timedelta, gpus: int = 4, **fields: object
) -> Job:
    """Creates a job of Bob's that was submitted at `since` and held A100s for the time `held` until its end at
    `until`."""
    job = lab.submit(lab.people.bob, lab.people.astro, gpus=gpus)
    Lease.objects.create(
        job=job, cluster=lab.cluster, epoch=1, generation=lab.people.a100, gpus=gpus, state=Lease.State.CLOSED,
        held_from=until - held, held_until=until,
    )  # fmt: skip
    state = fields.pop("state", Job.State.SUCCEEDED)
    Job.objects.filter(pk=job.pk).update(state=state, created_at=since, ended_at=until, **fields)
    return job


def recent(lab: World) -> datetime:
    """Returns the start of an hour nine hours ago. It is recent enough that reports still count jobs that ended
    then."""
    return start_of_hour(now_from_database()) - 9 * HOUR


def test_a_job_that_waits_as_long_as_it_runs_took_twice_the_time_alone(lab: World) -> None:
    begin = recent(lab)
    # Nine intervals of 40 minutes with an entitlement of 4 GPUs each, which do not begin at full hours.
    for k in range(9):
        begins = begin + k * 40 * MINUTE
        interval(lab, begins, begins + 40 * MINUTE, entitled=4 * 2400)
    since, until = begin + 25 * MINUTE, begin + 265 * MINUTE
    job = ended(lab, since=since, until=until, held=timedelta(hours=2))
    failed = ended(lab, since=since, until=until, held=HOUR, state=Job.State.FAILED)
    Job.objects.filter(pk=failed.pk).update(created_at=until - MINUTE / 60)
    rounds_until(lab, begin + 6 * HOUR)
    sum_share_hours(cluster_id=lab.cluster.pk)
    times = {one.job_id: one for one in FinishTime.objects.all()}
    assert times[job.pk].seconds == pytest.approx(4 * 3600)
    assert times[job.pk].rho == pytest.approx(2.0, rel=1e-3)
    assert times[failed.pk].rho is None
    assert sum_share_hours(cluster_id=lab.cluster.pk) == 0


def test_two_jobs_at_once_have_half_the_part_each(lab: World) -> None:
    begin = recent(lab)
    interval(lab, begin, begin + 3 * HOUR, entitled=4 * 3 * 3600)
    jobs = [
        ended(lab, since=begin, until=begin + 2 * HOUR, held=timedelta(hours=2), gpus=2) for _ in range(2)
    ]
    rounds_until(lab, begin + 3 * HOUR)
    sum_share_hours(cluster_id=lab.cluster.pk)
    assert [FinishTime.objects.get(job=job).rho for job in jobs] == [pytest.approx(1.0)] * 2


def test_an_end_that_becomes_known_late_is_written_with_the_next_hour(lab: World) -> None:
    begin = recent(lab)
    interval(lab, begin, begin + 3 * HOUR, entitled=4 * 3 * 3600)
    rounds_until(lab, begin + HOUR)
    sum_share_hours(cluster_id=lab.cluster.pk)
    job = ended(lab, since=begin, until=begin + 30 * MINUTE, held=30 * MINUTE)
    rounds_until(lab, begin + 2 * HOUR)
    sum_share_hours(cluster_id=lab.cluster.pk)
    assert FinishTime.objects.get(job=job).rho == pytest.approx(1.0)
