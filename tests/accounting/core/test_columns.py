"""Tests that numeric database columns are read with the stored values and in the requested order."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from django.db.models import BooleanField, ExpressionWrapper, Q
from django.db.utils import ProgrammingError
from hypothesis import given
from hypothesis import strategies as st

from accounting.core.clock import now_from_database
from accounting.core.columns import find, read_columns, seconds
from scheduling.models import Job, JobSpeed
from tests.scheduling.world import World, world


@pytest.fixture
def lab(db: None) -> World:
    return world()


def submitted(lab: World, count: int) -> list[Job]:
    return [lab.submit(lab.people.bob, lab.people.astro, priority=n - 1) for n in range(count)]


def test_numbers_of_every_width_come_back_in_the_order_that_is_asked_for(lab: World) -> None:
    jobs = submitted(lab, 3)
    Job.objects.filter(pk=jobs[1].pk).update(reason=12, preemptible=True)
    urgent = ExpressionWrapper(Q(priority__gt=0), BooleanField())
    rows = Job.objects.order_by("-id").values_list(
        "id", urgent, "priority", "reason", "preemptible", "workers"
    )
    found = read_columns(rows, "i8", "?", "i4", "i2", "?", "i4")
    assert [column.tolist() for column in found] == [
        [job.pk for job in reversed(jobs)],
        [True, False, False],
        [1, 0, -1],
        [0, 12, 0],
        [False, True, False],
        [1, 1, 1],
    ]
    assert [column.dtype for column in found] == [np.int64, bool, np.int64, np.int64, bool, np.int64]


def test_fractions_and_moments_are_exact(lab: World) -> None:
    (job,) = submitted(lab, 1)
    speed = JobSpeed.objects.create(job=job, generation=lab.people.v100, steps=1 / 3, seconds=1e-300)
    at = now_from_database() + timedelta(microseconds=1)
    before = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    for moment in (at, before):
        JobSpeed.objects.filter(pk=speed.pk).update(updated_at=moment)
        rows = JobSpeed.objects.values_list("steps", "seconds", "updated_at")
        steps, lasted, updated = read_columns(rows, "f8", "f8", "i8")
        assert (steps.tolist(), lasted.tolist()) == ([1 / 3], [1e-300])
        assert seconds(updated).tolist() == [moment.timestamp()]


def test_no_rows_are_columns_without_values(lab: World) -> None:
    for rows in (Job.objects.all(), Job.objects.filter(pk__in=[])):
        assert [column.tolist() for column in read_columns(rows.values_list("id", "reason"), "i8", "i2")] == [
            [],
            [],
        ]


def test_what_is_null_or_of_another_width_is_refused(lab: World) -> None:
    submitted(lab, 26)
    for name, kind in (("not_before", "i8"), ("priority", "i8"), ("id", "i4"), ("name", "i8")):
        for count in (1, 25):  # 25 such rows have the same total length as rows of the right width
            with pytest.raises(ValueError, match="NULL"):
                read_columns(Job.objects.order_by("id").values_list(name)[:count], kind)
    with pytest.raises(ProgrammingError):
        read_columns(Job.objects.extra(where=["no_such_column"]).values_list("id"), "i8")


@given(known=st.sets(st.integers(-9, 9)), wanted=st.lists(st.integers(-12, 12)))
def test_numbers_are_found_where_they_are(known: set[int], wanted: list[int]) -> None:
    there = sorted(known)
    found = find(np.array(there, dtype=np.int64), wanted)
    assert found.tolist() == [there.index(one) if one in known else -1 for one in wanted]
