"""Tests what happens to jobs whose node dies, is cordoned, is drained, changes or loses a GPU.

A job that must leave its node has one event that gives the reason, and continues or ends as it should.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from scheduling.backends.kubernetes import objects
from scheduling.core.event_texts import text_of
from scheduling.draining.actions import drain_node
from scheduling.models import HeldGpu, Job, Lease, Node
from tests.cluster.api import JOBS, NODES, PODS, Api, Object, Refused
from tests.cluster.attached_lab import Lab

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.django_db]

GPU = "nvidia.com/gpu"


@contextmanager
def changed(admin: Api, node: str, change: Object, back: Object, *, status: bool = False) -> Iterator[None]:
    path = f"{NODES}/{node}/status" if status else f"{NODES}/{node}"
    admin.merge(path, change)
    try:
        yield
    finally:
        admin.merge(path, back)


def annotated(value: str | None) -> Object:
    return {"metadata": {"annotations": {"test.fairlot/ready": value}}}


def run(lab: Lab, **shape: int) -> Job:
    job = lab.send(**shape)
    lab.fill()
    return lab.reaches(job, Job.State.RUNNING)


def nodes_of(job: Job) -> set[str]:
    held = HeldGpu.objects.filter(lease__job=job, lease__state__in=Lease.HOLDING)
    return set(held.values_list("node__name", flat=True))


def state(name: str) -> str:
    return Node.objects.get(name=name).state


def goes_on_elsewhere(lab: Lab, job: Job, away_from: str) -> None:
    """Does the work of scheduler, worker and watcher until the job runs again on nodes other than `away_from`."""

    def is_elsewhere() -> bool:
        lab.fill()
        job.refresh_from_db()
        return job.state == Job.State.RUNNING and away_from not in nodes_of(job)

    lab.until(is_elsewhere, lambda: f"it goes on elsewhere: {lab.story(job)}")


def told(job: Job, text: str) -> int:
    return sum(text in text_of(event) for event in job.events.all())


def test_a_gang_whose_node_dies_continues_elsewhere_and_the_dead_node_gets_nothing(
    lab: Lab, admin: Api
) -> None:
    lab.backend.patience_seconds = 1
    job = run(lab, workers=2, gpus=8)
    node = min(nodes_of(job))
    with changed(admin, node, annotated("false"), annotated(None)):
        lab.until(lambda: state(node) == Node.State.DOWN, "it is down")
        goes_on_elsewhere(lab, job, node)
        assert told(job, "was removed because its node has a new taint") == 1
        assert lab.lease(job).epoch == 2
    admin.merge(f"{NODES}/{node}/status", ready_again(admin, node))
    lab.until(lambda: state(node) == Node.State.READY, "it is back")


def ready_again(admin: Api, node: str) -> Object:
    conditions = admin.get(f"{NODES}/{node}")["status"]["conditions"]
    return {
        "status": {
            "conditions": [
                condition | ({"status": "True"} if condition["type"] == "Ready" else {})
                for condition in conditions
            ]
        }
    }


def test_a_cordoned_node_keeps_its_jobs_and_gets_no_new_ones(lab: Lab, admin: Api) -> None:
    job = run(lab, gpus=2)
    [node] = nodes_of(job)
    closed, opened = {"spec": {"unschedulable": True}}, {"spec": {"unschedulable": None}}
    with changed(admin, node, closed, opened):
        lab.until(lambda: state(node) == Node.State.CLOSED, "it is closed")
        another = run(lab, gpus=2)
        lab.pass_time(lab.cluster.effective_quantum)
        lab.quantum()
        lab.work()
        assert nodes_of(another).isdisjoint({node})
        assert lab.states([job]) == [Job.State.RUNNING]
        assert nodes_of(job) == {node}
    lab.until(lambda: state(node) == Node.State.READY, "it is open again")


def test_a_gang_that_kubectl_drains_from_a_node_continues_elsewhere(lab: Lab, admin: Api) -> None:
    job = run(lab, workers=2, gpus=8)
    node = min(nodes_of(job))
    with changed(admin, node, {"spec": {"unschedulable": True}}, {"spec": {"unschedulable": None}}):
        lab.until(lambda: state(node) == Node.State.CLOSED, "it is closed")
        for pod in lab.pods(job):
            if pod["spec"]["nodeName"] == node:
                name = pod["metadata"]["name"]
                eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
                admin.create(f"{PODS.format(lab.home(job))}/{name}/eviction", eviction)
        goes_on_elsewhere(lab, job, node)
    assert told(job, "was evicted") == 1
    lab.until(lambda: state(node) == Node.State.READY, "it is open again")


def test_a_gang_whose_pod_is_deleted_with_kubectl_gets_another_attempt(lab: Lab, admin: Api) -> None:
    job = run(lab, workers=2, gpus=1)
    lab.annotate(job, stop_after="3600")
    pod = lab.pods(job)[1]
    admin.delete(f"{PODS.format(lab.home(job))}/{pod['metadata']['name']}")
    path = f"{JOBS.format(lab.home(job))}/{objects.job_name(job.pk)}"
    lab.until(lambda: admin.get(path)["spec"]["suspend"], "the others are told to stop, too")
    lab.annotate(job, stop_after="0")
    lab.until(
        lambda: (lab.fill(), lab.lease(job).epoch == 2 and lab.states([job]) == [Job.State.RUNNING])[1],
        lambda: lab.story(job),
    )
    assert told(job, f"worker 1 on {pod['spec']['nodeName']} was deleted, but not by Fairlot") == 1


def test_a_relabelled_node_changes_its_gpu_type_when_its_jobs_have_left(lab: Lab, admin: Api) -> None:
    job = run(lab, gpus=8)
    [node] = nodes_of(job)
    before = admin.get(f"{NODES}/{node}")["metadata"]["labels"]["nvidia.com/gpu.product"]
    other = "NVIDIA-H100-80GB-HBM3"

    def label(product: str) -> Object:
        return {"metadata": {"labels": {"nvidia.com/gpu.product": product}}}

    with changed(admin, node, label(other), label(before)):
        lab.until(lambda: told(job, f"{node} has other GPUs now") == 1, "the job is told")
        goes_on_elsewhere(lab, job, node)
        lab.until(
            lambda: (
                (found := Node.objects.get(name=node)).state == Node.State.READY
                and found.generation.name == "H100"
            ),
            "it is a node of the other generation",
        )


def test_gangs_leave_a_node_that_has_lost_one_of_their_gpus(lab: Lab, admin: Api) -> None:
    job = run(lab, gpus=8)
    [node] = nodes_of(job)
    lost = {"status": {"allocatable": {GPU: "7"}}}
    with changed(admin, node, lost, {"status": {"allocatable": {GPU: "8"}}}, status=True):
        lab.until(lambda: Node.objects.get(name=node).failed_gpus == 1, "it is known")
        assert told(job, f"{node} lost GPUs: 7 of 8 work") == 1
        goes_on_elsewhere(lab, job, node)
        small = run(lab, gpus=7)
        assert Node.objects.get(name=node).usable_gpus == 7
        assert small.state == Job.State.RUNNING
    lab.until(lambda: Node.objects.get(name=node).failed_gpus == 0, "it is whole again")


@pytest.mark.parametrize("attempt", range(3))
def test_a_job_that_ends_while_it_is_suspended_has_one_end(lab: Lab, attempt: int) -> None:
    job = run(lab)
    drained = HeldGpu.objects.get(lease__job=job).node
    chance = random.Random(attempt)
    acts = [lambda: end(lab, job), lambda: drain(lab, drained)]
    chance.shuffle(acts)
    for act in acts:
        act()
    lab.until(
        lambda: lab.states([job])[0] in (Job.State.SUCCEEDED, Job.State.SUSPENDED), lambda: lab.story(job)
    )
    lease = Lease.objects.get(job=job)
    assert lease.state == Lease.State.CLOSED
    job.refresh_from_db()
    assert (job.state == Job.State.SUCCEEDED) == (lease.end_reason == "succeeded")
    if job.state == Job.State.SUSPENDED:  # a suspended job lost no success: it runs again to its end
        assert lease.end_reason == "stopped"


def end(lab: Lab, job: Job) -> None:
    with suppress(Refused):  # the node's pod is already gone
        lab.annotate(job, run_for="0")


def drain(lab: Lab, node: Node) -> None:
    drain_node(actor=lab.people.olga, node=node, reason="", mode="now")
    lab.work()
