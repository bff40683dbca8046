"""Requests to services are counted once, and their percentiles are those of all requests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting.core.clock import now_from_database
from scheduling.backends.summaries import WINDOW
from scheduling.metrics.rolling import LEVELS, begin_of, number_at
from scheduling.models import Service, TrafficSample, TrafficStream
from scheduling.retention import remove_metrics
from scheduling.services.actions import create_service, remove_service
from scheduling.services.traffic import LAST_BUCKET, Outcome, Traffic, bounds_of, bucket_of, outcome_of
from scheduling.services.traffic_samples import (
    Report,
    note_traffic,
    read_traffic,
    roll_up_traffic,
    traffic_to_roll,
)
from scheduling.spec.job_spec import JobSpec
from scheduling.tasks import roll_up_metrics
from tests.scheduling.world import World, world

seconds = st.floats(0.0, 4000.0)
requests = st.lists(st.tuples(st.sampled_from(list(Outcome)), st.none() | seconds), max_size=60)


def traffic_of(some: Sequence[tuple[Outcome, float | None]]) -> Traffic:
    found = Traffic()
    for outcome, time in some:
        found.note(outcome, time)
    return found


def figures(traffic: Traffic) -> tuple[object, ...]:
    return traffic.outcomes, traffic.buckets, round(traffic.seconds, 3)


@given(st.lists(requests, max_size=6), st.randoms())
def test_the_sum_of_histograms_is_the_histogram_of_all(parts: list, random) -> None:
    whole = traffic_of([one for part in parts for one in part])
    random.shuffle(parts)
    merged = Traffic()
    for part in parts:
        merged.add(Traffic.restored(traffic_of(part).stored))
    assert figures(merged) == figures(whole)
    assert [merged.percentile(part) for part in (0.5, 0.95)] == [
        whole.percentile(part) for part in (0.5, 0.95)
    ]


@given(st.lists(st.floats(0.002, 3000.0), min_size=1), st.floats(0.01, 1.0))
def test_a_percentile_lies_in_the_bucket_of_the_exact_one(times: list[float], part: float) -> None:
    found = traffic_of([(Outcome.OK, time) for time in times]).percentile(part)
    rank = part * len(times)
    exact = next(time for number, time in enumerate(sorted(times), 1) if number >= rank)
    low, high = bounds_of(bucket_of(exact))
    assert found is not None
    assert low <= found <= high * (1 + 1e-9)


@given(seconds)
def test_each_time_is_in_the_bounds_of_its_bucket(time: float) -> None:
    low, high = bounds_of(bucket_of(time))
    assert low * (1 - 1e-9) <= time <= high * (1 + 1e-9)


def test_the_longest_times_share_a_bucket_and_statuses_have_outcomes() -> None:
    assert bucket_of(1e9) == LAST_BUCKET
    assert Traffic().percentile(0.5) is None
    assert [outcome_of(status) for status in (101, 200, 302, 404, 499, 500, 599)] == [
        Outcome.OK, Outcome.OK, Outcome.OK, Outcome.CLIENT_ERROR, Outcome.CLIENT_ERROR, Outcome.SERVER_ERROR,
        Outcome.SERVER_ERROR,
    ]  # fmt: skip


@pytest.fixture
def lab(db: None) -> World:
    return world(v100=2)


@pytest.fixture
def service(lab: World) -> Service:
    made = create_service(
        actor=lab.people.bob,
        tenant=lab.people.astro,
        cluster=lab.cluster,
        spec=JobSpec(name="api", command="serve", port=8000),
    )
    Service.objects.filter(pk=made.pk).update(created_at=now_from_database() - timedelta(days=90))
    made.refresh_from_db()
    return made


def whole_of(service: Service) -> Traffic:
    now = now_from_database()
    return read_traffic(service, begins=now - timedelta(days=90), ends=now + timedelta(minutes=1)).whole


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_lost_repeated_and_late_reports_count_each_request_once(
    lab: World, service: Service, data: st.DataObject
) -> None:
    """Two web processes report growing sums of several windows. Reports come in any order, more than once or never,
    as long as the last one of each window arrives once."""
    TrafficStream.objects.all().delete()
    now = number_at(now_from_database(), WINDOW)
    expected, reports = Traffic(), []
    for source in ("a", "b"):
        for number in (now - 1, now - 2):
            sum_ = Traffic()
            for _ in range(data.draw(st.integers(1, 3))):
                sum_.add(traffic_of(data.draw(requests.filter(len))))
                reports.append((source, Report(service.pk, number, Traffic.restored(sum_.stored))))
            expected.add(sum_)
    lost = data.draw(st.sets(st.integers(0, len(reports) - 1)))
    last = {(source, report.number): at for at, (source, report) in enumerate(reports)}
    arrived = [at for at in range(len(reports)) if at not in lost or at in last.values()]
    for at in data.draw(st.permutations(arrived + data.draw(st.lists(st.sampled_from(arrived))))):
        source, report = reports[at]
        note_traffic(source=source, reports=[report])
    assert figures(whole_of(service)) == figures(expected)


def test_one_report_may_have_a_window_twice_and_services_that_do_not_exist(service: Service) -> None:
    number = number_at(now_from_database(), WINDOW) - 1
    one, two = traffic_of([(Outcome.OK, 0.1)]), traffic_of([(Outcome.OK, 0.1), (Outcome.SERVER_ERROR, 0.2)])
    reports = [Report(service.pk, number, two), Report(service.pk, number, one), Report(10**9, number, one)]
    note_traffic(source="a", reports=reports)
    assert whole_of(service).outcomes == {"ok": 1, "server_error": 1}
    assert TrafficStream.objects.count() == 1


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(later=st.integers(0, LEVELS[-1].seconds // WINDOW))
def test_rolled_up_traffic_adds_up_to_the_same_and_refuses_what_comes_too_late(
    service: Service, later: int
) -> None:
    """It does not matter where in a window of any level the newest report is."""
    TrafficStream.objects.all().delete()
    now = number_at(now_from_database(), WINDOW) + later
    # Of each level two finest windows that the same window of the level contains.
    longs = [level.seconds // WINDOW for level in LEVELS]
    old = [
        (now - ago) // long * long
        for long, ago in zip(longs[1:], (500, 6 * 3600, 30 * 8640, 80 * 8640), strict=True)
    ]
    numbers = [now, now - 1, *(number + further for number in old for further in (0, 1))]
    for source in ("a", "b"):
        note_traffic(
            source=source,
            reports=[Report(service.pk, number, traffic_of([(Outcome.OK, 0.05)])) for number in numbers],
        )

    def count() -> int:
        begins, ends = begin_of(now - 89 * 8640, WINDOW), begin_of(now + 1, WINDOW)
        return read_traffic(service, begins=begins, ends=ends).whole.requests

    assert list(traffic_to_roll().values_list("pk", flat=True)) == [service.pk]
    roll_up_metrics()
    levels = TrafficSample.objects.order_by("level").values_list("level", "requests")
    # Two processes in each of the two finest windows; one sample of both processes in each older window.
    assert list(levels) == [*[(0, 1)] * 4, (1, 4), (2, 4), (3, 4), (4, 4)]
    assert count() == 20
    assert roll_up_traffic(service_id=service.pk) == 0, "again"
    assert not traffic_to_roll().exists()
    note_traffic(source="c", reports=[Report(service.pk, old[0], traffic_of([(Outcome.OK, 1.0)]))])
    assert count() == 20
    assert roll_up_traffic(service_id=10**9) == 0


def test_the_points_of_a_period_have_rates_over_what_they_cover(service: Service) -> None:
    now = now_from_database()
    ends = begin_of(number_at(now, 60), 60) + timedelta(seconds=30)
    begins = ends - timedelta(minutes=90)
    last = number_at(ends, WINDOW) - 1
    three = traffic_of([(Outcome.OK, 0.05)] * 3)
    note_traffic(source="a", reports=[Report(service.pk, last - ago, three) for ago in (0, 2)])
    found = read_traffic(service, begins=begins, ends=ends)
    assert (found.seconds, found.count) == (30, 180)
    assert found.time_of(found.count) == ends
    assert found.rate_of(found.count - 1) == pytest.approx(6 / 30)
    assert found.rate_of(0) == 0
    coarse = read_traffic(service, begins=begins, ends=ends, most_points=40)
    assert coarse.seconds == 300
    covered = (ends - coarse.time_of(coarse.count - 1)).total_seconds()
    assert coarse.rate_of(coarse.count - 1) == pytest.approx(
        coarse.points[coarse.count - 1].requests / covered
    )
    assert read_traffic(service, begins=ends, ends=begins).count == 0


def test_traffic_is_kept_as_long_as_the_metrics_of_jobs(lab: World, service: Service) -> None:
    number = number_at(now_from_database(), WINDOW)
    note_traffic(source="a", reports=[Report(service.pk, number, traffic_of([(Outcome.OK, 0.05)]))])
    assert remove_metrics(after=timedelta(days=1)) == 0
    remove_service(actor=lab.people.bob, service=service)
    Service.objects.filter(pk=service.pk).update(removed_at=timezone.now() - timedelta(days=2))
    assert remove_metrics(after=timedelta(days=1)) == 2
    assert not TrafficSample.objects.exists()
