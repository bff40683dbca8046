"""The waiting times, expansion factors and wasted GPU time in the reports, which the database computes, equal those
that Python counts job by job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting.access.visibility import tenants_seen
from accounting.actions import take_back_usage
from accounting.closing.archive import archive_month
from accounting.closing.hours import close_empty_days, open_book
from accounting.core.calendar import DAY, HOUR
from accounting.ledger import Payer, Usage, book_usage, correct_usage
from accounting.ledger.hash_chain import seal_book
from accounting.models import UsageSegment
from accounting.usage.reader import JOB, GroupedUsage
from scheduling.models import Job, Lease
from scheduling.reports import job_waste
from scheduling.reports.job_waits import SIZES, expansions, waits
from scheduling.reports.job_waste import CAUSES, Waste, _borne, waste
from tests.accounting.booking import close_hours, settle_hours
from tests.query_counts import queries_of
from tests.scheduling.bygone import had, waited
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db
MIDNIGHT = datetime(2026, 5, 4, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DAYS = timedelta(days=3)


@pytest.fixture
def lab(db: None) -> World:
    return world(v100=4, a100=4)


@contextmanager
def undone() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def attempt(
    job: Job, begins: datetime, ends: datetime, generation: Any, *, quarters_idle: int = 0, **fields: Any
) -> None:
    """Creates an ended attempt and its usage in the ledger.

    Its GPUs are idle in the last `quarters_idle` quarters of the attempt.
    """
    job.epoch += 1
    had(job, begins, ends, generation)
    job.save()
    lease = Lease.objects.create(
        job=job, cluster=job.cluster, epoch=job.epoch, generation=generation, gpus=job.gpus, held_from=begins,
        held_until=ends, decided_at=begins, state=Lease.State.CLOSED, end_reason="stopped",
        **{"running_from": begins} | fields,
    )  # fmt: skip
    idle = (ends - begins) * quarters_idle / 4
    usage = Usage(
        book=job.cluster_id, lease_id=lease.pk, job_id=job.pk, job_name=job.name, tenant=job.tenant, user=job.owner,
        generation=generation, gpus=job.gpus, begins=begins, ends=ends, running_from=begins,
        unused=[(ends - idle, ends)] if idle else [],
    )  # fmt: skip
    with transaction.atomic():
        book_usage([usage])


def over(job: Job, state: str, at: datetime) -> Job:
    job.state, job.ended_at = state, at
    job.save()
    return job


minutes = st.integers(0, 700)
attempts = st.tuples(
    minutes, st.integers(1, 300), st.none() | st.integers(0, 299), st.integers(0, 4), st.booleans()
)
histories = st.lists(
    st.tuples(
        st.sampled_from(["bob", "alice", "charlie"]),
        st.sampled_from(["training", "training", "session"]),
        st.integers(1, 9),
        minutes,
        st.lists(attempts, max_size=3),
        st.sampled_from(["running", "succeeded", "failed", "cancelled"]),
    ),
    max_size=6,
)
periods = st.tuples(st.integers(0, 60), st.integers(1, 72)).map(
    lambda one: (MIDNIGHT + one[0] * HOUR, MIDNIGHT + (one[0] + one[1]) * HOUR)
)


def lived(lab: World, history: Any) -> list[Job]:
    people, jobs = lab.people, []
    for who, kind, gpus, came, its_turns, state in history:
        tenant = people.bio if who == "charlie" else people.astro
        at = MIDNIGHT + came * MINUTE
        job = waited(lab, getattr(people, who), tenant, at, gpus=gpus, kind=kind)
        for gap, length, lost, idle, on_fast in its_turns:
            at += gap * MINUTE
            ends = at + length * MINUTE
            lost_from = None if lost is None or lost >= length else at + lost * MINUTE
            generation = people.a100 if on_fast else people.v100
            attempt(job, at, ends, generation, quarters_idle=idle, lost_from=lost_from)
            at = ends
        jobs.append(over(job, state, at) if state != "running" else job)
    return jobs


def percentile(values: list[float], part: float) -> float:
    """Returns the percentile `part` (from 0 to 1) of the values, interpolated between the two nearest values."""
    values = sorted(values)
    place = part * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def size_of(job: Job) -> str:
    return SIZES[sum(job.gpus >= bound for bound in (2, 5, 9, 17))]


def clipped(begins: datetime, ends: datetime, period: tuple[datetime, datetime]) -> Fraction:
    return max(
        Fraction(0),
        Fraction((min(ends, period[1]) - max(begins, period[0])) // timedelta(microseconds=1), 10**6),
    )


def wasted_by_hand(job: Job, period: tuple[datetime, datetime]) -> dict[str, Fraction]:
    """Returns the GPU-seconds that the job held in the period, under the key "held", and those that it wasted, under
    the name of each cause.

    Python counts them from the job's leases and usage segments.
    """
    found = dict.fromkeys(("held", *CAUSES), Fraction(0))
    for generation in set(job.leases.values_list("generation", flat=True)):
        leases = list(job.leases.filter(generation=generation))
        held = sum((job.gpus * clipped(one.held_from, one.held_until, period) for one in leases), Fraction(0))
        lost = sum(
            (job.gpus * clipped(one.lost_from, one.held_until, period) for one in leases if one.lost_from),
            Fraction(0),
        )
        idle = Fraction(0)
        for segment in UsageSegment.objects.filter(lease_id__in=[one.pk for one in leases]):
            whole = (segment.period.upper - segment.period.lower) / timedelta(seconds=1)
            part = clipped(segment.period.lower, segment.period.upper, period) / Fraction(whole)
            idle += Fraction(segment.idle) * part
        found["held"] += held
        if job.kind == "training" and job.state in ("failed", "cancelled"):
            found[job.state] += held
        else:
            found["run_again"] += lost
            found["idle"] += min(idle, held - lost)
    return found


def figures(one: Any) -> dict[str, Fraction]:
    return {name: Fraction(getattr(one, name)) for name in ("held", *CAUSES)}


def summed(rows: list[dict[str, Fraction]]) -> dict[str, Fraction]:
    return {name: sum((row[name] for row in rows), Fraction(0)) for name in ("held", *CAUSES)}


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(histories, periods, st.booleans(), st.booleans())
def test_waste_equals_a_count_by_hand(
    lab: World, history: Any, period: Any, closed: bool, many: bool
) -> None:
    with undone(), pytest.MonkeyPatch.context() as patch:
        if many:  # makes the report find jobs by their end, not by id
            patch.setattr(job_waste, "FEW", 0)
        jobs = lived(lab, history)
        if closed:  # makes reports read rollups by day
            close_hours(lab.people, MIDNIGHT, MIDNIGHT + 26 * HOUR, book=lab.cluster.pk)
        hand = {job.pk: wasted_by_hand(job, period) for job in jobs}
        told = waste(None, *period, jobs=100)
        assert figures(told.total) == summed(list(hand.values()))
        assert told.total.wasted <= told.total.held
        in_vain = {pk for pk, one in hand.items() if sum(one[cause] for cause in CAUSES)}
        assert {one.job_id: figures(one) for one in told.jobs} == {pk: hand[pk] for pk in in_vain}
        for rows in (told.tenants, told.users, told.generations):
            assert summed([figures(one) for one in rows]) == figures(told.total)
        for reader in (lab.people.alice, lab.people.charlie):
            own = [hand[job.pk] for job in jobs if job.tenant in type(job.tenant).objects.visible_to(reader)]
            assert figures(waste(reader, *period).total) == summed(own)
        assert waste(None, *period, tenant=lab.people.uni, jobs=100) == told


def test_a_wasteful_job_is_listed_with_everything_it_held(lab: World) -> None:
    job = waited(lab, lab.people.bob, lab.people.astro, MIDNIGHT, gpus=1, kind="training")
    attempt(job, MIDNIGHT, MIDNIGHT + HOUR, lab.people.v100, quarters_idle=4)
    attempt(job, MIDNIGHT + HOUR, MIDNIGHT + 2 * HOUR, lab.people.a100)
    (told,) = waste(None, MIDNIGHT, MIDNIGHT + DAYS).jobs
    assert (told.held, told.idle) == (2 * 3600, 3600)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(histories, periods)
def test_waits_and_expansion_factors_equal_a_count_by_hand(lab: World, history: Any, period: Any) -> None:
    with undone():
        jobs = lived(lab, history)
        for reader in (None, lab.people.bob, lab.people.charlie):
            own = [job for job in jobs if reader is None or job.tenant_id in tenants_of(lab, reader)]
            assert_waits(own, waits(tenants_seen(reader), *period), period)
            assert_expansions(own, expansions(tenants_seen(reader), *period), period)


def tenants_of(lab: World, reader: Any) -> set[int]:
    return {lab.people.bio.pk} if reader == lab.people.charlie else {lab.people.astro.pk}


def groups(jobs: list[Job]) -> dict[tuple[str | None, str | None], list[Job]]:
    found: dict[tuple[str | None, str | None], list[Job]] = {}
    for job in jobs:
        first = job.leases.select_related("generation").order_by("epoch")[0].generation.name
        for key in ((None, None), (None, size_of(job)), (first, None), (first, size_of(job))):
            found.setdefault(key, []).append(job)
    return found


def assert_waits(jobs: list[Job], told: list[Any], period: tuple[datetime, datetime]) -> None:
    begun = [job for job in jobs if job.first_started_at and period[0] <= job.first_started_at < period[1]]
    by_hand = groups(begun)
    assert [(one.generation, one.size) for one in told] == sorted(
        by_hand,
        key=lambda key: (
            key[0] is not None,
            None not in key,
            key[0] or "",
            SIZES.index(key[1]) if key[1] else -1,
        ),
    )
    for one in told:
        times = [
            (job.first_started_at - job.created_at) / timedelta(seconds=1)
            for job in by_hand[one.generation, one.size]
        ]
        assert one.jobs == len(times)
        expected = [percentile(times, part) for part in (0.5, 0.9, 0.95)]
        assert [one.p50, one.p90, one.p95] == pytest.approx(expected)
        assert (one.mean, one.most) == pytest.approx((sum(times) / len(times), max(times)))


def assert_expansions(jobs: list[Job], told: list[Any], period: tuple[datetime, datetime]) -> None:
    ended = [
        job for job in jobs
        if job.kind == "training" and job.ended_at and period[0] <= job.ended_at < period[1] and job.epoch
    ]  # fmt: skip
    by_hand = groups(ended)
    assert {(one.generation, one.size) for one in told} == set(by_hand)
    for one in told:
        weights, factors = [], []
        for job in by_hand[one.generation, one.size]:
            ran = sum((lease.held_until - lease.held_from).total_seconds() for lease in job.leases.all())
            factors.append((job.ended_at - job.created_at).total_seconds() / ran)
            weights.append(job.gpus * ran)
        assert one.jobs == len(factors)
        weighted = sum(f * w for f, w in zip(factors, weights, strict=True)) / sum(weights)
        assert one.weighted == pytest.approx(weighted)
        expected = [percentile(factors, part) for part in (0.5, 0.9, 0.95)]
        assert [one.p50, one.p90, one.p95] == pytest.approx(expected)


def test_nothing_was_wasted_where_nothing_was_held(lab: World) -> None:
    assert waste(None, MIDNIGHT, MIDNIGHT + DAYS).total.held == 0
    assert waits(None, MIDNIGHT, MIDNIGHT + DAYS) == []
    assert waste(lab.people.charlie, MIDNIGHT, MIDNIGHT + DAYS, tenant=lab.people.astro).total.held == 0


@pytest.mark.django_db(transaction=True)
def test_corrected_time_is_not_waste_of_a_team_that_does_not_pay(transactional_db: None) -> None:
    lab = world()
    people = lab.people
    job = waited(lab, people.bob, people.astro, MIDNIGHT)
    attempt(job, MIDNIGHT, MIDNIGHT + HOUR, people.v100)
    over(job, "failed", MIDNIGHT + HOUR)
    assert waste(None, MIDNIGHT, MIDNIGHT + DAYS).total.failed == 4 * 3600
    segments = list(UsageSegment.objects.select_related("generation"))
    take_back_usage(actor=people.ada, segments=segments, reason="a node with a fault")
    told = waste(people.bob, MIDNIGHT, MIDNIGHT + DAYS)
    assert (told.total.held, told.total.failed, told.total.wasted) == (0, 0, 0)
    assert [one.failed for one in (*told.users, *told.tenants, *told.jobs)] == [0] * len(
        (*told.users, *told.tenants, *told.jobs)
    )


@pytest.mark.django_db(transaction=True)
def test_lost_work_is_borne_once_in_every_report(transactional_db: None) -> None:
    """Every report counts lost work once, whether it covers all teams or one team.

    Here the second of the job's two hours is lost, and a correction has charged it to another team.
    """
    lab = world()
    people = lab.people
    job = waited(lab, people.bob, people.astro, MIDNIGHT)
    with transaction.atomic():
        attempt(job, MIDNIGHT, MIDNIGHT + 2 * HOUR, people.v100, lost_from=MIDNIGHT + HOUR)
        second = UsageSegment.objects.filter(period__startswith=MIDNIGHT + HOUR).select_related("generation")
        correct_usage(
            actor=None, segments=list(second), reason="a test", payer=Payer(people.bio, people.charlie)
        )
    period = (MIDNIGHT, MIDNIGHT + DAYS)
    whole = waste(None, *period)
    assert (whole.total.held, whole.total.run_again) == (2 * 4 * 3600, 4 * 3600)
    by_team = {one.tenant: one.run_again for one in whole.tenants}
    assert by_team == {
        viewer_team: waste(viewer, *period).total.run_again
        for viewer_team, viewer in (("Astro", people.bob), ("Bio", people.charlie))
    }


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("archives")
def test_waste_of_archived_days_cut_by_the_period_is_left_out(transactional_db: None, tmp_path: Path) -> None:
    """If the period of a waste report contains only part of an archived day, the report leaves this day out.

    The time of failed jobs on an archived day is known only for the whole day.
    """
    lab = world()
    people, book = lab.people, lab.cluster.pk
    month = datetime(2026, 5, 1, tzinfo=UTC)
    after = datetime(2026, 6, 1, tzinfo=UTC)
    with transaction.atomic():
        open_book(book=book, since=month)
        close_empty_days(book=book, until=MIDNIGHT)
    job = waited(lab, people.bob, people.astro, MIDNIGHT)
    for day in range(2):
        attempt(job, MIDNIGHT + day * DAY, MIDNIGHT + day * DAY + 2 * HOUR, people.v100, quarters_idle=1)
    over(job, "failed", MIDNIGHT + DAY + 2 * HOUR)
    close_hours(people, MIDNIGHT, MIDNIGHT + 2 * DAY, book=book)
    with transaction.atomic():
        close_empty_days(book=book, until=after)
    settle_hours(book=book)
    seal_book(book)
    period = (MIDNIGHT + HOUR, MIDNIGHT + 2 * DAY)
    assert waste(None, *period).total.failed == 4 * 3 * 3600
    archive_month(actor=None, month=month.date(), folder=tmp_path)
    told = waste(None, *period, jobs=5)
    assert (told.total.held, told.total.failed, told.total.idle) == (4 * 2 * 3600, 4 * 2 * 3600, 0)
    assert [one.failed for one in told.jobs] == [4 * 2 * 3600]
    assert waste(None, MIDNIGHT + HOUR, MIDNIGHT + 3 * HOUR).total.held == 0


@pytest.mark.django_db(transaction=True)
def test_corrections_take_waste_with_them(transactional_db: None) -> None:
    lab = world()
    people = lab.people
    job = waited(lab, people.bob, people.astro, MIDNIGHT)
    with transaction.atomic():
        attempt(job, MIDNIGHT, MIDNIGHT + HOUR, people.v100, lost_from=MIDNIGHT + 30 * MINUTE)
        attempt(job, MIDNIGHT + HOUR, MIDNIGHT + 2 * HOUR, people.v100)
    first = UsageSegment.objects.order_by("period").select_related("generation")[:1]
    take_back_usage(actor=people.ada, segments=list(first), reason="a node with a fault")
    told: Waste = waste(people.bob, MIDNIGHT, MIDNIGHT + DAYS)
    assert (told.total.held, told.total.run_again) == (4 * 3600, 2 * 3600)
    assert told.total.part == Decimal("0.5")


few = st.integers(1, 3)


@given(
    st.dictionaries(st.tuples(few, few, few, few), st.integers(1, 50)),
    st.dictionaries(st.tuples(few, few), st.integers(0, 120)),
)
def test_lost_work_is_borne_by_the_first_payers_up_to_what_they_held(
    held: dict[tuple[int, ...], int], lost: dict[tuple[int, int], int]
) -> None:
    rows = sorted(held)
    keys = {name: np.array([row[at] for row in rows], np.int64) for at, name in enumerate(JOB)}
    amounts = np.array([held[row] for row in rows], np.int64)
    told = [*np.array([*lost], np.int64).reshape(-1, 2).T, np.array([*lost.values()], np.int64)]
    borne = _borne(GroupedUsage(keys, amounts, np.zeros_like(amounts)), told)
    left = dict(lost)
    for row, seconds in zip(rows, borne.tolist(), strict=True):
        assert seconds == min(held[row], left.get(row[:2], 0))
        left[row[:2]] = left.get(row[:2], 0) - seconds


def test_figures_take_few_queries(lab: World) -> None:
    lived(lab, [("bob", "training", 2, 0, [(5, 10, 3, 1, True), (5, 10, None, 1, True)], "succeeded")])
    period = (MIDNIGHT, MIDNIGHT + DAYS)
    with queries_of("the waits of a period"):
        waits(None, *period)
    with queries_of("the expansions of a period"):
        expansions(tenants_seen(lab.people.bob), *period)
    with queries_of("the waste of a period"):
        waste(lab.people.bob, *period)
