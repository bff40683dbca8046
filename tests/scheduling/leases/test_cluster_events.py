"""A cluster's events about a job appear in the job's timeline, each of them once per attempt."""

from __future__ import annotations

from datetime import timedelta

import pytest

from accounting.core.clock import now_from_database
from scheduling.backends.base import ClusterEvent
from scheduling.core.event_texts import text_of
from scheduling.leases.cluster_events import KIND, MOST, note_cluster_events
from scheduling.models import Job
from tests.scheduling.world import World, start, world

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> World:
    return world(v100=4)


def event(job: Job, text: str, *, source: str = "uid-1", epoch: int = 1, age: float = 0.0) -> ClusterEvent:
    return ClusterEvent(source, job.pk, epoch, text, age)


def note(lab: World, *events: ClusterEvent) -> int:
    return note_cluster_events(cluster_id=lab.cluster.pk, events=events)


def notes(job: Job) -> list[tuple[int, str]]:
    return [(event.epoch, text_of(event)) for event in job.events.filter(kind=KIND).order_by("id")]


def test_a_repeated_event_is_recorded_once_per_attempt(lab: World) -> None:
    job = start(lab)
    evicted = event(job, "the pod was evicted")
    assert note(lab, evicted, evicted, event(job, "the pod was evicted", source="uid-2")) == 1
    assert note(lab, evicted) == 0, "a watcher that was restarted hears it again"
    assert note(lab, event(job, "the pod was evicted", epoch=2)) == 0, "nor is it another turn's by then"
    assert note(lab, event(job, "the pod was evicted", source="uid-3", epoch=2)) == 1
    assert notes(job) == [(1, "the pod was evicted"), (2, "the pod was evicted")]


def test_notes_say_when_it_happened_and_never_before_the_job_was_there(lab: World) -> None:
    job = start(lab)
    Job.objects.filter(pk=job.pk).update(created_at=now_from_database() - timedelta(seconds=500))
    job.refresh_from_db()
    note(lab, event(job, "late", source="a", age=100.0), event(job, "early", source="b", age=1e9))
    early, late = job.events.filter(kind=KIND).order_by("at")
    assert (text_of(early), early.at) == ("early", job.created_at)
    assert (now_from_database() - late.at).total_seconds() == pytest.approx(100, abs=60)
    assert notes(job) == [(1, "early"), (1, "late")]


def test_a_cluster_that_says_too_much_is_heard_no_more_in_that_turn(lab: World) -> None:
    job = start(lab)
    flood = [event(job, f"trouble {number}", source=f"uid-{number}") for number in range(3 * MOST)]
    assert note(lab, *flood[:MOST], *flood[MOST:]) == MOST
    assert note(lab, *flood) == 0
    assert note(lab, event(job, "trouble", source="next", epoch=2)) == 1


def test_jobs_of_other_clusters_and_unknown_ones_are_left_alone(lab: World) -> None:
    job = start(lab)
    assert note_cluster_events(cluster_id=lab.cluster.pk + 1, events=[event(job, "not yours")]) == 0
    assert note(lab, ClusterEvent("uid-1", job.pk + 1000, 1, "nobody's", 0.0)) == 0
    assert notes(job) == []
