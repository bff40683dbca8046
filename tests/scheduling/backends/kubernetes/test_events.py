"""Events of Kubernetes are shown in plain words. The sample events are from real clusters of version 1.36."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.backends.kubernetes import objects
from scheduling.backends.kubernetes.cluster_cache import ClusterCache
from scheduling.backends.kubernetes.cluster_events import ClusterEvents
from scheduling.backends.kubernetes.events import (
    LONGEST,
    Denial,
    Events,
    denial,
    describe_node_event,
    describe_pod_event,
    job_of_pod,
    moment_of,
)


def event(reason: str, message: str, *, kind: str = "Pod", name: str = "", **more: Any) -> dict[str, Any]:
    name = name or f"{objects.job_name(7)}-2-x7k2p"
    return {
        "metadata": {"uid": "uid-1", "creationTimestamp": "2026-11-21T19:00:00Z"},
        "involvedObject": {"kind": kind, "name": name, "namespace": "fairlot-1", "uid": "job-uid"},
        "type": "Warning",
        "reason": reason,
        "message": message,
        "lastTimestamp": "2026-11-21T19:03:28Z",
        **more,
    }


@pytest.mark.parametrize(
    ("reason", "message", "words"),
    [
        (
            "Failed",
            'Failed to pull image "missing/image": rpc error: code = NotFound desc = not found',
            "the image missing/image cannot be pulled: rpc error: code = NotFound desc = not found",
        ),
        ("Failed", "Error: ErrImagePull", ""),
        ("Failed", "Error: ImagePullBackOff", ""),
        ("BackOff", 'Back-off pulling image "missing/image"', ""),
        (
            "Failed",
            'Error: secret "key" not found',
            'the container cannot be started: secret "key" not found',
        ),
        (
            "FailedScheduling",
            "0/20 nodes are available: 20 Insufficient nvidia.com/gpu. preemption: 0/20 nodes are available.",
            "no node accepts the pod: 0/20 nodes are available: 20 Insufficient nvidia.com/gpu.",
        ),
        (
            "FailedScheduling",
            "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled, "
            "one or more plugins asked to wait and no plugin rejected pod",
            "",
        ),
        ("FailedScheduling", "skip schedule deleting pod: a/b", ""),
        (
            "Evicted",
            "The node was low on resource: memory.",
            "the pod was evicted: The node was low on resource: memory.",
        ),
        ("NodeNotReady", "Node is not ready", "the pod's node is not ready"),
        (
            "TaintManagerEviction",
            "Marking for deletion Pod a/b",
            "the pod is removed because its node has a new taint",
        ),
        ("TaintManagerEviction", "Cancelling deletion of Pod a/b", ""),
        (
            "FailedMount",
            'MountVolume.SetUp failed for volume "data" : configmap "data" not found',
            'a volume cannot be mounted: MountVolume.SetUp failed for volume "data" : configmap "data" not found',
        ),
        (
            "OutOfcpu",
            "Node didn't have enough resource: cpu",
            "the node has too few resources left for the pod: Node didn't have enough resource: cpu",
        ),
        ("SomethingNew", "it broke", "the node reports SomethingNew: it broke"),
    ],
)
def test_events_of_pods_are_described(reason: str, message: str, words: str) -> None:
    assert describe_pod_event(event(reason, message)) == words


def test_nodes_that_run_out_of_memory_are_named() -> None:
    told = event("SystemOOM", "System OOM encountered, victim process: python", kind="Node", name="gpu-3")
    assert (
        describe_node_event(told)
        == "the node gpu-3 ran out of memory: System OOM encountered, victim process: python"
    )
    assert describe_node_event(event("Starting", "", kind="Node", name="gpu-3")) == ""


def denied(message: str) -> Denial:
    why = denial(event("FailedCreate", f"Error creating: {message}", kind="Job", name=objects.job_name(7)))
    assert why is not None
    return why


def test_a_quota_may_mend_itself_and_a_policy_may_not() -> None:
    name = f'"{objects.job_name(7)}-2-x7k2p"'
    quota = denied(
        f"pods {name} is forbidden: exceeded quota: two, requested: requests.nvidia.com/gpu=1, "
        "used: requests.nvidia.com/gpu=2, limited: requests.nvidia.com/gpu=2"
    )
    assert not quota.is_final
    assert quota.words == (
        "the quota two denies a pod: requests.nvidia.com/gpu=1 requested, requests.nvidia.com/gpu=2 used,"
        " requests.nvidia.com/gpu=2 allowed"
    )
    policy = denied(
        f"pods {name} is forbidden: ValidatingAdmissionPolicy 'no-sleepers' with binding 'no-sleepers' "
        "denied request: nobody sleeps on our GPUs"
    )
    assert policy == Denial(
        "the policy no-sleepers denies the job's pods: nobody sleeps on our GPUs",
        datetime(2026, 11, 21, 19, 3, 28, tzinfo=UTC),
        is_final=True,
    )
    assert denied(f'pods {name} is forbidden: violates PodSecurity "restricted:latest": x').is_final
    assert denied('admission webhook "x.example" denied the request: no').is_final
    account = denied(f'pods {name} is forbidden: error looking up service account a/job: "job" not found')
    assert not account.is_final
    assert name not in account.words
    assert denial(event("SuccessfulCreate", "Created pod: x", kind="Job")) is None


@given(job=st.integers(0, 2**40 - 1), rank=st.integers(0, 9999))
def test_a_pods_name_tells_its_job_and_its_rank(job: int, rank: int) -> None:
    assert job_of_pod(f"{objects.job_name(job)}-{rank}-ab1cd") == (job, 0, rank)
    assert job_of_pod(f"{objects.job_name(job, 3)}-{rank}-ab1cd") == (job, 3, rank), "of a gang with roles"
    assert job_of_pod(objects.pod_name(job)) == (job, 0, 0), "without a Job"


@given(name=st.text(st.sampled_from("fairlot-abc01"), max_size=24))
def test_other_names_are_no_ones(name: str) -> None:
    found = job_of_pod(name)
    assert found is None or name.startswith(f"{objects.job_name(*found[:2])}-{found[2]}")


def test_the_latest_moment_counts_in_each_way_of_writing_events() -> None:
    later = datetime(2026, 11, 21, 19, 5, tzinfo=UTC)
    series = {
        "series": {"count": 3, "lastObservedTime": "2026-11-21T19:05:00.000000Z"},
        "lastTimestamp": None,
    }
    assert moment_of(event("x", "y", **series)) == later
    assert moment_of(event("x", "y", lastTimestamp=None, eventTime="2026-11-21T19:05:00.000000Z")) == later


def test_an_endless_message_is_shortened() -> None:
    assert len(describe_pod_event(event("Evicted", "x" * 5000))) == LONGEST


def test_a_repeated_event_is_reported_once() -> None:
    events = Events(lambda: None)
    told = event("Evicted", "low on memory")
    refused = event("FailedCreate", "Error creating: no", kind="Job", name=objects.job_name(7))
    refused["metadata"] = {"uid": "uid-2"}
    events.replace([told, refused])
    events.put(told | {"count": 2})
    events.put(refused | {"count": 2})
    words, denials = events.take()
    assert [(word.job_id, word.text) for word in words] == [
        (7, "worker 2: the pod was evicted: low on memory"),
        (7, "a pod could not be created: no"),
    ]
    assert [job for job, *_ in denials] == [7, 7], "that it is still so is news for who waits for its pods"
    assert events.take() == ([], [])
    events.replace([told])
    assert events.take() == ([], [])
    events.put(refused)
    words, denials = events.take()
    assert (len(words), len(denials)) == (1, 1), "it is told anew after it was gone"
    stranger = event("Evicted", "low on memory", name="nginx-0")
    stranger["metadata"] = {"uid": "uid-3"}
    events.put(stranger)
    assert events.take() == ([], [])


def test_a_denial_reaches_the_cache_together_with_its_text() -> None:
    """The cache gets a denial (the reason why a pod could not be created) only when its text is ready for the timeline
    too. Otherwise the attempt could end before its timeline shows the reason."""
    known: list[str] = []

    class Nothing:
        def record_denial(self, uid: str, denial: Denial) -> None:
            known.append(uid)

        def notify(self) -> None:
            """Does nothing, because no thread waits for changes."""

        def gang(self, job_id: int) -> None:
            return None

    events = ClusterEvents(cast(ClusterCache, Nothing()))
    refused = event("FailedCreate", "Error creating: no", kind="Job", name=objects.job_name(7))
    events.mirrors[0].put(refused)
    assert known == []
    events.take()
    assert known == [refused["involvedObject"]["uid"]]


def test_an_event_that_precedes_its_attempt_waits_for_it() -> None:
    """An event that arrives before its attempt is known is kept until the attempt is known.

    A gang's Kubernetes Job is created first, and the attempt is written into it later. Events about the Job may arrive
    in between.
    """
    pod = objects.Pod(image="example/train", command=["train"], environment={}, gpus=1)
    made = objects.new_job(7, pod, workers=2, owner="ours")
    made["metadata"] |= {"uid": "job", "namespace": "fairlot-1"}
    view = ClusterCache()
    view.jobs.put(made | {"status": {}})
    events = ClusterEvents(view)
    events.mirrors[0].put(event("FailedCreate", "Error creating: no", kind="Job", name=objects.job_name(7)))
    assert events.take() == []
    attempt = objects.Attempt(1, str(uuid4()), "A100", ["node-1", "node-2"])
    begun = objects.new_job(7, pod, workers=2, owner="ours", begin=attempt)
    begun["metadata"] |= {"uid": "job", "namespace": "fairlot-1"}
    view.jobs.put(begun | {"status": {}})
    assert [(event.job_id, event.epoch) for event in events.take()] == [(7, 1)]
    assert events.take() == []
