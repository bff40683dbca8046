"""Each due time runs once, even if processes are killed, several workers run schedules, or one schedule fails."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.db import connection

from accounting.models import AuditEvent
from scheduling.models import Job
from scheduling.schedules import due_runs
from tests.scheduling.scheduled import DAY, HOUR, NOON, Clock, make, spec, terms, tick, told
from tests.scheduling.world import World, world
from tests.waiting import PATIENCE

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> World:
    return world(v100=4)


class Killed(BaseException):
    """Stands for a kill of the process. `killed_at` raises it, and then closes the database connection as the kill of a
    process would."""


def killed_at(statement: int, work: Callable[[], object]) -> bool:
    """Runs `work`, and raises Killed in place of its SQL statement number `statement`, counted from 1.

    Returns True if Killed was raised, False if `work` ended before.
    """
    seen = 0

    def count(execute: Any, *args: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == statement:
            raise Killed
        return execute(*args)

    try:
        with connection.execute_wrapper(count):
            work()
    except Killed:
        return True
    finally:
        connection.close()
    return False


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("overlap", ["allow", "replace"])
def test_killed_at_any_statement_nothing_is_run_twice_and_nothing_is_lost(clock: Clock, overlap: str) -> None:
    lab = world(v100=4)
    schedule = make(lab, terms(missed="all", catch_up_seconds=86_400, overlap=overlap))
    statement, day = 1, 0
    while True:
        clock(NOON + day * DAY + HOUR)
        before = Job.objects.count()
        died = killed_at(statement, tick)
        tick()
        tick()
        runs = list(schedule.runs.order_by("due_at"))
        assert [run.due_at for run in runs] == [NOON + number * DAY for number in range(day + 1)]
        assert Job.objects.count() == before + 1 == day + 1
        assert {run.outcome for run in runs} == {"submitted"}
        assert Job.objects.unfinished().count() == (day + 1 if overlap == "allow" else 1)
        assert AuditEvent.objects.filter(verb="job.submit").count() == day + 1
        if not died:
            break
        statement, day = statement + 1, day + 1
    assert statement > 10


def at_once(*verbs: Callable[[], object]) -> list[BaseException | None]:
    barrier = Barrier(len(verbs))

    def run(verb: Callable[[], object]) -> None:
        try:
            connection.ensure_connection()
            barrier.wait(timeout=PATIENCE)
            verb()
        finally:
            connection.close()

    with ThreadPoolExecutor(len(verbs)) as pool:
        return [work.exception(timeout=PATIENCE) for work in [pool.submit(run, verb) for verb in verbs]]


@pytest.mark.django_db(transaction=True)
def test_several_workers_at_the_same_schedules_run_each_due_time_once(clock: Clock) -> None:
    lab = world(v100=4)
    made = [make(lab, terms(missed="all", catch_up_seconds=4 * 86_400)) for _ in range(3)]
    clock(NOON + 3 * DAY + HOUR)
    assert at_once(*[tick] * 4) == [None] * 4
    tick()  # runs what the workers skipped because another worker had locked the rows
    assert Job.objects.count() == 3 * 4
    for schedule in made:
        assert [run.due_at for run in schedule.runs.order_by("due_at")] == [NOON + n * DAY for n in range(4)]


def test_the_trouble_of_one_does_not_keep_the_others_waiting(
    lab: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = make(lab, spec=spec(name="bad")), make(lab, spec=spec(name="good"))
    real = due_runs.submit_stored

    def stumble(**asked: Any) -> Job:
        if asked["data"]["name"] == "bad":
            raise ZeroDivisionError
        return real(**asked)

    monkeypatch.setattr(due_runs, "submit_stored", stumble)
    clock(NOON)
    with pytest.raises(ZeroDivisionError):
        tick()
    assert (len(told(bad)), len(told(good))) == (0, 1)
    monkeypatch.undo()
    clock(NOON)
    tick()
    assert (len(told(bad)), len(told(good))) == (1, 1)
