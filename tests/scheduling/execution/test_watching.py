"""`manage.py watch` continues after any failure, reports it, and retries after a delay that grows with each failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError

from accounting.core.clock import now_from_database
from scheduling.core.run_apart import MOST_FAILURES, apart, note_failure
from scheduling.management.commands import watch
from scheduling.models import Cluster
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> World:
    return world(v100=4)


class Turns:
    """A backend that reports `times` changes of the cluster and then ends, and does nothing else."""

    def __init__(self, times: int) -> None:
        self.times = times

    def prepare(self) -> None:
        pass

    def changes(self, *, timeout: float) -> Iterator[None]:
        yield from [None] * self.times


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the watcher run in the test's thread: without its advisory lock, and without closing the test's database
    connection. Its steps `reconcile`, `note_use` and `note_metrics` do nothing."""
    monkeypatch.setattr(watch, "try_lock_watch", lambda cluster_id: True)
    monkeypatch.setattr(watch.connection, "close", lambda: None)
    monkeypatch.setattr(watch, "reconcile", lambda cluster: None)
    monkeypatch.setattr(watch, "note_use", lambda cluster, backend: None)
    monkeypatch.setattr(watch, "note_metrics", lambda cluster, backend: None)


def failure_of(lab: World) -> str:
    return Cluster.objects.get(pk=lab.cluster.pk).failure


@pytest.mark.usefixtures("alone")
def test_a_failing_step_is_reported_and_delayed_while_others_continue(
    lab: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []

    def fails(cluster: Cluster, backend: Any) -> None:
        taken.append("fails")
        raise KeyError("grace")

    def works(cluster: Cluster, backend: Any) -> None:
        taken.append("works")

    backend = Turns(3)
    monkeypatch.setattr(watch, "backend_for", lambda cluster: backend)
    monkeypatch.setattr(watch, "FOLLOWING", (fails, works))
    before = now_from_database()
    watch._watch(lab.cluster.pk, threading.Event(), {})
    assert taken == ["fails", "works", "works", "works"]
    assert "KeyError: 'grace'" in failure_of(lab)
    assert Cluster.objects.get(pk=lab.cluster.pk).failed_at >= before


@pytest.mark.usefixtures("alone")
def test_whatever_breaks_it_off_it_begins_again_later_each_time(
    lab: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubles: list[Exception] = [ValueError("odd"), OperationalError("away"), RecursionError(), LookupError()]
    rests: list[float] = []

    def prepared(cluster: Cluster) -> Turns:
        if troubles:
            raise troubles.pop(0)
        return Turns(1)

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            rests.append(timeout or 0.0)
            return False

    monkeypatch.setattr(watch, "backend_for", prepared)
    monkeypatch.setattr(watch, "FOLLOWING", ())
    passes: dict[int, float] = {}
    began = time.monotonic()
    watch._watch(lab.cluster.pk, Stop(), passes)
    assert rests == [2.0, 4.0, 8.0, 16.0]
    assert passes[lab.cluster.pk] >= began
    assert "LookupError" in failure_of(lab)


def test_rests_have_an_end() -> None:
    assert [watch._rest(failures) for failures in (0, 1, 6, 10_000)] == [0.0, 2.0, 60.0, 60.0]


@pytest.mark.parametrize("bad", [set(), {0}, {3, 4}, set(range(7))])
def test_batches_leave_out_items_that_fail(lab: World, bad: set[int]) -> None:
    def double(some: Any) -> list[int]:
        if bad & set(some):
            raise ArithmeticError("no good")
        return [2 * one for one in some]

    assert sorted(apart(lab.cluster.pk, range(7), double)) == [2 * one for one in range(7) if one not in bad]
    assert ("ArithmeticError: no good" in failure_of(lab)) is bool(bad)


def test_one_cause_for_all_costs_a_pass_no_more_the_more_there_are(lab: World) -> None:
    tried: list[int] = []

    def fails(some: Any) -> list[int]:
        tried.append(len(some))
        raise ArithmeticError("no good")

    assert apart(lab.cluster.pk, range(1024), fails) == []
    assert tried.count(1) == MOST_FAILURES
    assert len(tried) < 3 * MOST_FAILURES


@pytest.mark.parametrize("trouble", [OperationalError, InterfaceError])
def test_a_failure_that_cannot_be_reported_ends_no_watcher(
    lab: World, monkeypatch: pytest.MonkeyPatch, trouble: type[Exception]
) -> None:
    def away(**_: Any) -> None:
        raise trouble

    monkeypatch.setattr(watch, "note_failure", away)
    watch._tell(lab.cluster.pk, "it broke off", trouble())


def test_a_database_that_is_away_leaves_nothing_out(lab: World) -> None:
    def away(some: Any) -> list[int]:
        raise OperationalError

    with pytest.raises(OperationalError):
        apart(lab.cluster.pk, [1, 2], away)
    assert failure_of(lab) == ""


def test_every_kind_of_trouble_can_be_reported(lab: World) -> None:
    note_failure(cluster_id=lab.cluster.pk, what="w" * 5000, error=ValueError("a\0b\ud800" * 1000))
    assert failure_of(lab).startswith("www")
