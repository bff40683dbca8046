"""A schedule misses runs while Fairlot is down, the schedule is paused, or its cluster is detached."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.core.clock import now_from_database
from accounting.models import AuditEvent, User
from scheduling.core.run_texts import run_text_of
from scheduling.models import Cluster, Job, Schedule, ScheduleRun
from scheduling.retention import prune
from scheduling.schedules import schedule_runs
from scheduling.schedules.actions import change_schedule, pause_schedule, resume_schedule
from scheduling.spec.job_spec import JobSpec
from scheduling.timetable import Timetable
from scheduling.timetable.missed_runs import MOST_AT_ONCE, ON_TIME, next_step
from tests.scheduling.scheduled import DAY, HOUR, MINUTE, NOON, Clock, make, spec, terms, tick, told
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> World:
    return world(v100=4)


def missing(lab: World, clock: Clock, **changes: Any) -> list[tuple[str, str, str]]:
    """Creates a schedule that has missed four daily runs, the last of them an hour ago. Returns the recorded runs in
    the form of `told` (scheduled.py)."""
    schedule = make(lab, terms(**changes))
    clock(NOON + 3 * DAY + HOUR)
    tick()
    return told(schedule)


def test_missed_runs_are_skipped(lab: World, clock: Clock) -> None:
    assert missing(lab, clock, missed="skip") == [("04.05. 12:00", "07.05. 12:00", "skipped")]
    assert (
        run_text_of(ScheduleRun.objects.get())
        == "Missed because Fairlot was not running; missed runs are skipped."
    )


def test_only_the_latest_missed_run_is_made_up(lab: World, clock: Clock) -> None:
    assert missing(lab, clock, missed="once") == [
        ("04.05. 12:00", "06.05. 12:00", "skipped"),
        ("07.05. 12:00", "07.05. 12:00", "submitted"),
    ]
    assert run_text_of(ScheduleRun.objects.latest("id")) == "Late because Fairlot was not running."


def test_all_that_was_missed_within_the_window_is_made_up_for(lab: World, clock: Clock) -> None:
    assert missing(lab, clock, missed="all", catch_up_seconds=2 * 86_400) == [
        ("04.05. 12:00", "05.05. 12:00", "skipped"),
        ("06.05. 12:00", "06.05. 12:00", "submitted"),
        ("07.05. 12:00", "07.05. 12:00", "submitted"),
    ]


def test_old_runs_without_a_job_are_deleted_except_the_last(lab: World, clock: Clock) -> None:
    schedule = make(lab, terms(missed="skip"))
    for days in (3, 6, 9):
        clock(NOON + days * DAY + HOUR)
        tick()
    everything = told(schedule)
    assert [outcome for *_, outcome in everything] == ["skipped"] * 3
    ScheduleRun.objects.update(at=now_from_database() - timedelta(hours=1))
    prune(records=timedelta(days=1), attempts=timedelta(days=1))
    assert told(schedule) == everything
    prune(records=timedelta(days=1), attempts=timedelta(0))
    assert told(schedule) == everything[-1:]


def test_runs_missed_too_long_ago_are_not_made_up(lab: World, clock: Clock) -> None:
    assert missing(lab, clock, missed="once", catch_up_seconds=60) == [
        ("04.05. 12:00", "07.05. 12:00", "skipped")
    ]
    assert "due too long ago to be started now" in run_text_of(ScheduleRun.objects.get())


def test_a_paused_schedule_does_nothing_and_later_lists_its_missed_runs(lab: World, clock: Clock) -> None:
    schedule = make(lab, terms(missed="skip"))
    pause_schedule(actor=lab.people.bob, schedule=schedule, reason="holidays")
    clock(NOON + HOUR)
    tick()
    assert told(schedule) == []
    schedule.refresh_from_db()
    assert schedule.paused_reason == "Paused by bob: holidays"
    resume_schedule(actor=lab.people.bob, schedule=schedule)
    tick()
    assert run_text_of(ScheduleRun.objects.get()).startswith("Missed because the schedule was paused;")


def test_a_detached_cluster_is_waited_for(lab: World, clock: Clock) -> None:
    schedule = make(lab)
    Cluster.objects.update(detached_at=NOON)
    clock(NOON + 2 * HOUR)
    tick()
    assert told(schedule) == []
    Cluster.objects.update(detached_at=None)
    clock(NOON + 3 * HOUR)
    tick()
    run = ScheduleRun.objects.get()
    assert (run.outcome, run_text_of(run)) == ("submitted", "Late because the cluster was detached.")
    schedule.refresh_from_db()
    assert schedule.late_because == ""


def test_a_cluster_that_is_detached_this_very_moment_is_waited_for(
    lab: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = make(lab)
    clock(NOON)
    real = schedule_runs.stay_attached

    def detached_first(cluster_id: int) -> None:
        Cluster.objects.update(detached_at=NOON)
        real(cluster_id)

    monkeypatch.setattr(schedule_runs, "stay_attached", detached_first)
    tick()
    assert told(schedule) == []
    schedule.refresh_from_db()
    assert schedule.next_due_at == NOON


def test_a_schedule_that_is_created_paused_waits_for_its_resumption(lab: World, clock: Clock) -> None:
    schedule, bob = make(lab, paused=True), lab.people.bob
    assert schedule.paused_reason == "Created paused by bob"
    assert AuditEvent.objects.get(verb="schedule.create").after["paused"] is True
    clock(NOON + HOUR)
    tick()
    assert told(schedule) == []
    resume_schedule(actor=bob, schedule=schedule)
    tick()
    assert told(schedule) == [("04.05. 12:00", "04.05. 12:00", "submitted")]


def edit(schedule: Schedule, actor: User, **changes: Any) -> Schedule:
    return change_schedule(
        actor=actor,
        schedule=schedule,
        cluster=schedule.cluster,
        spec=JobSpec.parse(schedule.spec),
        terms=terms(**changes),
    )


@pytest.mark.parametrize("first", ["tick", "edit"])
@pytest.mark.parametrize(
    ("missed", "runs"),
    [
        (
            "once",
            [("04.05. 12:00", "05.05. 12:00", "skipped"), ("06.05. 12:00", "06.05. 12:00", "submitted")],
        ),
        ("skip", [("04.05. 12:00", "06.05. 12:00", "skipped")]),
        ("all", [(f"0{day}.05. 12:00", f"0{day}.05. 12:00", "submitted") for day in (4, 5, 6)]),
    ],
)
def test_an_edit_of_the_times_drops_no_run_that_is_due(
    lab: World, clock: Clock, first: str, missed: str, runs: list[tuple[str, str, str]]
) -> None:
    schedule, bob = make(lab, terms(missed=missed, catch_up_seconds=5 * 86_400)), lab.people.bob
    pause_schedule(actor=bob, schedule=schedule)
    clock(NOON + 2 * DAY + HOUR)
    resume_schedule(actor=bob, schedule=schedule)
    if first == "tick":
        tick()
    edited = edit(schedule, bob, expression="30 14 * * *", missed=missed, catch_up_seconds=5 * 86_400)
    assert (edited.next_due_at, edited.late_because) == (NOON + 2 * DAY + 2 * HOUR + 30 * MINUTE, "")
    tick()
    assert told(schedule) == runs
    assert {run_text_of(run) for run in schedule.runs.filter(outcome="submitted")} <= {
        "Late because the schedule was paused."
    }


def test_a_run_of_this_minute_starts_with_the_spec_of_an_edit_that_comes_first(
    lab: World, clock: Clock
) -> None:
    schedule, bob = make(lab), lab.people.bob
    clock(NOON + timedelta(seconds=1))
    change_schedule(
        actor=bob,
        schedule=schedule,
        cluster=schedule.cluster,
        spec=spec(name="newer"),
        terms=terms(expression="0 18 * * *"),
    )
    assert Job.objects.get().name == "newer"
    tick()
    assert told(schedule) == [("04.05. 12:00", "04.05. 12:00", "submitted")]


def test_an_edit_during_a_pause_records_what_was_missed_until_then(lab: World, clock: Clock) -> None:
    schedule, bob = make(lab), lab.people.bob
    pause_schedule(actor=bob, schedule=schedule)
    clock(NOON + DAY + HOUR)
    edit(schedule, bob, expression="30 14 * * *")
    resume_schedule(actor=bob, schedule=schedule)
    tick()
    assert told(schedule) == [("04.05. 12:00", "05.05. 12:00", "skipped")]
    assert run_text_of(ScheduleRun.objects.get()) == (
        "Missed because the schedule was paused; it does not start later, because the timetable has been changed."
    )


def test_times_that_can_no_longer_be_read_do_not_stop_an_edit(lab: World, clock: Clock) -> None:
    schedule = make(lab)
    Schedule.objects.update(time_zone="Mars/Olympus")
    clock(NOON + HOUR)
    assert edit(schedule, lab.people.bob).next_due_at == NOON + DAY
    assert told(schedule) == []


crons = st.sampled_from(["* * * * *", "*/7 * * * *", "30 2 * * *", "0 */2 * * *", "0 0 1 * *", "5 4 * * SUN"])


@settings(deadline=None, max_examples=30)
@given(
    crons,
    st.sampled_from(["Europe/Berlin", "Australia/Lord_Howe", "UTC"]),
    st.sampled_from(["skip", "once", "all"]),
    st.integers(0, 3 * 24 * 60).map(lambda count: count * MINUTE),
    st.lists(st.integers(0, 3000), min_size=1, max_size=3),
)
def test_every_due_time_is_in_exactly_one_row_whenever_and_however_often_one_looks(
    cron: str, zone: str, policy: str, window: timedelta, pauses: list[int]
) -> None:
    table = Timetable.read(cron, zone)
    now = datetime(2026, 10, 24, 12, tzinfo=UTC)
    due = first = table.after(now)
    covered: list[tuple[datetime, datetime]] = []
    for minutes in pauses:
        now += minutes * MINUTE
        steps = 0
        while due is not None and due <= now:
            step = next_step(table, due, now, policy=policy, window=window)
            if step.missed:
                covered.append(step.missed)
            if step.runs:
                covered.append((step.runs, step.runs))
                assert now - step.runs <= max(window, ON_TIME)
            due = table.after(step.last)
            steps += 1
        assert steps <= (MOST_AT_ONCE if policy == "all" else 1)
    expected = first
    for begin, end in covered:  # the intervals follow each other without a gap
        assert begin == expected
        assert begin <= end
        assert table.latest(begin, end) == end
        expected = table.after(end)
    assert expected == due
