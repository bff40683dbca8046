"""Tests of jobs on an attached cluster, from submission to bill, with real rounds, database and control plane."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from accounting.models import UsageSegment
from scheduling.backends.base import ClusterEvent
from scheduling.backends.kubernetes import objects
from scheduling.backends.network_sources import hidden_in
from scheduling.clusters.attaching import set_bare_pods, set_reachable
from scheduling.execution.reconcile import reconcile
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.submitting import submit_job
from scheduling.models import HeldGpu, Job, Lease, Node, ShareBalance
from scheduling.models.event_codes import EventCode
from scheduling.spec.job_spec import JobSpec, SpecError
from tests.cluster.api import JOBS, NODES, Api, Object
from tests.cluster.attached_lab import Lab
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.django_db]


def test_nodes_are_found_with_their_gpu_types_and_closed_ones_with_the_reason(
    lab: Lab, admin: Api, nodes: list[str]
) -> None:
    found = {node.name: node for node in Node.objects.filter(cluster=lab.cluster)}
    assert set(found) == set(nodes)
    assert {node.generation.name for node in found.values()} == {"A100", "V100"}
    assert sum(node.usable_gpus for node in found.values()) == 8 * len(nodes)
    admin.merge(f"{NODES}/{nodes[0]}", {"spec": {"unschedulable": True}})
    try:
        lab.until(lambda: node_state(nodes[0]) == ("closed", "cordoned"), "it is closed")
    finally:
        admin.merge(f"{NODES}/{nodes[0]}", {"spec": {"unschedulable": None}})
    lab.until(lambda: node_state(nodes[0]) == ("ready", ""), "it is open again")


def node_state(name: str) -> tuple[str, str]:
    return Node.objects.values_list("state", "state_reason").get(name=name)


def test_a_gang_runs_to_its_end_and_is_billed_for_its_gpus(lab: Lab) -> None:
    job = lab.send(gpus=4, workers=3)
    lab.fill()
    lab.reaches(job, Job.State.RUNNING)
    lease = lab.lease(job)
    held = HeldGpu.objects.filter(lease=lease).values_list("rank", "node__host")
    assert {(objects.rank_of(pod), pod["spec"]["nodeName"]) for pod in lab.pods(job)} == set(held)
    lab.annotate(job, run_for="0")
    lab.reaches(job, Job.State.SUCCEEDED)
    lease.refresh_from_db()
    assert lease.held_from <= lease.running_from <= lease.held_until
    billed = sum(segment.gpu_seconds for segment in UsageSegment.objects.filter(job_id=job.pk))
    assert float(billed) == pytest.approx(12 * (lease.held_until - lease.held_from).total_seconds(), abs=1e-4)


def contested(lab: Lab, nodes: Sequence[str]) -> tuple[list[Job], list[Job], list[Job]]:
    """Fills all nodes with Bob's jobs, then submits as many jobs as Charlie, who is entitled to half of the cluster.

    Returns three lists: Bob's jobs, Charlie's jobs, and those of Bob's jobs that must stop.
    """
    ours = [lab.send(gpus=8) for _ in nodes]
    lab.fill()
    for job in ours:
        lab.reaches(job, Job.State.RUNNING)
    theirs = [lab.send("charlie", gpus=8) for _ in nodes]
    lab.contest(ours[0])
    return ours, theirs, [job for job in ours if lab.states([job]) == [Job.State.STOPPING]]


def test_teams_take_turns_on_a_full_cluster_and_no_node_is_overcommitted(lab: Lab, nodes: list[str]) -> None:
    ours, theirs, stopped = contested(lab, nodes)
    # Half of the fifteen A100 nodes and half of the five V100 nodes change hands, rounded up or down. More nodes repay,
    # within a quantum, what Charlie is owed for the real time that her jobs waited.
    owed = sum(ShareBalance.objects.filter(tenant=lab.people.bio).values_list("owed", flat=True))
    repaid = owed / lab.cluster.effective_quantum / 8
    assert abs(len(stopped) - len(nodes) / 2 - repaid) <= 1
    running = Job.objects.filter(pk__in=[job.pk for job in theirs], state=Job.State.RUNNING)
    lab.until(lambda: running.count() == len(stopped), "half of the cluster is Charlie's")
    bound: dict[str, int] = {}
    for job in (*ours, *theirs):
        for pod in lab.pods(job):
            if not objects.has_ended(pod) and (node := pod["spec"].get("nodeName")):
                bound[node] = bound.get(node, 0) + 8
    assert bound == dict.fromkeys(nodes, 8)
    # The suspended jobs will continue with the same Job, on the same or other nodes.
    assert {lab.states([job])[0] for job in stopped} == {Job.State.SUSPENDED}


def test_bare_pods_take_turns_and_run_to_their_end_as_jobs_do_and_no_job_is_made(
    lab: Lab, nodes: list[str]
) -> None:
    set_bare_pods(actor=lab.people.ada, cluster=lab.cluster, bare_pods=True)
    ours, theirs, stopped = contested(lab, nodes)
    running = Job.objects.filter(pk__in=[job.pk for job in theirs], state=Job.State.RUNNING)
    assert stopped
    lab.until(lambda: running.count() == len(stopped), "half of the cluster is Charlie's")
    waiting = set(theirs) - set(running)
    for job in running:
        lab.annotate(job, run_for="0")
        lab.reaches(job, Job.State.SUCCEEDED)
    for job in waiting:
        cancel_job(actor=lab.people.charlie, job=job)
    lab.fill()
    for job in stopped:
        lab.reaches(job, Job.State.RUNNING)
        [pod] = lab.pods(job)
        assert (objects.epoch_of(pod), lab.lease(job).epoch) == (2, 2)
        first = job.leases.get(epoch=1)
        assert first.end_reason == "stopped"
        assert first.running_from
        assert first.held_from <= first.running_from <= first.held_until
    for job in (*ours, *theirs):
        assert lab.admin.items(JOBS.format(lab.home(job))) == []


def test_a_cancelled_bare_pod_ends(lab: Lab) -> None:
    set_bare_pods(actor=lab.people.ada, cluster=lab.cluster, bare_pods=True)
    job = lab.send()
    lab.fill()
    lab.reaches(job, Job.State.RUNNING)
    cancel_job(actor=lab.people.bob, job=job)
    lab.reaches(job, Job.State.CANCELLED)
    assert all(map(objects.has_ended, lab.pods(job)))


def test_a_cancelled_job_leaves_no_pod(lab: Lab) -> None:
    job = lab.send(workers=2)
    lab.fill()
    lab.reaches(job, Job.State.RUNNING)
    cancel_job(actor=lab.people.bob, job=job)
    lab.reaches(job, Job.State.CANCELLED)
    assert lab.pods(job) == []


def test_a_job_that_is_deleted_with_kubectl_is_cancelled_and_says_so(lab: Lab, admin: Api) -> None:
    job = lab.send(workers=2)
    lab.fill()
    lab.reaches(job, Job.State.RUNNING)
    path = f"{JOBS.format(lab.home(job))}/{objects.job_name(job.pk)}"
    admin.delete(path, propagationPolicy="Background")
    lab.reaches(job, Job.State.CANCELLED)
    assert job.events.filter(code=EventCode.DELETED).count() == 1
    assert not Lease.objects.filter(job=job, state__in=Lease.OPEN).exists()


def test_a_returning_watcher_finds_jobs_that_ended_meanwhile(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduling.execution.reconcile.HEARD_EVERY", timedelta(0))
    done, lost = lab.send(), lab.send()
    lab.fill()
    lab.reaches(done, Job.State.RUNNING)
    lab.reaches(lost, Job.State.RUNNING)
    lab.watch()  # also updates the cluster's last_observed_at when nothing has changed
    lab.cluster.refresh_from_db()
    heard = lab.cluster.last_observed_at
    assert heard
    lab.changes.close()
    lab.annotate(done, run_for="0")
    name = objects.job_name(done.pk)
    wait_for(
        lambda: objects.condition(lab.admin.get(f"{JOBS.format(lab.home(done))}/{name}"), "Complete"),
        what="its Job is complete",
    )
    lab.admin.delete(
        f"{JOBS.format(lab.home(lost))}/{objects.job_name(lost.pk)}", propagationPolicy="Background"
    )
    wait_for(lambda: not lab.pods(lost), what="the deleted one's pod is gone")
    lab.changes = lab.backend.changes(timeout=0.1)
    next(lab.changes)
    monkeypatch.setattr("scheduling.execution.reconcile.PATIENCE", timedelta(hours=1))
    reconcile(lab.cluster)  # as every watcher does at its start
    lab.reaches(done, Job.State.SUCCEEDED)
    assert lab.states([lost]) == [Job.State.RUNNING], "of what is not there at all only the database knows"
    missed = lab.lease(lost).missing_since
    assert missed
    monkeypatch.setattr("scheduling.execution.reconcile.PATIENCE", timedelta(0))
    reconcile(lab.cluster)
    assert lab.states([lost]) == [Job.State.SUSPENDED]
    assert heard <= lab.lease(lost).held_until < missed, "when it was last known to be there"


def test_a_new_watcher_sees_the_gpus_of_pods_whose_job_was_deleted_without_them(
    lab: Lab, admin: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = lab.send(workers=2)
    lab.fill()
    lab.reaches(job, Job.State.RUNNING)
    lab.annotate(job, stop_after="3600")
    lab.changes.close()
    jobs, name = JOBS.format(lab.home(job)), objects.job_name(job.pk)
    admin.delete(f"{jobs}/{name}", propagationPolicy="Orphan")
    wait_for(lambda: not admin.items(jobs, fieldSelector=f"metadata.name={name}"), what="its Job is gone")
    monkeypatch.setattr("scheduling.execution.reconcile.PATIENCE", timedelta(0))
    lab.changes = lab.backend.changes(timeout=0.1)
    next(lab.changes)
    reconcile(lab.cluster)
    assert lab.states([job]) == [Job.State.RUNNING], "they are alive"

    lab.until(lambda: all(map(is_told_to_go, lab.pods(job))), "nobody else would ever stop them")
    assert lab.states([job]) == [Job.State.RUNNING], "until they are gone"
    lab.annotate(job, stop_after="0")
    lab.reaches(job, Job.State.CANCELLED)
    assert lab.lease(job).end_reason == "deleted"


def is_told_to_go(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def test_the_next_job_can_reach_addresses_that_an_admin_has_opened(lab: Lab, admin: Api) -> None:
    set_reachable(actor=lab.people.ada, cluster=lab.cluster, ranges="0.0.0.0/0, 2001:db8::/32")
    job = lab.send()
    lab.fill()
    lab.reaches(job, Job.State.RUNNING)
    network = admin.get(f"/apis/networking.k8s.io/v1/namespaces/{lab.home(job)}/networkpolicies/fairlot")
    assert network["spec"]["egress"][-1] == {
        "to": [
            {"ipBlock": {"cidr": "0.0.0.0/0", "except": hidden_in("0.0.0.0/0")}},
            {"ipBlock": {"cidr": "2001:db8::/32"}},
        ]
    }


def test_the_next_job_cannot_reach_addresses_that_an_admin_has_closed_again(lab: Lab, admin: Api) -> None:
    """Proves that network policies no longer permit a range of addresses after an admin has closed the range again."""

    def open_ones() -> list[Object]:
        job = lab.send()
        lab.fill()
        lab.reaches(job, Job.State.RUNNING)
        network = admin.get(f"/apis/networking.k8s.io/v1/namespaces/{lab.home(job)}/networkpolicies/fairlot")
        return [peer["ipBlock"] for rule in network["spec"]["egress"][2:] for peer in rule["to"]]

    assert open_ones() == []
    set_reachable(actor=lab.people.ada, cluster=lab.cluster, ranges="10.0.0.0/8")
    assert open_ones() == [{"cidr": "10.0.0.0/8"}]
    set_reachable(actor=lab.people.ada, cluster=lab.cluster, ranges="")
    # The process that writes policies has cached the earlier ones, but must still write them again.
    assert open_ones() == []


def test_an_image_must_be_named(lab: Lab) -> None:
    spec = JobSpec(name="none", command="true")
    with pytest.raises(SpecError, match="enter the container image"):
        submit_job(actor=lab.people.bob, tenant=lab.people.astro, cluster=lab.cluster, spec=spec)


def test_an_event_about_a_job_is_on_its_time_line_once(
    lab: Lab, admin: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lab.send()
    lab.fill()
    lab.reaches(first, Job.State.RUNNING)
    quotas = f"/api/v1/namespaces/{lab.home(first)}/resourcequotas"
    admin.create(quotas, {"metadata": {"name": "few"}, "spec": {"hard": {"requests.nvidia.com/gpu": "2"}}})
    wait_for(lambda: admin.get(f"{quotas}/few").get("status", {}).get("used"), what="the quota counts")
    gang = lab.send(workers=3)
    lab.fill()
    told = gang.events.filter(
        detail__message__startswith="the quota few denies a pod: requests.nvidia.com/gpu=1 requested"
    )
    lab.until(told.exists, lambda: f"the quota is named: {lab.story(gang)}")
    # A new watcher receives the same events again.
    lab.changes.close()
    lab.changes = lab.backend.changes(timeout=0.1)
    heard: list[str] = []
    take = lab.backend.cluster_events

    def overheard() -> Sequence[ClusterEvent]:
        events = take()
        heard.extend(event.text for event in events)
        return events

    monkeypatch.setattr(lab.backend, "cluster_events", overheard)
    lab.until(lambda: any("the quota few" in text for text in heard), "it is heard again")
    assert told.count() == 1
    assert told.get().epoch == lab.lease(gang).epoch
    cancel_job(actor=lab.people.bob, job=gang)
    lab.reaches(gang, Job.State.CANCELLED)
