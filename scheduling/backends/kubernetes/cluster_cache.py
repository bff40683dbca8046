"""A cache of one cluster's gangs, nodes, and GPU pods that do not belong to Fairlot.

Reflectors keep the cache up to date. Threads may share it.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol
from uuid import UUID

from scheduling.backends.base import End, NodeGpus, Observation, Phase
from scheduling.backends.kubernetes import discovery, objects, parts
from scheduling.backends.kubernetes.api import Object
from scheduling.backends.kubernetes.events import Denial
from scheduling.backends.kubernetes.gang_status import (
    GangStatus,
    bare_pod_status,
    disruption,
    gang_status,
    orphan_status,
    removal_reason,
    vanished_pod_status,
)

NODES_EVERY = 10.0
MOST_DENIALS = 10_000
# The label with which the Job controller names the Job on its pods.
JOB_NAME = "batch.kubernetes.io/job-name"
DELETED = "the job's Kubernetes Job was deleted, but not by Fairlot"


# The ID of a job, and the number of the part of its gang. Gangs without roles have one part, with the number 0.
Key = tuple[int, int]


@dataclass
class Gang:
    """A gang in the cluster: its Job, its pods and its last status. For a pod without a Job, `job` is the pod.

    Each role of a gang with roles is a part with its own Job, and has its own Gang here.
    """

    job: Object
    pods: dict[str, Object] = field(default_factory=dict)  # by UID
    deleted: bool = False  # the Job is gone; pods may remain
    status: GangStatus | None = None
    began: float = 0.0  # monotonic time when this phase began or was first observed
    ran: float | None = None  # monotonic time when the last worker began to run
    ready: float | None = None  # monotonic time when the endpoint became ready; None while it is not ready
    lost: str = ""  # why the cluster ended a worker of this attempt, even if that worker was replaced since
    denial: Denial | None = None  # why the Job controller could not create a pod of this attempt
    # (epoch, steps, monotonic time of the report); None before the first report.
    progress: tuple[int, float, float] | None = None


class PodListener(Protocol):
    """An object that the cache notifies of changes of Fairlot's pods.

    The cache holds its own lock while it calls the methods `put` and `gone`.
    """

    def put(self, pod: Object) -> None:
        """Receives the current state of a new or changed pod."""

    def gone(self, uid: str) -> None:
        """Receives the UID of a pod that the cluster no longer has."""


class ClusterCache:
    """A cache of one cluster's state, which consists of four mirrors: `jobs`, `pods`, `nodes` and `foreign_pods`.

    A mirror is a local copy of all objects of one kind. A reflector fills it by listing and watching these objects.
    """

    def __init__(self, *, wall: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Creates an empty cache. `wall` returns the current time and should be close to the cluster's clock.

        The cache uses this clock to date changes that happened while no watch was open.
        """
        self._wall = wall
        self._lock = threading.RLock()
        self._changed = threading.Event()
        self._gangs: dict[Key, Gang] = {}
        # The parts of gangs with roles, by job ID.
        self._parts: dict[int, set[Key]] = {}
        # Pods whose Job the cache does not know yet, by key and UID.
        self._pods_without_job: dict[Key, dict[str, Object]] = defaultdict(dict)
        self._job_of_pod: dict[str, Key] = {}
        self._changed_jobs: set[Key] = set()
        self._unsettled: set[Key] = set()
        self._nodes: dict[str, list[discovery.Supply]] = {}
        self._held_by_others: dict[str, tuple[str, Counter[str]]] = {}
        self._hosts_changed = False
        self._offered_at = time.monotonic()
        self.jobs = _Jobs(self)
        self.pods = _Pods(self)
        self.nodes = _Nodes(self)
        self.foreign_pods = _ForeignPods(self)
        self._denials: dict[str, Denial] = {}  # by the UID of the Job
        self.pod_listener: PodListener | None = None
        self._mirrors: tuple[_Mirror, ...] = (self.jobs, self.pods, self.nodes, self.foreign_pods)

    # --- reading ---------------------------------------------------------------------------------

    def wait_until_complete(self, timeout: float) -> bool:
        """Waits until reflectors have filled every mirror (`jobs`, `pods`, `nodes`, `foreign_pods`) at least once.

        Returns False if this takes more than `timeout` seconds, otherwise True.
        """
        until = time.monotonic() + timeout
        return all(mirror.filled.wait(max(0.0, until - time.monotonic())) for mirror in self._mirrors)

    def wait(self, timeout: float) -> bool:
        """Waits until something has changed since the last call, but at most `timeout` seconds. Returns whether
        something changed."""
        changed = self._changed.wait(timeout)
        self._changed.clear()
        return changed

    def staleness(self) -> float:
        """Returns the age of the cache in seconds.

        The Jobs and the pods in the cache are each as old as the API server's last answer about them. The result is the
        greater of these two ages.
        """
        return time.monotonic() - min(self.jobs.heard_at, self.pods.heard_at)

    def everything(self) -> list[Observation]:
        """Returns the state of the latest lease of each gang. Omits gangs that have never had a lease."""
        with self._lock:
            self._adopt_orphans()
            return self._observations(self._gangs)

    def changed(self) -> list[Observation]:
        """Returns the state of the latest lease of each gang that has changed since the last call."""
        with self._lock:
            changed = [key for key in self._changed_jobs if key in self._gangs]
            self._changed_jobs.clear()
            return self._observations(changed)

    def unsettled(self) -> list[tuple[Gang, GangStatus]]:
        """Returns the gangs that are starting or have lost a worker, each with its status. Omits gangs with roles.

        The returned gangs are copies, so the caller may read them without a lock.
        """
        with self._lock:
            gangs = [
                self._gangs[key]
                for key in self._unsettled
                if key in self._gangs and key[0] not in self._parts
            ]
            return [(self._copy(gang), gang.status) for gang in gangs if gang.status]

    def unsettled_roles(self) -> list[list[tuple[Gang, GangStatus]]]:
        """Returns the gangs with roles that have not ended: the parts of each gang, each part with its status.

        The returned parts are copies.
        """
        with self._lock:
            found = []
            for keys in self._parts.values():
                gangs = [self._gangs[key] for key in sorted(keys)]
                its_parts = [(self._copy(gang), gang.status) for gang in gangs if gang.status]
                if any(status.phase is not Phase.ENDED for _, status in its_parts):
                    found.append(its_parts)
            return found

    def gang(self, job_id: int) -> Gang | None:
        """Returns the gang of a job; None if the cache does not know it. Of a gang with roles, returns the first part
        with the status of the whole gang."""
        with self._lock:
            if job_id in self._parts:
                found: Gang | None = self._whole(job_id)
            else:
                found = self._gangs.get((job_id, 0))
            return self._copy(found) if found else None

    def on_node(self, name: str) -> list[int]:
        """Returns the IDs of the jobs that have an unfinished worker on the node `name`."""
        with self._lock:
            found = [
                job_id
                for (job_id, _), gang in self._gangs.items()
                if any(
                    pod["spec"].get("nodeName") == name and not objects.has_ended(pod)
                    for pod in gang.pods.values()
                )
            ]
            return list(dict.fromkeys(found))

    def _copy(self, gang: Gang) -> Gang:
        uid, began = gang.job["metadata"]["uid"], objects.began(gang.job)
        denial = self._denials.get(uid)
        if not denial or not began or denial.at < began:
            denial = None  # the denial is about an earlier attempt
        return replace(gang, pods=dict(gang.pods), denial=denial)

    def forget(self, job_id: int, token: UUID) -> None:
        """Removes a gang from the cache if the gang was deleted in the cluster and its latest lease has this token."""
        with self._lock:
            for key in [*self._parts.get(job_id, ()), (job_id, 0)]:
                gang = self._gangs.get(key)
                if gang and gang.deleted and gang.status and gang.status.token == token:
                    self._drop(key)

    def node_gpus(self) -> list[NodeGpus] | None:
        """Returns the GPUs of all nodes. Returns None if no node has changed since the last result, and this result is
        less than NODES_EVERY seconds old.
        """
        with self._lock:
            # Repeated even without changes: the caller cannot store some changes while jobs run on a node, and retries.
            if not self._hosts_changed and time.monotonic() - self._offered_at < NODES_EVERY:
                return None
            self._hosts_changed, self._offered_at = False, time.monotonic()
            held: Counter[tuple[str, str]] = Counter()
            for node, gpus in self._held_by_others.values():
                held.update({(node, resource): count for resource, count in gpus.items()})
            return [
                NodeGpus(
                    host=supply.node,
                    resource=supply.resource,
                    product=supply.product,
                    part=supply.part,
                    installed=supply.installed,
                    failed=supply.installed - supply.healthy,
                    others=held[supply.node, supply.resource],
                    is_up=supply.is_up,
                    why_not=supply.why_not,
                    cpus=supply.cpus,
                    memory=supply.memory,
                )
                for supplies in self._nodes.values()
                for supply in supplies
            ]

    def orphans(self) -> list[Object]:
        """Returns unfinished pods whose Job is not in the cache.

        The Job may still exist in the cluster, because a watch may report a pod before its Job.
        """
        with self._lock:
            lost = [
                pod
                for gang in self._gangs.values()
                for pod in gang.pods.values()
                if gang.deleted or not objects.is_of(pod, gang.job)
            ]
            homeless = [pod for pods in self._pods_without_job.values() for pod in pods.values()]
            return [
                pod
                for pod in (*lost, *homeless)
                if not objects.has_ended(pod) and "deletionTimestamp" not in pod["metadata"]
            ]

    def ended_bare_pods(self, age: float) -> list[Object]:
        """Returns bare pods (pods without a Job) that ended at least `age` seconds ago.

        The caller must delete these pods, because no controller of Kubernetes deletes them.
        """
        before = time.monotonic() - age
        with self._lock:
            return [
                gang.job
                for gang in self._gangs.values()
                if objects.is_bare(gang.job)
                and not gang.deleted
                and gang.status
                and gang.status.phase is Phase.ENDED
                and gang.began <= before
            ]

    # --- changing --------------------------------------------------------------------------------

    def record_progress(self, job_id: int, epoch: int, steps: float, at: float) -> None:
        """Stores that a worker of attempt `epoch` has reported `steps` steps as the job's progress.

        `at` is the time of the report on the monotonic clock, in seconds.
        """
        with self._lock:
            key = min(self._parts.get(job_id, ()), default=(job_id, 0))
            if gang := self._gangs.get(key):
                gang.progress = epoch, steps, at
                # Does not wake waiting threads: progress is reported with other changes, or at the next regular
                # observation.
                self._changed_jobs.add(key)

    def record_denial(self, uid: str, denial: Denial) -> None:
        """Stores a denial: the reason why the Job controller could not create a pod of the Job with UID `uid`.

        Also wakes threads that wait in `wait`.
        """
        with self._lock:
            before = self._denials.get(uid)
            if before is None or denial.at >= before.at:
                self._denials[uid] = denial
            while len(self._denials) > MOST_DENIALS:
                del self._denials[next(iter(self._denials))]
        self.notify()

    def notify(self) -> None:
        """Wakes threads that wait in `wait`."""
        self._changed.set()

    def _observations(self, keys: Iterable[Key]) -> list[Observation]:
        """Returns the state of each gang to which one of these keys belongs.

        Omits gangs that have never had a lease.
        """
        gangs: list[Gang | None] = []
        with_roles: set[int] = set()
        for key in keys:
            if key[0] not in self._parts:
                gangs.append(self._gangs[key])
            elif key[0] not in with_roles:
                with_roles.add(key[0])
                gangs.append(self._whole(key[0]))
        return [seen for gang in gangs if gang and (seen := self._observation(gang))]

    def _whole(self, job_id: int) -> Gang | None:
        """Returns a gang with roles as one Gang, with the status and times of all its parts together."""
        gangs = [self._gangs[key] for key in sorted(self._parts[job_id])]
        states = [(gang, parts.state_of(gang.job, gang.status)) for gang in gangs if gang.status]
        if not states:
            return None
        of = objects.parts_of(gangs[0].job)
        leading = _part_of_leader(gangs)
        status = parts.combined([state for _, state in states], of, leading)
        now = [gang for gang, state in states if state.status.epoch == status.epoch]
        ran = [gang.ran for gang in now]
        return replace(
            gangs[0],
            status=status,
            began=max(gang.began for gang in now),
            ran=max(at for at in ran if at is not None) if len(now) == of and None not in ran else None,
            ready=next((gang.ready for gang in now if objects.part_of(gang.job) == leading), None),
        )

    def _drop(self, key: Key) -> None:
        """Removes a gang, or a part of one, from the cache."""
        del self._gangs[key]
        if key in (keys := self._parts.get(key[0], set())):
            keys.discard(key)
            if not keys:
                del self._parts[key[0]]

    def _observation(self, gang: Gang) -> Observation | None:
        status = gang.status
        if status is None:
            return None
        now = time.monotonic()
        ended = status.phase is Phase.ENDED
        progress = gang.progress if gang.progress and gang.progress[0] == status.epoch else None
        return Observation(
            job_id=status.job_id,
            epoch=status.epoch,
            token=status.token,
            phase=status.phase,
            running_age=now - gang.ran if gang.ran is not None else None,
            seen_age=now - gang.began if ended else self.staleness(),
            ended_age=now - gang.began if ended else None,
            end=status.end,
            exit_code=status.exit_code,
            message=status.message,
            steps=progress[1] if progress else None,
            steps_age=now - progress[2] if progress else None,
            ready_age=now - gang.ready if gang.ready is not None else None,
            address=status.address,
            resumed_from=status.resumed_from,
        )

    def _adopt_orphans(self) -> None:
        """Adds gangs to the cache for running pods whose Job was deleted before this cache was filled.

        The cache needs these gangs, because their pods still hold GPUs.
        """
        if not self.jobs.filled.is_set():
            return
        for key, pods in list(self._pods_without_job.items()):
            if status := orphan_status(list(pods.values())):
                gang = Gang(_job_of_orphan(next(iter(pods.values()))), pods, deleted=True, status=status)
                gang.began = self._when(status.since, math.inf)
                gang.ran = gang.began if status.ran_since else None
                self._gangs[key] = gang
                self._note_part(key, gang.job)
                del self._pods_without_job[key]
                self._evaluate(key, 0.0)

    def _note_part(self, key: Key, job: Object) -> None:
        if objects.parts_of(job):
            self._parts.setdefault(key[0], set()).add(key)

    def _put_job(self, job: Object, gap: float) -> None:
        key = key_of(job)
        known = self._gangs.get(key)
        if known is None or (known.deleted and job["metadata"]["uid"] != known.job["metadata"]["uid"]):
            left = known.pods if known else {}  # pods of an earlier Job that may still exist
            known = self._gangs[key] = Gang(job, left | self._pods_without_job.pop(key, {}))
            for pod in known.pods.values():
                self._notify_listener(pod)
        known.job, known.deleted = job, False
        self._note_part(key, job)
        self._evaluate(key, gap)

    def _remove_job(self, job: Object, gap: float) -> None:
        key = key_of(job)
        gang = self._gangs.get(key)
        if gang is None or gang.job["metadata"]["uid"] != job["metadata"]["uid"]:
            return
        is_reported = key not in self._changed_jobs  # a gang whose end was not reported yet must stay
        if gang.status is None or (gang.status.phase is Phase.ENDED and is_reported):
            self._drop(key)  # the cluster kept the Job only to block late orders
            if gang.pods:
                self._pods_without_job[key] = gang.pods
            return
        gang.deleted = True
        self._evaluate(key, gap)

    def _put_bare(self, pod: Object, gap: float) -> None:
        """Stores a bare pod (a pod without a Job) as a gang of one worker.

        `gap` is the longest time in seconds for which this change of the pod may have gone unnoticed.
        """
        key, uid = key_of(pod), pod["metadata"]["uid"]
        gang = self._gangs.get(key)
        if gang is None or gang.job["metadata"]["uid"] != uid:
            gang = self._gangs[key] = Gang(pod)
        self._job_of_pod[uid] = key
        gang.job, gang.pods = pod, {uid: pod}
        self._notify_listener(pod)
        self._evaluate(key, gap)

    def _record_last_state(self, pod: Object) -> None:
        """Stores the last state of a bare pod that was deleted. Does nothing if the cache has already stored the pod's
        end."""
        gang = self._gangs.get(key_of(pod))
        if gang is None or (
            gang.job["metadata"]["uid"] == pod["metadata"]["uid"]
            and (gang.status is None or gang.status.phase is not Phase.ENDED)
        ):
            self._put_bare(pod, 0.0)

    def _put_pod(self, pod: Object, gap: float) -> None:
        if objects.is_bare(pod):
            self._put_bare(pod, gap)
            return
        key, uid = key_of(pod), pod["metadata"]["uid"]
        self._job_of_pod[uid] = key
        if key in self._gangs:
            self._gangs[key].pods[uid] = pod
            self._notify_listener(pod)
            self._evaluate(key, gap)
        else:
            self._pods_without_job[key][uid] = pod

    def _notify_listener(self, pod: Object) -> None:
        """Passes a pod to the cache's PodListener, which reads the logs of pods.

        The pod's Job must already be in the cache, because the listener looks up the job's settings there.
        """
        if self.pod_listener:
            self.pod_listener.put(pod)

    def _remove_pod(self, uid: str, gap: float) -> None:
        key = self._job_of_pod.pop(uid, None)
        if key is None:
            return
        if self.pod_listener:
            self.pod_listener.gone(uid)
        if gang := self._gangs.get(key):
            gang.pods.pop(uid, None)
            if gang.job["metadata"]["uid"] == uid:
                self._remove_job(gang.job, gap)
            else:
                self._evaluate(key, gap)
        elif key in self._pods_without_job:
            self._pods_without_job[key].pop(uid, None)
            if not self._pods_without_job[key]:
                del self._pods_without_job[key]

    def _evaluate(self, key: Key, gap: float) -> None:
        """Computes the gang's status from its Job and pods, and stores it.

        `gap`: the longest time in seconds for which a change of the gang may have gone unnoticed.
        """
        gang = self._gangs[key]
        status = self._deleted(gang) if gang.deleted else _look(gang)
        self._changed_jobs.add(key)
        before, gang.status = gang.status, status
        if status is None:
            self._unsettled.discard(key)
            return
        another = before is None or before.token != status.token
        if another or (before is not None and before.phase is not status.phase):
            gang.began = self._when(status.since, gap)
        if another:
            gang.ran, gang.lost = None, ""
        gang.lost = gang.lost or disruption(objects.of_attempt(gang.job, list(gang.pods.values())))
        (self._unsettled.add if _needs_ungater(gang) else self._unsettled.discard)(key)
        if gang.ran is None and status.ran_since is not None:
            gang.ran = self._when(status.ran_since, gap)
        if status.ready_since is None:
            gang.ready = None
        elif gang.ready is None or another or (before and before.ready_since != status.ready_since):
            gang.ready = self._when(status.ready_since, gap)

    def _deleted(self, gang: Gang) -> GangStatus | None:
        if gang.status is None or gang.status.phase is Phase.ENDED:
            return gang.status
        if objects.is_bare(gang.job):
            return vanished_pod_status(gang.status, gang.job)
        if any(not objects.has_ended(pod) for pod in gang.pods.values()):
            return gang.status
        return replace(gang.status, phase=Phase.ENDED, since=None, end=End.DELETED, message=DELETED)

    def _when(self, moment: datetime | None, gap: float) -> float:
        """Converts `moment`, a time on the cluster's clock, to the monotonic clock. None means the current time.

        `gap`: the longest time in seconds for which a change may have gone unnoticed. A time before the last `gap`
        seconds becomes the time `gap` seconds ago, and a future time becomes the current time.
        """
        age = (self._wall() - moment).total_seconds() if moment else 0.0
        return time.monotonic() - min(max(0.0, age), gap)


def key_of(thing: Object) -> Key:
    return objects.job_id_of(thing), objects.part_of(thing)


def _part_of_leader(gangs: Sequence[Gang]) -> int:
    """Returns the number of the part to which the leader of the gang belongs."""
    leader = objects.leader_of(gangs[0].job)
    firsts = [(objects.first_rank_of(gang.job), objects.part_of(gang.job)) for gang in gangs]
    return max(((first, number) for first, number in firsts if first <= leader), default=(0, 0))[1]


def _job_of_orphan(pod: Object) -> Object:
    """Builds a substitute for a deleted Job from the labels and annotations of one of its pods."""
    about = pod["metadata"]
    labels, annotations = about["labels"], about["annotations"]
    known = {"namespace": about["namespace"], "labels": labels, "annotations": annotations}
    metadata = known | {"name": labels[JOB_NAME], "uid": labels[objects.CONTROLLER]}
    return {"metadata": metadata, "spec": {"suspend": False}, "status": {}}


def _look(gang: Gang) -> GangStatus | None:
    if not objects.is_bare(gang.job):
        return gang_status(gang.job, list(gang.pods.values()))
    # The first observed end of a pod is final, because Fairlot may order the pod to stop afterwards.
    is_over = gang.status is not None and gang.status.phase is Phase.ENDED
    return gang.status if is_over else bare_pod_status(gang.job)


def _needs_ungater(gang: Gang) -> bool:
    if gang.status is None or gang.deleted or objects.is_suspended(gang.job):
        return False
    if objects.is_bare(gang.job) and objects.is_ordered_to_end(gang.job):
        return False
    return gang.status.phase is Phase.STARTING or (
        gang.status.phase is Phase.RUNNING
        and bool(gang.lost or removal_reason(gang.job, list(gang.pods.values())))
    )


class _Mirror:
    """The part of the cache that holds the objects of one kind. One reflector fills it."""

    def __init__(self, view: ClusterCache) -> None:
        self.view = view
        self.filled = threading.Event()
        self.heard_at = float("-inf")

    def heard(self) -> None:
        self.heard_at = time.monotonic()

    def replace(self, objects: Sequence[Object], age: float = 0.0) -> None:
        with self.view._lock:
            self._replace(objects, time.monotonic() - self.heard_at)
            self.heard_at = time.monotonic() - age
        self.filled.set()  # set after `heard_at`, because waiting threads then read `heard_at`
        self.view.notify()

    def put(self, thing: Object) -> None:
        with self.view._lock:
            self._put(thing, 0.0)
        self.view.notify()

    def remove(self, thing: Object) -> None:
        with self.view._lock:
            self._remove(thing, 0.0)
        self.view.notify()

    def _replace(self, found: Sequence[Object], gap: float) -> None:
        raise NotImplementedError

    def _put(self, thing: Object, gap: float) -> None:
        raise NotImplementedError

    def _remove(self, thing: Object, gap: float) -> None:
        raise NotImplementedError


class _Jobs(_Mirror):
    def _replace(self, found: Sequence[Object], gap: float) -> None:
        there = {job["metadata"]["uid"] for job in found}
        for gang in list(self.view._gangs.values()):
            if gang.job["metadata"]["uid"] not in there and not objects.is_bare(gang.job):
                self.view._remove_job(gang.job, gap)
        for job in found:
            self.view._put_job(job, gap)

    def _put(self, thing: Object, gap: float) -> None:
        self.view._put_job(thing, gap)

    def _remove(self, thing: Object, gap: float) -> None:
        self.view._remove_job(thing, gap)


class _Pods(_Mirror):
    def _replace(self, found: Sequence[Object], gap: float) -> None:
        there = {pod["metadata"]["uid"] for pod in found}
        # New pods come first. Otherwise a gang whose pod was replaced would have no pod for a moment.
        for pod in found:
            self.view._put_pod(pod, gap)
        for uid in set(self.view._job_of_pod) - there:
            self.view._remove_pod(uid, gap)

    def _put(self, thing: Object, gap: float) -> None:
        self.view._put_pod(thing, gap)

    def _remove(self, thing: Object, gap: float) -> None:
        if objects.is_bare(thing):
            self.view._record_last_state(thing)
        self.view._remove_pod(thing["metadata"]["uid"], gap)


class _Nodes(_Mirror):
    def _replace(self, found: Sequence[Object], gap: float) -> None:
        self._set({node["metadata"]["name"]: discovery.supplies(node) for node in found})

    def _put(self, thing: Object, gap: float) -> None:
        self._set(self.view._nodes | {thing["metadata"]["name"]: discovery.supplies(thing)})

    def _remove(self, thing: Object, gap: float) -> None:
        gone = thing["metadata"]["name"]
        self._set({name: found for name, found in self.view._nodes.items() if name != gone})

    def _set(self, nodes: dict[str, list[discovery.Supply]]) -> None:
        if nodes != self.view._nodes:
            self.view._nodes, self.view._hosts_changed = nodes, True


class _ForeignPods(_Mirror):
    """The part of the cache that holds pods that use GPUs and do not belong to Fairlot."""

    def _replace(self, found: Sequence[Object], gap: float) -> None:
        self._set({pod["metadata"]["uid"]: held for pod in found if (held := _held(pod))})

    def _put(self, thing: Object, gap: float) -> None:
        uid, held = thing["metadata"]["uid"], _held(thing)
        if held:
            self._set(self.view._held_by_others | {uid: held})
        else:
            self._remove(thing, gap)

    def _remove(self, thing: Object, gap: float) -> None:
        uid = thing["metadata"]["uid"]
        if uid in self.view._held_by_others:
            self._set({key: held for key, held in self.view._held_by_others.items() if key != uid})

    def _set(self, held: dict[str, tuple[str, Counter[str]]]) -> None:
        if held != self.view._held_by_others:
            self.view._held_by_others, self.view._hosts_changed = held, True


def _held(pod: Object) -> tuple[str, Counter[str]] | None:
    """Returns a pair: the node of a foreign pod, and the number of GPUs that the pod holds there, by resource name.

    A foreign pod is one that Fairlot did not create. Returns None if the pod holds no GPUs.
    """
    used = discovery.used_by_others([pod])
    if not used:
        return None
    return pod["spec"]["nodeName"], Counter({resource: gpus for (_, resource), gpus in used.items()})
