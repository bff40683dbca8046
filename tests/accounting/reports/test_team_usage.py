"""Tests that a team's statement has exactly the figures of the separate usage reports."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from django.db import transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting.ledger import Payer, correct_usage
from accounting.models import Price, Tenant, UsageSegment
from accounting.reports.team_usage import Names, jobs_of, largest_jobs_of, largest_names_of, usage_of_team
from accounting.reports.usage import By, UsageRow, report_of, usage_report
from accounting.usage.reader import UsageReader
from tests.accounting.booking import HOUR, NOON, book, close_hours, minutes
from tests.accounting.reports.test_usage import ZONES, booked, some_names  # noqa: F401 - a fixture
from tests.make import LONG_AGO, Cast
from tests.query_counts import queries_of

LABELS = Names(["a", "b"], np.array([0, 2, 4]), np.array([0, 0, 1]))  # the labels of `some_names`


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_a_teams_usage_is_that_of_single_reports(booked: Cast, data: st.DataObject) -> None:  # noqa: F811
    begins = NOON + timedelta(seconds=data.draw(st.integers(-50_000, 200_000)), microseconds=77)
    ends = begins + timedelta(seconds=data.draw(st.integers(1, 300_000)))
    viewer, tenant = data.draw(
        st.sampled_from([(booked.olga, booked.uni), (booked.bob, booked.astro), (booked.charlie, booked.uni)])
    )
    zone, days = data.draw(st.sampled_from(ZONES)), data.draw(st.booleans())
    most = data.draw(st.integers(1, 5))
    with transaction.atomic():
        if data.draw(st.booleans()):
            begins_anew = NOON + 61 * HOUR  # later than all closed hours
            running = Price.objects.filter(generation=booked.a100)
            running.update(valid=DateTimeTZRange(LONG_AGO, begins_anew))
            Price.objects.create(
                generation=booked.a100,
                per_gpu_hour=3,
                currency="USD",
                valid=DateTimeTZRange(begins_anew, None),
            )
            book(
                booked, lease_id=99, job_id=2, job_name="job 2", begins=begins_anew,
                ends=NOON + 62 * HOUR, tenant=booked.astro, user=booked.bob,
            )  # fmt: skip
        close_hours(booked, NOON - 12 * HOUR, NOON + data.draw(st.integers(-10, 60)) * HOUR)
        if data.draw(st.booleans()):
            wrong = UsageSegment.objects.filter(lease_id__in=[3, 4, 5]).select_related("generation")
            payer = Payer(booked.bio, booked.charlie) if data.draw(st.booleans()) else None
            correct_usage(actor=None, segments=list(wrong), reason="a test", payer=payer)
        reader = UsageReader(viewer, begins, ends, tenant)
        usage = usage_of_team(reader, zone=ZoneInfo(zone), days=days, most=most)
        jobs = largest_jobs_of(reader, most=most)
        labels = largest_names_of(reader, LABELS, most=most)
        numbers = jobs_of(reader)
        teams = Tenant.objects.visible_to(viewer).filter(path__startswith=tenant.path)
        visible = set(UsageSegment.objects.filter(tenant__in=teams).values_list("job_id", flat=True))
        report: Callable[..., Any] = partial(
            usage_report, viewer, begins, ends, tenant=tenant, time_zone=zone, job_names=None
        )
        whole = report(by=[By.GENERATION])
        by_day = report(by=[By.DAY])
        by_user, by_job, by_label = (
            report(by=[by], largest=slice(0, most), job_names=some_names() if by == By.LABEL else None)
            for by in (By.USER, By.JOB, By.LABEL)
        )
        every_job = report(by=[By.JOB])
        transaction.set_rollback(True)
    assert told(usage.totals) == told(whole.totals)
    assert told(usage.generations) == told(whole.rows)
    assert list(usage.days) == (list(by_day.rows) if days else [])
    for ours, theirs in ((usage.users, by_user), (jobs, by_job), (labels, by_label)):
        assert told(ours.rows) == told(theirs.rows)
        assert ours.count == theirs.count
    assert {row.job_id for row in every_job.rows} <= set(numbers.tolist()) <= visible


def told(rows: Any) -> list[UsageRow]:
    """Returns the rows with their number of segments set to 0.

    The numbers may differ, because a segment that is cut by midnight counts twice in rows by day.
    """
    return [replace(row, segments=0) for row in rows]


def test_who_used_nothing_gets_a_total_of_nothing(cast: Cast) -> None:
    reader = UsageReader(cast.bob, NOON, NOON + HOUR, cast.astro)
    usage = usage_of_team(reader, zone=ZoneInfo("UTC"), days=True, most=5)
    assert [row.gpu_seconds for row in usage.totals] == [0]
    assert not any((usage.generations, usage.days, usage.held, usage.users.rows))
    assert largest_jobs_of(reader, most=5).rows == []
    assert largest_names_of(reader, LABELS, most=5).count == 0
    assert not len(jobs_of(reader))


def test_jobs_without_any_label_are_told_together(booked: Cast) -> None:  # noqa: F811
    nothing = Names([], np.empty(0, np.int64), np.empty(0, np.int64))
    (row,) = largest_names_of(
        UsageReader(booked.olga, NOON, NOON + 99 * HOUR, booked.uni), nothing, most=5
    ).rows
    (total,) = usage_report(booked.olga, NOON, NOON + 99 * HOUR).totals
    assert (row.label, row.gpu_seconds, row.cost) == (None, total.gpu_seconds, total.cost)


def test_what_several_figures_need_is_read_once(booked: Cast) -> None:  # noqa: F811
    with queries_of("all figures of a team's jobs"):
        reader = UsageReader(booked.olga, NOON, NOON + 99 * HOUR, booked.uni)
        largest_jobs_of(reader, most=5)
        largest_names_of(reader, LABELS, most=5)
        jobs_of(reader)
        report_of(reader.scope, by=[By.GENERATION], totals=False)
        report_of(reader.within(NOON, NOON + HOUR).scope, by=[By.GENERATION], totals=False)


def test_of_equals_the_first_come_and_the_rest_is_counted(cast: Cast) -> None:
    for job in (5, 3, 8, 1):
        book(cast, lease_id=job, job_id=job, user=(cast.bob, cast.alice)[job % 2])
    book(cast, lease_id=9, job_id=9, ends=NOON + minutes(20))
    reader = UsageReader(cast.bob, NOON, NOON + HOUR, cast.astro)
    for most in (2, 4):
        jobs = largest_jobs_of(reader, most=most)
        assert [row.job_id for row in jobs.rows] == [1, 3, 5, 8][:most]
        assert jobs.count == 5
    names = Names(["x", "y", "z"], np.array([1, 3, 8]), np.array([2, 0, 0]))
    labels = largest_names_of(reader, names, most=2)
    assert [(row.label, row.segments) for row in labels.rows] == [("x", 2), (None, 2)]
    assert labels.count == 3


@pytest.mark.parametrize("days", [True, False])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_how_gpus_were_held_is_told_of_days_and_without(cast: Cast, zone: str, days: bool) -> None:
    midnight = datetime(2026, 5, 4, 18, 30, tzinfo=UTC)  # midnight in Kolkata
    first, last = midnight - minutes(20), midnight + minutes(20)
    unused = [(first + minutes(10), last)]
    book(cast, gpus=4, begins=first, ends=last, running_from=first + minutes(5), unused=unused)
    book(cast, lease_id=2, generation=cast.v100, gpus=1, begins=first, ends=last)
    reader = UsageReader(cast.bob, midnight - 2 * HOUR, midnight + 2 * HOUR, cast.astro)
    usage = usage_of_team(reader, zone=ZoneInfo(zone), days=days, most=5)
    told = [(one.generation, one.held, one.assembling, one.idle, one.busy) for one in usage.held]
    assert told == [
        (cast.a100.name, 4 * 2400, 4 * 300, 4 * 1800, 4 * 300), (cast.v100.name, 2400, 0, 0, 2400)
    ]  # fmt: skip
    assert len(usage.days) == (0 if not days else 2 if zone == "Asia/Kolkata" else 1)
