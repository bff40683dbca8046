"""A job's page says how the job goes on after a preemption, only from what is known of it."""

from __future__ import annotations

from typing import Any

import pytest

from scheduling.backends.base import End, Phase
from scheduling.jobs.restarts import continuation_of
from scheduling.models import Cluster, Job, Lease, Operation
from tests.scheduling.world import World, start, world

pytestmark = pytest.mark.django_db(transaction=True)


def again(lab: World, job: Job, **facts: Any) -> Job:
    """Lets the job lose its GPUs and start its next attempt, of which `facts` are observed."""
    lab.see(lab.lease(job), Phase.ENDED, end=End.LOST, ended_age=0.0)
    Job.objects.filter(pk=job.pk).update(not_before=None)
    lab.fill()
    lease = lab.lease(job)
    assert lease.state == Lease.State.STARTING
    lab.tried(lease)
    lab.see(lease, Phase.RUNNING, running_age=0.0, **facts)
    return Job.objects.select_related("cluster").get(pk=job.pk)


def test_a_job_without_checkpoints_starts_from_the_beginning_as_far_as_is_known() -> None:
    found = continuation_of(start(world()))
    assert found.needs_help
    assert "starts from the beginning, unless its program reads its own checkpoint" in found.sentence


def test_a_job_with_checkpoints_says_whether_one_was_ever_found() -> None:
    lab = world()
    job = start(lab, checkpoint="step-*.pt")
    first = continuation_of(job)
    assert not first.needs_help
    assert first.sentence.endswith("the last that matches step-*.pt.")
    without = continuation_of(again(lab, job))
    assert without.needs_help
    assert without.sentence.endswith("No attempt has found a complete one yet.")
    resumed = continuation_of(again(lab, job, resumed_from="step-5.pt"))
    assert not resumed.needs_help
    assert resumed.sentence.endswith("Attempt 3 resumed from step-5.pt.")


def test_a_cluster_that_freezes_keeps_a_job_unless_the_job_is_elastic() -> None:
    lab = world(slicing=Cluster.Slicing.FREEZE)
    assert "frozen" in continuation_of(start(lab)).sentence
    assert continuation_of(start(lab, max_workers=2)).needs_help


@pytest.mark.parametrize("slicing", [Cluster.Slicing.FREEZE, Cluster.Slicing.AUTO])
def test_no_gang_on_kubernetes_is_frozen_whatever_is_set(slicing: str) -> None:
    lab = world(slicing=slicing)
    job = start(lab, gpus=4)
    lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
    Cluster.objects.update(backend=Cluster.Backend.KUBERNETES)
    lab.contest(job)
    assert lab.lease(job).operations.latest("pk").verb == Operation.Verb.STOP
    says = continuation_of(Job.objects.select_related("cluster").get(pk=job.pk)).sentence
    assert "frozen" not in says


@pytest.mark.parametrize(
    ("pattern", "verb"), [("", Operation.Verb.FREEZE), ("step-*.pt", Operation.Verb.STOP)]
)
def test_auto_freezes_only_jobs_that_cannot_resume(pattern: str, verb: str) -> None:
    lab = world(slicing=Cluster.Slicing.AUTO)
    job = start(lab, gpus=4, checkpoint=pattern)
    lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
    lab.contest(job)
    assert lab.lease(job).operations.latest("pk").verb == verb
    says = continuation_of(Job.objects.select_related("cluster").get(pk=job.pk)).sentence
    assert ("frozen" in says) is (verb == Operation.Verb.FREEZE)
