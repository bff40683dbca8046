"""Tests the figures that the database computes for reports, by comparing them with figures that Python computes.

The reports are about demand, the use of GPUs by hour of the week, and the health of nodes.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting.actions import set_price
from accounting.core.calendar import HOUR
from accounting.models import CapacitySegment, NodeHour
from accounting.pricing.price_history import price_history
from accounting.reports.utilisation import use_by_hour, use_by_hour_of_week
from scheduling.models import Job, Node, NodeChange
from scheduling.reports.demand import wanted_by_hour
from scheduling.reports.node_health import held_gpus, node_events, node_health
from tests.accounting.booking import book, close_hours
from tests.make import LONG_AGO
from tests.scheduling.bygone import changed, hours, ran, waited
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db
BEGIN = datetime(2026, 5, 4, tzinfo=UTC)


@pytest.fixture
def lab(db: None) -> World:
    return world(v100=4, a100=4)


spans = st.lists(
    st.tuples(st.integers(0, 9 * 60), st.none() | st.integers(0, 9 * 60), st.integers(1, 9)), max_size=8
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spans, st.integers(0, 300), st.integers(0, 400))
def test_demand_equals_a_count_by_the_second(lab: World, jobs: Any, late: int, long: int) -> None:
    begins = BEGIN + timedelta(minutes=late)
    ends = begins + timedelta(minutes=long)
    with transaction.atomic():
        stays = []
        for came, lasted, gpus in jobs:
            at = BEGIN + timedelta(minutes=came)
            went = None if lasted is None else at + timedelta(minutes=lasted)
            state = "queued" if went is None else "cancelled"
            waited(lab, lab.people.bob, lab.people.astro, at, gpus=gpus, ended_at=went, state=state)
            stays.append((at, went, gpus))
        told = wanted_by_hour(begins, ends)
        assert told == wanted_by_hour(begins, ends, cluster=lab.cluster)
        transaction.set_rollback(True)
    whole = [BEGIN + n * HOUR for n in range(24)]
    assert list(told) == [hour for hour in whole if begins <= hour < ends]
    for hour, wanted in told.items():
        by_hand = sum(
            gpus * max((min(went or hour + HOUR, hour + HOUR) - max(at, hour)).total_seconds(), 0)
            for at, went, gpus in stays
        )
        assert wanted == by_hand


@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ("UTC", (2026, 5, 4)),
        ("Asia/Kolkata", (2026, 5, 4)),
        ("America/Havana", (2025, 11, 2)),
    ],  # in Havana, midnight comes twice on this day
)
def test_each_hour_of_a_readers_day_is_listed_once(lab: World, zone: str, day: tuple[int, int, int]) -> None:
    begins = datetime(*day, tzinfo=ZoneInfo(zone))
    bounds = [begins + timedelta(days=n) for n in range(3)]  # adds whole days in the reader's time zone
    parts = [hour for some in pairwise(bounds) for hour in wanted_by_hour(*some)]
    spans = (bounds[-1].astimezone(UTC) - begins.astimezone(UTC)) // HOUR
    first = begins.astimezone(UTC) + timedelta(minutes=30 if zone == "Asia/Kolkata" else 0)
    assert parts == [first + n * HOUR for n in range(spans)]
    assert parts == list(wanted_by_hour(begins, bounds[-1]))


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kolkata", "America/St_Johns"])
def test_the_week_sums_all_closed_hours_once(lab: World, zone: str) -> None:
    people = lab.people
    for lease in range(6):
        begins = BEGIN + timedelta(minutes=617 * lease)
        book(people, lease_id=lease, begins=begins, ends=begins + timedelta(minutes=200), gpus=lease + 1)
    close_hours(people, BEGIN, BEGIN + 60 * HOUR)
    period = (BEGIN + 3 * HOUR, BEGIN + 50 * HOUR)
    by_hand: dict[tuple[int, int], list[Decimal]] = defaultdict(lambda: [Decimal(0)] * 4)
    by_hour: dict[datetime, Decimal] = defaultdict(Decimal)
    for one in CapacitySegment.objects.all():
        if period[0] <= one.period.lower < period[1]:
            local = one.period.lower.astimezone(ZoneInfo(zone))
            held = one.busy + one.idle + one.assembling
            more = [one.busy, held, held + one.free, one.capacity]
            key = local.isoweekday(), local.hour
            by_hand[key] = [a + b for a, b in zip(by_hand[key], more, strict=True)]
            by_hour[one.period.lower] += held
    told = use_by_hour_of_week(*period, zone=zone)
    assert {key: [one.busy, one.held, one.usable, one.capacity] for key, one in told.items()} == by_hand
    assert {key: one.held for key, one in use_by_hour(*period).items()} == by_hour
    assert use_by_hour(*period, book=77) == {}


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(1, 120), st.sampled_from(["ready", "down", "drained"]), st.integers(0, 2)),
        max_size=8,
    )
)
def test_failures_and_time_down_are_those_of_the_changes(lab: World, changes: Any) -> None:
    begins, ends = BEGIN + 2 * HOUR, BEGIN + 10 * HOUR
    with transaction.atomic():
        node = lab.cluster.nodes.get(name="v100-0")
        changed(node, LONG_AGO, gpus=4)
        at, story = BEGIN, [(LONG_AGO, "ready", 0)]
        for gap, state, failed in changes:
            at += timedelta(minutes=gap)
            changed(node, at, gpus=4, state=state, failed_gpus=failed)
            story.append((at, state, failed))
        (told,) = [one for one in node_health(begins, ends) if one.node_id == node.pk]
        events = [one for one in node_events(begins, ends)[0] if one.node == node.name]
        transaction.set_rollback(True)
    downs = gpus = 0
    seconds: dict[bool, Fraction] = defaultdict(Fraction)
    for (_, before, failed_before), (moment, state, failed) in pairwise(story):
        if begins <= moment < ends:
            downs += state == "down" and before != "down"
            gpus += max(failed - failed_before, 0)
    for (moment, state, _), until in zip(story, [*(one[0] for one in story[1:]), ends], strict=True):
        overlap = min(until, ends) - max(moment, begins)
        seconds[state == "down"] += max(Fraction(overlap // timedelta(seconds=1)), Fraction(0))
    assert (told.times_down, told.gpu_failures) == (downs, gpus)
    assert (told.seconds_down, told.seconds_up) == (seconds[True], seconds[False])
    assert told.seconds_down + told.seconds_up == (ends - begins).total_seconds()
    real = [one for one, other in zip(story[1:], story, strict=False) if one[1:] != other[1:]]
    assert len(events) == len([one for one in real if begins <= one[0] < ends])


def test_hours_of_nodes_and_gpus_are_summed(lab: World) -> None:
    people, node = lab.people, lab.cluster.nodes.get(name="v100-0")
    job = waited(lab, people.bob, people.astro, BEGIN, gpus=2)
    ran(job, BEGIN + hours(1), BEGIN + hours(4), node)
    held, lasted = held_gpus([node.pk], BEGIN + hours(2), BEGIN + hours(6))
    assert held == {(node.pk, 0): 7200.0, (node.pk, 1): 7200.0}
    assert lasted == hours(4)
    for n in range(3):
        NodeHour.objects.create(
            book=lab.cluster.pk, month=BEGIN.date().replace(day=1), hour=BEGIN + n * HOUR, node_id=node.pk,
            node_name=node.name, generation=people.v100, busy=100, idle=10, assembling=1, free=1000, others=0,
            drained=7, down=5,
        )  # fmt: skip
    (told,) = [one for one in node_health(BEGIN + HOUR, BEGIN + 9 * HOUR) if one.node_id == node.pk]
    assert (told.held, told.drained, told.down, told.capacity) == (222, 14, 10, 2246)


def test_to_be_taken_out_of_the_cluster_is_no_failure(lab: World) -> None:
    node = lab.cluster.nodes.get(name="v100-0")
    changed(node, LONG_AGO, gpus=4)
    changed(node, BEGIN + hours(1), gpus=0, state="down")
    changed(node, BEGIN + hours(3), gpus=4)
    changed(node, BEGIN + hours(4), gpus=4, state="down")
    (told,) = [one for one in node_health(BEGIN, BEGIN + hours(6)) if one.node_id == node.pk]
    assert (told.times_down, told.seconds_down, told.seconds_up) == (1, 2 * 3600, 2 * 3600)


def test_old_intervals_are_not_sorted_again(lab: World) -> None:
    node, other = lab.cluster.nodes.get(name="v100-0"), lab.cluster.nodes.get(name="a100-0")
    for n in range(200):
        for one in (node, other):
            changed(one, BEGIN - 500 * HOUR + n * HOUR, gpus=4, state="down" if n % 2 else "ready")
    changed(node, BEGIN, gpus=4)  # exactly at the begin of the period; until then the node was down
    changed(node, BEGIN + HOUR, gpus=4, state="down")
    with CaptureQueriesContext(connection) as asked:
        health = {one.node: one for one in node_health(BEGIN, BEGIN + 3 * HOUR)}
        events, _ = node_events(BEGIN, BEGIN + 3 * HOUR)
    assert (health["v100-0"].times_down, health["v100-0"].seconds_down) == (1, 2 * 3600)
    assert (health["a100-0"].times_down, health["a100-0"].seconds_down) == (0, 3 * 3600)
    assert [(one.state_before, one.state) for one in events] == [("ready", "down"), ("down", "ready")]
    sorted_rows = [rows for query in asked for rows in rows_of_windows(query["sql"])]
    assert len(sorted_rows) == 2
    assert set(sorted_rows) == {4}


def rows_of_windows(sql: str) -> list[int]:
    """Runs the query `sql`, and returns the number of rows that each WindowAgg node of its plan returned.

    Only the query on node health has the tested window, which is named "past". For other queries, returns [] without
    running them.
    """
    if "OVER past" not in sql:
        return []
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}")
        (told,) = cursor.fetchone()
    found, plans = [], [told[0]["Plan"]]
    while plans:
        plan = plans.pop()
        plans += plan.get("Plans", [])
        if plan["Node Type"] == "WindowAgg":
            found.append(plan["Actual Rows"])
    return found


def test_nodes_that_went_before_are_left_out(lab: World) -> None:
    Node.objects.filter(name="a100-0").update(gone_at=BEGIN)
    assert [one.node for one in node_health(BEGIN + HOUR, BEGIN + 2 * HOUR)] == ["v100-0"]
    assert [one.is_gone for one in node_health(BEGIN - HOUR, BEGIN + HOUR)] == [True, False]
    assert NodeChange.objects.filter(name="a100-0").count() == 2
    assert Job.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_prices_say_who_set_them(transactional_db: None) -> None:
    lab = world()
    people = lab.people
    since = datetime(2030, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
    set_price(actor=people.ada, generation=people.v100, per_gpu_hour=Decimal("2.50"), since=since)
    lines = [one for one in price_history(LONG_AGO, since + HOUR) if one.generation == "V100"]
    assert [(one.per_gpu_hour, one.before, one.set_by) for one in lines] == [
        (Decimal("1.2"), None, ""),
        (Decimal("2.5"), Decimal("1.2"), "ada"),
    ]
    assert lines[0].until == lines[1].since == since
    assert [one.per_gpu_hour for one in price_history(LONG_AGO, since) if one.generation == "V100"] == [
        Decimal("1.2")
    ]


def test_a_month_in_which_clocks_change_has_its_real_hours() -> None:
    zone = ZoneInfo("Europe/Berlin")
    begins, ends = datetime(2025, 10, 1, tzinfo=zone), datetime(2025, 11, 1, tzinfo=zone)
    assert held_gpus([1], begins, ends)[1] == timedelta(hours=745)
