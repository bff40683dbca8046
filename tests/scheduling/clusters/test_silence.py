"""While a cluster does not answer, no round decides for it, and failed orders do not count as failures of jobs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from accounting.core.clock import now_from_database
from scheduling.backends.base import Gang, Unanswered
from scheduling.execution import operations
from scheduling.execution.operations import perform_operations
from scheduling.models import Cluster, Job, Lease, Operation
from scheduling.models.clusters import SILENCE
from scheduling.rounds.actions import run_round
from tests.scheduling.world import OneByOne, World, world

pytestmark = pytest.mark.django_db


class Silent(OneByOne):
    """A backend whose API server cannot be reached."""

    orders = 0

    def start(self, gang: Gang) -> None:
        self.orders += 1
        raise Unanswered("the API server does not answer")


@pytest.fixture
def lab() -> World:
    made = world(v100=2)
    Cluster.objects.filter(pk=made.cluster.pk).update(backend=Cluster.Backend.KUBERNETES)
    made.cluster.refresh_from_db()
    return made


def submit(lab: World) -> Job:
    return lab.submit(lab.people.bob, lab.people.astro, environment="example/train")


def heard(lab: World, *, ago: timedelta) -> None:
    at = now_from_database() - ago
    Cluster.objects.filter(pk=lab.cluster.pk).update(last_observed_at=at)


def test_rounds_wait_until_something_is_known_and_while_nothing_is_heard(lab: World) -> None:
    submit(lab)
    assert run_round(cluster_id=lab.cluster.pk) is None, "never heard of"
    heard(lab, ago=SILENCE * 2)
    assert run_round(cluster_id=lab.cluster.pk) is None, "not lately"
    heard(lab, ago=timedelta(0))
    assert run_round(cluster_id=lab.cluster.pk) is not None


def test_an_order_without_an_answer_ends_rounds_until_the_cluster_is_heard_of_again(
    lab: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Silent()
    monkeypatch.setattr(operations, "backend_for", lambda cluster: server)
    job = submit(lab)
    heard(lab, ago=timedelta(seconds=1))
    assert run_round(cluster_id=lab.cluster.pk) is not None
    for _ in range(operations.MOST_ATTEMPTS + 3):
        Operation.objects.update(not_before=now_from_database())
        assert perform_operations(cluster=lab.cluster, log_limit_bytes=1) == 1
    assert server.orders == operations.MOST_ATTEMPTS + 3
    assert lab.states([job]) == [Job.State.STARTING], "it is not the job's fault"
    submit(lab)
    assert run_round(cluster_id=lab.cluster.pk) is None
    heard(lab, ago=timedelta(seconds=-1))
    assert run_round(cluster_id=lab.cluster.pk) is not None


def test_a_gang_that_may_have_started_holds_its_gpus_until_it_is_known_to_have_stopped(
    lab: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(Silent):
        def start(self, gang: Gang) -> None:
            raise OSError("refused")

        def stop(self, **lease: object) -> None:
            raise Unanswered("the API server does not answer")

    monkeypatch.setattr(operations, "backend_for", lambda cluster: Refusing())
    job = submit(lab)
    lab.fill()
    Operation.objects.update(attempts=operations.MOST_ATTEMPTS)
    perform_operations(cluster=lab.cluster, log_limit_bytes=1)
    assert lab.states([job]) == [Job.State.STARTING]
    assert Lease.objects.get(job=job).state == Lease.State.STARTING
