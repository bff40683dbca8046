"""Members at work stop their sweep if they are good enough, and stop early if they are worse than the others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction
from hypothesis import given
from hypothesis import strategies as st

from accounting.core.clock import now_from_database
from accounting.models import AuditEvent
from scheduling.backends.base import End
from scheduling.backends.summaries import of_value
from scheduling.core.event_texts import end_text_of
from scheduling.metrics.reading import JobMetrics, Series
from scheduling.metrics.recording import Report, lock_streams, store
from scheduling.metrics.reported import Reported
from scheduling.models import Job, MetricStream, Sweep, SweepMember
from scheduling.sweeps import controller
from scheduling.sweeps.actions import run_failed_again
from scheduling.sweeps.stopping import LEAST_OTHERS, LOOK_EVERY, look_at, outdone_in
from tests.scheduling.swept import Logs, array, end, living, make, run, step
from tests.scheduling.world import World, world

SOURCE = MetricStream.Source.OUTPUT


def reported(losses: list[float]) -> JobMetrics:
    """Returns the metrics of a job that printed a loss for each of the steps 0, 10, 20 and so on."""
    points = {10.0 * number: of_value(value) for number, value in enumerate(losses)}
    return JobMetrics(1, datetime(2026, 1, 1, tzinfo=UTC), 10, 0, [Series("loss", SOURCE, points)], {})


def outdone(
    losses: dict[int, list[float]], *, after: float = 0, at_work: list[int] | None = None
) -> dict[int, float]:
    jobs = {job: reported(values) for job, values in losses.items()}
    return outdone_in(
        jobs,
        metric="loss",
        higher_is_better=False,
        after=after,
        at_work=list(jobs) if at_work is None else at_work,
    )


GOOD = [3.0, 2.0, 1.0]
TRACKS = st.lists(st.lists(st.integers(0, 50).map(float), min_size=1, max_size=6), min_size=1, max_size=8)


def test_a_member_is_compared_at_its_own_step_with_what_the_others_had_on_average_until_then() -> None:
    others = {number: [3.0, 2.0, 1.0, 0.0] for number in (1, 2, 3)}
    # At step 10 the others had 2.5 on average, whatever they reach later.
    assert outdone(others | {4: [3.0, 2.6]}, at_work=[4]) == {4: 10.0}
    assert outdone(others | {4: [3.0, 2.5]}, at_work=[4]) == {}, "only strictly worse"
    assert outdone(others | {4: [2.0, 9.0]}, at_work=[4]) == {}, "its best value counts"
    assert outdone(others | {4: [9.0, 9.0]}, at_work=[]) == {}
    assert outdone(others | {4: [9.0, 9.0]}, at_work=[4], after=11) == {}
    assert outdone(others | {4: [9.0, 9.0]}, at_work=[4, 99], after=10) == {4: 10.0}


def test_nobody_is_compared_with_few_others_or_without_steps() -> None:
    few = dict.fromkeys(range(1, LEAST_OTHERS), GOOD)
    assert outdone(few | {9: [9.0, 9.0]}) == {}
    assert outdone(few | {7: [1.0], 9: [9.0, 9.0]}) == {}, "7 has not come as far"
    others = {job: reported(GOOD) for job in range(5)}
    assert outdone_in(others, metric="acc", higher_is_better=False, after=0, at_work=[0]) == {}
    assert outdone_in({}, metric="loss", higher_is_better=False, after=0, at_work=[]) == {}


@given(TRACKS)
def test_the_best_member_is_never_outdone_and_the_goal_is_symmetric(tracks: list[list[float]]) -> None:
    losses = dict(enumerate(tracks))
    found = outdone(losses)
    lowest = [job for job, values in losses.items() if min(values) == min(map(min, tracks))]
    # A value that nobody ever beats is at most every average.
    assert not found.keys() & {job for job in lowest if min(losses[job][:1]) == min(losses[job])}
    gains = {job: reported([-value for value in values]) for job, values in losses.items()}
    assert found == outdone_in(gains, metric="loss", higher_is_better=True, after=0, at_work=list(gains))
    assert set(outdone(losses, after=15)) <= set(found)


# --- the controller ------------------------------------------------------------------------------


@pytest.fixture
def lab() -> World:
    return world(v100=5)


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Logs:
    found = Logs()
    monkeypatch.setattr(controller, "backend_for", lambda cluster: found)
    return found


def record(job: Job, losses: list[float]) -> None:
    """Stores what a job printed: a loss for each of the steps 0, 10, 20 and so on."""
    begins = now_from_database() - timedelta(hours=1)
    reports = [
        Report(
            job.pk,
            number,
            begins + timedelta(seconds=10 * number),
            {"loss": of_value(loss), "step": of_value(10.0 * number)},
        )
        for number, loss in enumerate(losses)
    ]
    by_step = Reported()
    for report in reports:
        values = {name: value.last for name, value in report.values.items()}
        by_step.add_line(values, attempt=1, at=report.at.timestamp())
    with transaction.atomic():
        store(lock_streams(SOURCE, {job.pk}), reports, {job.pk: by_step})


def index_of(job: Job) -> int:
    return SweepMember.objects.get(job=job).index


@pytest.mark.django_db
def test_a_running_member_that_meets_the_rule_stops_the_sweep_and_goes_on(lab: World, logs: Logs) -> None:
    sweep = step(make(lab, array(30), metric="loss", stop_at=0.1, stop_cancels=True))
    first, second, *_ = run(lab)
    record(first, [0.5, 0.2])
    assert step(sweep).state == "running"
    record(second, [0.5, 0.1])
    assert step(sweep).state == "running", "metrics are looked at every half a minute"
    Sweep.objects.update(looked_at=now_from_database() - LOOK_EVERY)
    step(sweep)
    index = index_of(second)
    assert (sweep.state, sweep.stopped_by) == ("stopped", index)
    assert AuditEvent.objects.get(verb="sweep.stop").after == {"member": index, "loss": 0.1}
    lab.carry_out()
    step(sweep)
    assert living(sweep) == [second]
    assert look_at(sweep.pk) is None
    logs.texts[second.pk] = b"loss=0.1"
    end(lab, second)
    step(sweep)
    assert sweep.ended_at
    assert sweep.counts["succeeded"] == 1


@pytest.mark.django_db
def test_a_member_that_is_worse_than_the_median_stops_early_and_the_next_one_comes(
    lab: World, logs: Logs
) -> None:
    sweep = step(make(lab, array(30), metric="loss", median_after=10, at_once=5))
    *good, bad = run(lab)
    for job in good:
        record(job, [3.0, 2.0, 1.0])
    record(bad, [3.0])
    assert step(sweep).counts["active"] == 5
    record(bad, [3.0, 9.0, 9.0])
    Sweep.objects.update(looked_at=None)
    step(sweep)
    member = SweepMember.objects.get(job=bad)
    assert (member.state, member.outdone_at) == ("active", 20.0)
    lab.carry_out()
    step(sweep)
    member.refresh_from_db()
    bad.refresh_from_db()
    assert (sweep.state, member.state, sweep.counts["active"], sweep.counts["stopped"]) == (
        "running",
        "stopped",
        5,
        1,
    )
    assert end_text_of(bad) == (
        "Stopped early: at step 20, loss was worse than the median of the other members of the sweep “tune”"
    )
    # It still counts for the others, and no member stops twice.
    Sweep.objects.update(looked_at=None)
    look = look_at(sweep.pk)
    assert look is not None
    assert look.outdone == {}


@pytest.mark.django_db
def test_a_failed_member_that_runs_again_begins_without_its_old_mark(lab: World, logs: Logs) -> None:
    sweep = step(make(lab, array(1), metric="loss", median_after=0))
    [job] = run(lab)
    SweepMember.objects.update(outdone_at=5)
    end(lab, job, End.FAILED)
    assert step(sweep).counts == {"failed": 1}
    run_failed_again(actor=lab.people.bob, sweep=sweep)
    assert SweepMember.objects.get().outdone_at is None


@pytest.mark.django_db
def test_sweeps_without_such_rules_are_not_looked_at(lab: World, logs: Logs) -> None:
    assert look_at(make(lab, metric="loss").pk) is None
    assert look_at(make(lab).pk) is None
    found = look_at(make(lab, metric="loss", median_after=0, stop_at=1.0).pk)
    assert found is not None
    assert (found.latest, found.outdone) == ({}, {})
