"""The watcher handles events on Kubernetes Jobs and pods correctly in whatever order they arrive. These tests need no
cluster."""

from __future__ import annotations

import math
import threading
from typing import Any
from uuid import uuid4

import pytest

from scheduling.backends.base import End, Phase
from scheduling.backends.kubernetes import objects
from scheduling.backends.kubernetes.api import Api
from scheduling.backends.kubernetes.cluster_cache import ClusterCache
from scheduling.backends.kubernetes.gang_status import start_obstacle
from scheduling.backends.kubernetes.gang_ungater import GangUngater
from scheduling.backends.kubernetes.orders import Outcome

POD = objects.Pod(image="example/train", command=["train"], environment={}, gpus=1)
TOKEN = uuid4()
JOB_ID = 12
NOWHERE = {
    "current-context": "it",
    "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    "clusters": [{"name": "it", "cluster": {"server": "https://127.0.0.1:9"}}],
    "users": [{"name": "it", "user": {}}],
}


def job(**status: Any) -> dict[str, Any]:
    """Returns an unsuspended Kubernetes Job with one worker, and with `status` as the Job's status."""
    begin = objects.Attempt(1, str(TOKEN), "A100", ["node-1"])
    made = objects.new_job(JOB_ID, POD, workers=1, owner="ours", begin=begin)
    made["metadata"] |= {"uid": "job", "namespace": "fairlot-1"}
    return made | {"status": status}


def complete() -> dict[str, Any]:
    condition = {"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    return job(succeeded=1, conditions=[condition])


def view_of(first: dict[str, Any]) -> ClusterCache:
    view = ClusterCache()
    view.jobs.replace([first])
    assert [seen.phase for seen in view.changed()] == [Phase.STARTING]
    return view


def test_a_complete_cache_knows_its_staleness() -> None:
    view = ClusterCache()
    ages = []

    class Filled(threading.Event):
        def set(self) -> None:
            super().set()
            ages.append(view.staleness())  # stands for a waiting thread that wakes up at this moment

    view.jobs.replace([], 3.0)
    view.pods.filled = Filled()
    view.pods.replace([], 5.0)
    [age] = ages
    assert 5 <= age < math.inf
    view.pods.heard()
    assert 3 <= view.staleness() < math.inf


def test_an_end_is_reported_even_if_its_job_is_deleted_before_the_next_observation() -> None:
    view = view_of(job())
    view.jobs.put(complete())
    view.jobs.remove(complete())
    [seen] = view.changed()
    assert (seen.token, seen.phase, seen.end) == (TOKEN, Phase.ENDED, End.SUCCEEDED)
    assert [seen.end for seen in view.everything()] == [End.SUCCEEDED], "until it is written down"
    view.forget(JOB_ID, TOKEN)
    assert view.everything() == []


def test_an_ended_job_is_dropped_once_its_end_was_reported() -> None:
    view = view_of(job())
    view.jobs.put(complete())
    assert [seen.end for seen in view.changed()] == [End.SUCCEEDED]
    view.jobs.remove(complete())
    assert (view.changed(), view.everything()) == ([], [])


def test_a_job_that_is_deleted_before_its_end_was_ended_by_that() -> None:
    view = view_of(job())
    view.jobs.remove(job())
    assert [seen.end for seen in view.changed()] == [End.DELETED]


def pod(made: dict[str, Any], rank: int, uid: str, *, gated: bool = False, phase: str = "") -> dict[str, Any]:
    """Returns the pod that the Job controller would create for worker `rank` from the template of the Job `made`.

    If `gated`, the pod has Fairlot's scheduling gate. If `phase` is given, the pod has this phase and its container has
    exited with 0; otherwise the pod is pending.
    """
    template = made["spec"]["template"]
    metadata = {
        "name": f"{made['metadata']['name']}-{rank}-{uid}",
        "namespace": "fairlot-1",
        "uid": uid,
        "labels": template["metadata"]["labels"] | {objects.CONTROLLER: made["metadata"]["uid"]},
        "annotations": template["metadata"]["annotations"] | {objects.INDEX: str(rank)},
    }
    gates = [{"name": objects.GATE}] if gated else []
    began = {"startedAt": "2026-01-01T00:00:00Z"}
    boxes = [{"state": {"terminated": began | {"finishedAt": "2026-01-01T00:01:00Z", "exitCode": 0}}}]
    status = {"phase": phase or "Pending", "containerStatuses": boxes if phase else []}
    spec = {"schedulingGates": gates, "containers": [{"name": "main"}]}
    return {"metadata": metadata, "spec": spec, "status": status}


def test_pods_of_a_deleted_job_say_nothing_about_the_job_that_replaced_it() -> None:
    """After a Job was deleted and created again for the same attempt, the pods of the deleted Job do not count for the
    new Job.

    Here the old pods have succeeded, and the new pods still have their scheduling gates. So the attempt is starting,
    not ended.
    """
    attempt = objects.Attempt(1, str(TOKEN), "A100", ["node-1", "node-1"])
    made = objects.new_job(JOB_ID, POD, workers=2, owner="ours", begin=attempt)
    made["metadata"] |= {"uid": "first", "namespace": "fairlot-1"}
    again = {**made, "metadata": made["metadata"] | {"uid": "second"}, "status": {"active": 2}}
    view = ClusterCache()
    view.jobs.replace([again])
    view.pods.replace(
        [pod(made, rank, f"old-{rank}", phase="Succeeded") for rank in (0, 1)]
        + [pod(again, rank, f"new-{rank}", gated=True) for rank in (0, 1)]
    )
    [seen] = view.changed()
    assert (seen.phase, seen.running_age) == (Phase.STARTING, None)
    [(gang, _)] = view.unsettled()
    found = objects.of_attempt(gang.job, list(gang.pods.values()))
    assert {one["metadata"]["uid"] for one in found} == {"new-0", "new-1"}, "whose gates are to be opened"


def test_an_ended_attempt_stays_ended_when_pods_of_the_next_arrive_before_its_job() -> None:
    """An attempt that has ended stays ended when pods of the job's next attempt appear.

    Pods and Jobs arrive on separate watch streams, so the pods of the next attempt may arrive before their Job.
    """
    suspended = job(conditions=[{"type": "Suspended", "status": "True"}])
    suspended["spec"]["suspend"] = True
    view = view_of(job())
    view.jobs.put(suspended)
    assert [seen.end for seen in view.changed()] == [End.STOPPED]
    second = objects.Attempt(2, str(uuid4()), "A100", ["node-2"])
    again = objects.new_job(JOB_ID, POD, workers=1, owner="ours", begin=second)
    again["metadata"] |= {"uid": "job", "namespace": "fairlot-1"}
    view.pods.put(pod(again, 0, "next"))
    assert [(seen.token, seen.phase) for seen in view.changed()] == [(TOKEN, Phase.ENDED)]
    view.jobs.put(again)
    assert [(str(seen.token), seen.phase) for seen in view.changed()] == [(second.token, Phase.STARTING)]


UNSEEN = ["lost: a worker was removed while Fairlot was not watching the cluster"]


class Noting:
    """Stands in for the object that sends orders to a cluster. It sends nothing, and records the reason of each stop
    order."""

    def __init__(self) -> None:
        self.stopped: list[str] = []

    def find(self, job_id: int) -> None:
        raise AssertionError("not asked for")

    def start(self, job_id: int, pod: objects.Pod, attempt: objects.Attempt) -> Outcome:
        raise AssertionError("not asked for")

    def stop(self, job_id: int, *, epoch: int, token: str, because: str = "") -> Outcome:
        self.stopped.append(because)
        return Outcome.DONE


def gang_that_runs() -> tuple[ClusterCache, dict[str, Any], list[dict[str, Any]]]:
    attempt = objects.Attempt(1, str(TOKEN), "A100", ["node-1", "node-2"])
    made = objects.new_job(JOB_ID, POD, workers=2, owner="ours", begin=attempt)
    made["metadata"] |= {"uid": "job", "namespace": "fairlot-1"}
    made["status"] = {"active": 2}
    pods = [pod(made, rank, f"first-{rank}", phase="Running") for rank in (0, 1)]
    for one in pods:
        one["metadata"]["annotations"] |= {objects.MEMBERS: objects.members_of(pods)}
    view = ClusterCache()
    view.jobs.replace([made])
    view.pods.replace(pods)
    assert [seen.phase for seen in view.changed()] == [Phase.RUNNING]
    return view, made, pods


def tended(view: ClusterCache) -> list[str]:
    """Runs the ungater once on the cache `view`, and returns the reasons for which it stopped gangs.

    The ungater removes the scheduling gates of pods whose gang is complete. It must not try to do so here, because no
    API server runs.
    """
    orders, nowhere = Noting(), Api(NOWHERE)
    GangUngater().advance(nowhere, view, lambda job_id: orders)
    nowhere.close()
    return orders.stopped


def with_condition(pod: dict[str, Any]) -> dict[str, Any]:
    found = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    return pod | {"status": pod["status"] | {"conditions": [found]}}


def test_a_gang_is_lost_if_a_worker_disappeared_unobserved() -> None:
    view, made, pods = gang_that_runs()
    view.pods.put(with_condition(pods[0]))
    view.pods.remove(with_condition(pods[0]))
    view.pods.put(pod(made, 0, "second-0", gated=True))
    assert tended(view) == ["lost: worker 0 was evicted, for example by a drain of its node"]


def test_a_gang_is_lost_with_a_worker_that_was_replaced_unwatched() -> None:
    _, made, pods = gang_that_runs()
    view = ClusterCache()
    view.jobs.replace([made])
    view.pods.replace([pod(made, 0, "second-0", gated=True), pods[1]])
    assert tended(view) == UNSEEN


def test_a_gang_is_lost_with_a_worker_that_saved_and_ended_well_when_it_was_evicted_unseen() -> None:
    """A gang is lost if one of its workers was evicted while nothing watched the cluster.

    This is so even if the worker saved and exited with 0, because the Job controller then does not replace it.
    """
    _, made, pods = gang_that_runs()
    view = ClusterCache()
    view.jobs.replace([made | {"status": {"active": 1, "succeeded": 1, "completedIndexes": "0"}}])
    view.pods.replace([pods[1]])
    assert tended(view) == UNSEEN


def test_a_gang_is_lost_if_all_its_workers_were_replaced_while_the_watch_was_broken() -> None:
    view, made, _ = gang_that_runs()
    view.pods.replace([pod(made, rank, f"second-{rank}", gated=True) for rank in (0, 1)])
    assert tended(view) == UNSEEN


def test_a_gang_is_lost_though_another_worker_fails_for_want_of_the_one_that_was_evicted() -> None:
    view, _, pods = gang_that_runs()
    view.pods.put(with_condition(pods[0]))
    view.pods.remove(with_condition(pods[0]))
    view.pods.put(pods[1] | {"status": pods[1]["status"] | {"phase": "Failed"}})
    assert tended(view) == ["lost: worker 0 was evicted, for example by a drain of its node"]


def test_a_gang_of_which_a_worker_fails_is_not_lost_as_the_others_are_removed() -> None:
    view, _, pods = gang_that_runs()
    view.pods.put(pods[1] | {"status": pods[1]["status"] | {"phase": "Failed"}})
    view.pods.put(pods[0] | {"metadata": pods[0]["metadata"] | {"deletionTimestamp": BEFORE}})
    assert tended(view) == []
    view.pods.remove(pods[0])
    assert tended(view) == []


def test_workers_that_are_deleted_because_their_job_was_stopped_are_not_lost() -> None:
    view, made, pods = gang_that_runs()
    view.pods.put(pods[0] | {"metadata": pods[0]["metadata"] | {"deletionTimestamp": BEFORE}})
    view.jobs.put(made | {"spec": made["spec"] | {"suspend": True}})
    assert tended(view) == []


def bare(*, told: str = "", deleted: str = "", because: str = "", **ended: Any) -> dict[str, Any]:
    """Returns an ended pod that belongs to no Kubernetes Job.

    - `told`: when Fairlot ended the pod by a deadline; "" if it did not.
    - `deleted`: when the pod was deleted; "" if it was not.
    - `because`: the reason in the pod's annotation.
    - `ended`: fields of the container's end state, such as exitCode, that differ from the default.

    Times are in ISO 8601.
    """
    made = objects.new_pod(
        JOB_ID, POD, owner="ours", attempt=objects.Attempt(1, str(TOKEN), "A100", ["node-1"])
    )
    made["metadata"] |= {"uid": "pod", "namespace": "fairlot-1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    made["metadata"]["annotations"][objects.BECAUSE] = because
    made["spec"]["nodeName"] = "node-1"
    if told:
        made["spec"]["activeDeadlineSeconds"] = objects.OVER
        fields = {"f:spec": {"f:activeDeadlineSeconds": {}}}
        made["metadata"]["managedFields"] = [{"manager": "fairlot", "time": told, "fieldsV1": fields}]
    if deleted:
        made["metadata"] |= {"deletionTimestamp": deleted, "deletionGracePeriodSeconds": 0}
    state = {"startedAt": "2026-01-01T00:00:10Z", "finishedAt": "2026-01-01T00:01:00Z", "exitCode": 0}
    status = {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": state | ended}}]}
    if told or ended.get("exitCode"):
        status["phase"] = "Failed"
    if told:
        status["reason"] = "DeadlineExceeded"
    return made | {"status": status}


BEFORE, SAME, AFTER = (f"2026-01-01T00:0{moment}Z" for moment in ("0:59", "1:00", "1:01"))


@pytest.mark.parametrize(
    ("pod", "end", "code"),
    [
        (bare(), End.SUCCEEDED, 0),
        (bare(exitCode=3), End.FAILED, 3),
        # The deadline was set after the pod had ended; the kubelet had not reported the end yet.
        (bare(told=AFTER), End.SUCCEEDED, 0),
        (bare(told=AFTER, exitCode=3), End.FAILED, 3),
        (bare(deleted=AFTER), End.SUCCEEDED, 0),
        (bare(deleted=AFTER, exitCode=3), End.FAILED, 3),
        (bare(told=AFTER, because="lost: for a reason"), End.SUCCEEDED, 0),
        # The pod ended because of its deadline, so its exit code does not count.
        (bare(told=BEFORE), End.STOPPED, None),
        (bare(told=SAME), End.STOPPED, None),
        (bare(told=BEFORE, exitCode=143), End.STOPPED, None),
        (bare(deleted=BEFORE), End.STOPPED, None),
        (bare(deleted=BEFORE, exitCode=143), End.STOPPED, None),
        (bare(told=BEFORE, because="start_failed: for a reason"), End.START_FAILED, None),
    ],
)
def test_how_a_bare_pod_ended_depends_on_whether_it_was_ordered_to_stop_before(
    pod: dict[str, Any], end: End, code: int | None
) -> None:
    view = ClusterCache()
    view.pods.replace([pod])
    [seen] = view.changed()
    assert (seen.phase, seen.end, seen.exit_code) == (Phase.ENDED, end, code)


def test_a_bare_pod_with_a_foreign_deadline_was_not_stopped_by_fairlot() -> None:
    pod = bare(exitCode=143)
    pod["spec"]["activeDeadlineSeconds"] = 3600
    assert not objects.is_ordered_to_end(pod)
    view = ClusterCache()
    view.pods.replace([pod])
    assert [seen.end for seen in view.changed()] == [End.FAILED]


def resuming(state: dict[str, Any]) -> dict[str, Any]:
    """Returns the status of a pod's containers in which the init container is in this state."""
    begun = (
        {"state": {"running": {"startedAt": BEFORE}}}
        if state.get("terminated", {}).get("exitCode") == 0
        else {}
    )
    waiting = {"state": {"waiting": {"reason": "PodInitializing"}}}
    init = {"name": objects.RESUME, "image": "example/train", "state": state}
    return {"phase": "Pending", "initContainerStatuses": [init], "containerStatuses": [begun or waiting]}


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ({"message": "step-5.pt"}, "step-5.pt"),
        ({}, ""),
        ({"message": "a\nb"}, ""),
        ({"message": "a" * 300}, ""),
    ],
)
def test_a_running_gang_says_from_which_checkpoint_its_leader_resumed(
    said: dict[str, str], known: str
) -> None:
    view, _, pods = gang_that_runs()
    found = resuming({"terminated": {"exitCode": 0, **said}})
    view.pods.put(pods[1] | {"status": resuming({"terminated": {"exitCode": 0, "message": "other"}})})
    view.pods.put(pods[0] | {"status": found})
    assert [(seen.phase, seen.resumed_from) for seen in view.changed()] == [(Phase.RUNNING, known)]
    alone = bare() | {"status": found | {"phase": "Running"}}
    view = ClusterCache()
    view.pods.replace([alone])
    assert [(seen.phase, seen.resumed_from) for seen in view.changed()] == [(Phase.RUNNING, known)]


def test_a_pod_whose_init_container_cannot_start_says_why() -> None:
    waiting = bare() | {
        "status": resuming({"waiting": {"reason": "ErrImagePull", "message": "no such image"}})
    }
    assert start_obstacle([waiting]) == "the image example/train cannot be pulled (no such image)"
    failed = bare()
    failed["status"] = resuming({"terminated": {"exitCode": 128, "reason": "StartError"}}) | {
        "phase": "Failed"
    }
    view = ClusterCache()
    view.pods.replace([failed])
    [seen] = view.changed()
    assert (seen.end, seen.exit_code) == (End.FAILED, 128)
    assert "exited with code 128" in seen.message
