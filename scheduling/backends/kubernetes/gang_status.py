"""Functions that derive the status of a gang, for all ranks together, from its Job and pods.

They use neither the network nor a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from scheduling.backends.base import End, Phase
from scheduling.backends.kubernetes import objects, probes
from scheduling.backends.kubernetes.api import Object

ENDS = frozenset(end.value for end in End)
# Reasons of a waiting container that do not go away by waiting: the user has to change something.
HOPELESS = frozenset({"ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError"})
IMAGE_TROUBLE = frozenset({"ErrImagePull", "ImagePullBackOff"})
KILLED_BY = {
    137: "{worker} was killed by SIGKILL",
    139: "{worker} was killed by SIGSEGV",
    143: "{worker} was ended by SIGTERM",
}
LONGEST_NAME = 255  # characters of the name of a checkpoint
# Types of Job conditions that mean that the outcome is decided.
ENDING = ("FailureTarget", "SuccessCriteriaMet", "Failed", "Complete")
# Describes why the cluster removed a pod, by the reason of the pod's condition DisruptionTarget.
REMOVAL_REASONS = {
    "PreemptionByScheduler": "{worker} was preempted by a pod with higher priority",
    "DeletionByTaintManager": "{worker} was removed because its node has a new taint",
    "EvictionByEvictionAPI": "{worker} was evicted, for example by a drain of its node",
    "DeletionByPodGC": "{worker} was lost with its node",
    "TerminationByKubelet": "{worker} was ended, because its node was short of resources",
}


@dataclass(frozen=True, slots=True)
class GangStatus:
    """The status of a gang in one of its leases, as the cluster reports it.

    `job_id`, `epoch` and `token` identify the lease. Times come from the cluster's clock, in whole seconds.
    """

    job_id: int
    epoch: int
    token: UUID
    phase: Phase
    since: datetime | None = None  # when this phase began; None where the cluster does not report it
    ran_since: datetime | None = None  # when the last worker began to run; None before that
    end: End | None = None
    exit_code: int | None = None
    message: str = ""
    ready_since: datetime | None = None
    address: str = ""
    resumed_from: str = ""  # the checkpoint that the leader's init container has named


def gang_status(job: Object, pods: Sequence[Object]) -> GangStatus | None:
    """Returns the status of the Job's gang in its latest lease; None if the Job has never had a lease.

    `pods` must contain all pods of Fairlot's job, also those of an earlier Kubernetes Job of the same name.
    """
    status = _status_of_job(job, pods)
    return status and replace(status, resumed_from=_resumed_from(objects.of_attempt(job, pods)))


def _status_of_job(job: Object, pods: Sequence[Object]) -> GangStatus | None:
    annotations = job["metadata"]["annotations"]
    if objects.LEASE not in annotations:
        return None
    lease = objects.job_id_of(job), objects.epoch_of(job), UUID(annotations[objects.LEASE])
    ours = objects.of_attempt(job, pods)
    ran = _all_ran_since(ours, objects.workers_of(job))
    # Ended pods that the Job has not counted yet may decide how it ends. The watch may report pods of a later attempt
    # before their Job; these pods only start when all earlier pods are gone.
    left = [
        pod
        for pod in pods
        if objects.epoch_of(pod) <= lease[1] and (not objects.has_ended(pod) or _is_uncounted(pod))
    ]
    if objects.holds_gpus(job) or left:
        ready, address = probes.ready_since([pod for pod in ours if objects.is_leader(pod)])
        return GangStatus(*lease, *_alive(job, ours, ran), ready_since=ready, address=address)
    if complete := objects.condition(job, "Complete"):
        at = _last(ours) or _moment(complete["lastTransitionTime"])
        return GangStatus(*lease, Phase.ENDED, at, ran, End.SUCCEEDED, 0)
    if failed := objects.condition(job, "Failed"):
        if objects.is_suspended(job) and not ours:
            # An earlier attempt failed. This one was stopped before its Job replaced the failed one, so it had no pods.
            end, message = _why_stopped(annotations.get(objects.BECAUSE, ""))
            return GangStatus(*lease, Phase.ENDED, None, None, end, None, message)
        at = _last(ours) or _moment(failed["lastTransitionTime"])
        code, message = _why_failed(job, ours, failed)
        return GangStatus(*lease, Phase.ENDED, at, ran, End.FAILED, code, message)
    if objects.is_suspended(job) and objects.condition(job, "Suspended"):
        end, message = _why_stopped(annotations.get(objects.BECAUSE, ""))
        return GangStatus(*lease, Phase.ENDED, None, ran, end, None, message)
    return GangStatus(*lease, Phase.STARTING, None, ran)  # the Job controller has not processed it yet


def bare_pod_status(pod: Object) -> GangStatus:
    """Returns the status of a gang that runs as a bare pod: one pod without a Job, for one lease."""
    annotations = pod["metadata"]["annotations"]
    lease = objects.job_id_of(pod), objects.epoch_of(pod), UUID(annotations[objects.LEASE])
    ran, resumed = _all_ran_since([pod], 1), _resumed_from([pod])
    if not objects.has_ended(pod):
        ready, address = probes.ready_since([pod])
        alive = _alive(pod, [pod], ran)
        return GangStatus(*lease, *alive, ready_since=ready, address=address, resumed_from=resumed)
    end, code, message = _how_it_ended(pod)
    return GangStatus(*lease, Phase.ENDED, _last([pod]), ran, end, code, message, resumed_from=resumed)


def vanished_pod_status(status: GangStatus, pod: Object) -> GangStatus:
    """Returns the final status of a bare pod (a pod without a Job) that was deleted before its end was observed.

    `status` is the last known status, and `pod` is the last known state of the pod object.
    """
    if taken := removal_reason(pod, [pod]):
        end, message = End.LOST, taken
    else:
        end, message = _why_stopped(pod["metadata"]["annotations"].get(objects.BECAUSE, ""))
    return replace(status, phase=Phase.ENDED, since=None, end=end, message=message, ready_since=None)


def _how_it_ended(pod: Object) -> tuple[End, int | None, str]:
    """Returns how a bare pod (a pod without a Job) ended, as a triple: the end, the exit code, and a message for users.

    The first case that applies decides:

    1. Fairlot ordered the pod to end and stored the reason in an annotation: the end that the annotation contains.
    2. The pod was not ordered to end, and the program exited with 0: SUCCEEDED.
    3. The cluster removed the pod: LOST.
    4. The pod was ordered to end: STOPPED.
    5. All other cases: FAILED. The exit code is None if Kubernetes does not report one.

    In the cases 1, 3 and 4 the exit code is None: programs that save their state on SIGTERM often exit with 0, which
    would look like success.
    """
    ordered = objects.is_ordered_to_end(pod) and _ended_after(pod, _ordered_at(pod))
    if ordered and (said := pod["metadata"]["annotations"].get(objects.BECAUSE)):
        end, message = _why_stopped(said)
        return end, None, message
    if not ordered and _exit_code(pod) == 0:
        return End.SUCCEEDED, 0, ""
    if taken := removal_reason(pod, [pod]):
        return End.LOST, None, taken
    if ordered:
        return End.STOPPED, None, _why_stopped("")[1]
    return End.FAILED, *_why_failed(pod, [pod], pod["status"])


def _exit_code(pod: Object) -> int | None:
    """Returns the exit code of the pod's program; None if it is not known.

    Reads the container's state instead of the pod's phase. If the kubelet ended the pod, the phase is Failed even if
    the program exited with 0.
    """
    for status in pod["status"].get("containerStatuses", ()):
        if ended := status.get("state", {}).get("terminated"):
            return int(ended["exitCode"])
    return 0 if pod["status"]["phase"] == "Succeeded" else None


def _ended_after(pod: Object, moment: datetime | None) -> bool:
    """Returns whether the pod ended at or after `moment`, in whole seconds. Returns True if either time is unknown."""
    ended = _last([pod])
    return ended is None or moment is None or ended >= moment


def _ordered_at(pod: Object) -> datetime | None:
    """Returns the time at which the API server accepted the order to end the pod; None if the pod does not show it."""
    about = pod["metadata"]
    if "deletionTimestamp" in about:
        grace = timedelta(seconds=about.get("deletionGracePeriodSeconds") or 0)
        return _moment(about["deletionTimestamp"]) - grace
    for change in about.get("managedFields", ()):
        if "f:activeDeadlineSeconds" in change.get("fieldsV1", {}).get("f:spec", {}):
            return _moment(change["time"])
    return None


def orphan_status(pods: Sequence[Object]) -> GangStatus | None:
    """Returns the status of a gang whose Job is unknown, derived from its pods; None if all pods have ended.

    If pods of several leases have not ended, the status is for the latest of these leases.
    """
    alive = [pod for pod in pods if not objects.has_ended(pod)]
    epoch = max(map(objects.epoch_of, alive), default=0)
    ours = [pod for pod in alive if objects.epoch_of(pod) == epoch]
    token = next((pod["metadata"]["annotations"].get(objects.LEASE) for pod in ours), None)
    if token is None:
        return None
    ran = _all_ran_since(ours, len(ours))
    return GangStatus(
        objects.job_id_of(ours[0]), epoch, UUID(token), Phase.RUNNING if ran else Phase.STARTING, ran, ran
    )


def because(end: End, message: str) -> str:
    """Joins `end` and `message`, the reason why Fairlot itself stopped a gang, to one text.

    `message`: the reason in words for users. `_why_stopped` splits the text again.
    """
    return f"{end.value}: {message}"


def start_obstacle(pods: Sequence[Object]) -> str:
    """Explains to users why the pods cannot start. Returns "" if nothing prevents their start."""
    for pod in pods:
        for status in _of_all_containers(pod):
            waiting = status.get("state", {}).get("waiting", {})
            reason, said = waiting.get("reason", ""), waiting.get("message", "")
            if reason in IMAGE_TROUBLE:
                return f"the image {status['image']} cannot be pulled ({said or reason})"
            if reason in HOPELESS:
                return f"the container cannot be created: {said or reason}"
    return ""


def disruption(pods: Sequence[Object]) -> str:
    """Explains to users why the cluster removed a worker. Returns "" if no pod has the condition DisruptionTarget."""
    for pod in pods:
        if found := objects.condition(pod, "DisruptionTarget"):
            why = REMOVAL_REASONS.get(found.get("reason", ""), "{worker} was removed by the cluster")
            said = f": {found['message']}" if found.get("message") else ""
            return why.format(worker=_named(pod)) + said
    return ""


def removal_reason(job: Object, pods: Sequence[Object]) -> str:
    """Explains to users why a worker was removed by the cluster or deleted by someone other than Fairlot.

    Returns "" if neither happened.
    """
    if why := disruption(pods):
        return why
    # The deletion of a bare pod carries no reason. When a Job ends, the Job controller deletes its remaining pods.
    if objects.is_bare(job) or _ends_by_itself(job, pods):
        return ""
    deleted = (pod for pod in pods if "deletionTimestamp" in pod["metadata"] and not objects.has_ended(pod))
    return next((f"{_named(pod)} was deleted, but not by Fairlot" for pod in deleted), "")


def is_incomplete(job: Object, pods: Sequence[Object]) -> bool:
    """Returns whether the gang has lost a pod with which it started.

    When the gang started, a hash of its pods was stored in each pod's annotations. A loss is therefore noticed even if
    the Job controller has already replaced the lost pod.

    Returns False while the Job controller itself ends the Job's pods, because losses are expected then.
    """
    members = objects.members_of(pods)
    marks = (pod["metadata"]["annotations"].get(objects.MEMBERS, members) for pod in pods)
    return any(mark != members for mark in marks) and not _ends_by_itself(job, pods)


def _ends_by_itself(job: Object, pods: Sequence[Object]) -> bool:
    """Returns whether the Job controller is ending the Job's pods.

    It ends them in four cases: the Job was suspended, the Job was deleted, the Job is complete or has failed, or a
    worker has failed.
    """
    return (
        objects.is_suspended(job)
        or "deletionTimestamp" in job["metadata"]
        or any(objects.condition(job, kind) for kind in ENDING)
        or any(pod.get("status", {}).get("phase") == "Failed" for pod in pods)
    )


def _alive(
    job: Object, pods: Sequence[Object], ran: datetime | None
) -> tuple[Phase, datetime | None, datetime | None]:
    started = ran is not None or objects.condition(job, "SuccessCriteriaMet") is not None
    return (Phase.RUNNING if started else Phase.STARTING), ran, ran


def _all_ran_since(pods: Sequence[Object], workers: int) -> datetime | None:
    """Returns the time at which the last of the gang's workers started, so that all workers ran from then on.

    `workers` is the gang's number of workers. Returns None if a worker has not started yet.
    """
    began: dict[int, datetime] = {}
    for pod in pods:
        for status in pod.get("status", {}).get("containerStatuses", ()):
            state = status.get("state", {})
            at = (state.get("running") or state.get("terminated") or {}).get("startedAt")
            if at:
                began[objects.index_of(pod)] = _moment(at)
    return max(began.values()) if len(began) == workers else None


def _of_all_containers(pod: Object) -> list[Object]:
    """Returns the statuses of the pod's containers, those of init containers first."""
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]


def _resumed_from(pods: Sequence[Object]) -> str:
    """Returns the checkpoint that the leader's init container has named in its termination message; otherwise ""."""
    for pod in filter(objects.is_leader, pods):
        for status in pod.get("status", {}).get("initContainerStatuses", ()):
            if status["name"] == objects.RESUME:
                named = status.get("state", {}).get("terminated", {}).get("message", "")
                return named if len(named) <= LONGEST_NAME and named.isprintable() else ""
    return ""


def _last(pods: Sequence[Object]) -> datetime | None:
    """Returns the latest time at which a container of these pods ended; None if no container has ended."""
    ends = [
        _moment(ended["finishedAt"])
        for pod in pods
        for status in pod.get("status", {}).get("containerStatuses", ())
        if (ended := status.get("state", {}).get("terminated")) and ended.get("finishedAt")
    ]
    return max(ends, default=None)


def _why_failed(job: Object, pods: Sequence[Object], failed: Object) -> tuple[int | None, str]:
    """Returns a pair: the exit code of the worker that failed first, and a message for users.

    The exit code is None if Kubernetes does not report one. `failed` is the Job's condition Failed or, for a bare pod,
    the pod's status. If no pod shows the reason, the message comes from `failed`.
    """
    for pod in sorted(pods, key=lambda pod: str(_last([pod]))):
        for status in _of_all_containers(pod):
            ended = status.get("state", {}).get("terminated")
            if ended and ended.get("exitCode"):
                code = int(ended["exitCode"])
                if ended.get("reason") == "OOMKilled":
                    return code, f"{_named(pod)} was killed because it ran out of memory"
                how = KILLED_BY.get(code, "{worker} exited with code {code}")
                return code, how.format(worker=_named(pod), code=code)
        if pod.get("status", {}).get("phase") == "Failed":
            said = pod["status"].get("message") or pod["status"].get("reason") or "failed"
            return None, f"{_named(pod)}: {said}"
    return None, str(failed.get("message") or failed.get("reason") or "failed")


def _why_stopped(text: str) -> tuple[End, str]:
    kind, _, message = text.partition(": ")
    return (End(kind), message) if kind in ENDS else (End.STOPPED, "stopped by Fairlot")


def _is_uncounted(pod: Object) -> bool:
    return "batch.kubernetes.io/job-tracking" in pod["metadata"].get("finalizers", ())


def _named(pod: Object) -> str:
    node, role = pod["spec"].get("nodeName"), objects.role_of(pod)
    name = f"worker {objects.rank_of(pod)}" + (f" ({role} {objects.index_of(pod)})" if role else "")
    return name + (f" on {node}" if node else "")


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
