"""The ungater, which starts gangs so that either all pods of a gang run or none does.

Every pod of a gang is created with a scheduling gate. When all pods of the gang exist, the ungater removes each pod's
gate and binds the pod to the node of its rank. Kueue's topology ungater works in the same way (kueue.x-k8s.io,
pkg/controller/tas).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from uuid import UUID

from scheduling.backends.base import End, Phase
from scheduling.backends.kubernetes import objects, parts, podgroups
from scheduling.backends.kubernetes.api import Api, Invalid, Missing, Object, Refused
from scheduling.backends.kubernetes.cluster_cache import ClusterCache, Gang
from scheduling.backends.kubernetes.gang_status import (
    GangStatus,
    because,
    is_incomplete,
    removal_reason,
    start_obstacle,
)
from scheduling.backends.kubernetes.orders import JOBS, Commands, NotOurs, StillThere, delete_pod

logger = logging.getLogger(__name__)

# Seconds until all workers of a gang must run. Nodes may first have to pull images of some GiB.
START_SECONDS = 600.0
# Seconds until all pods of a gang must exist. Only a quota, a policy or a slow controller can delay them.
GATHER_SECONDS = 120.0
SWEEP_SECONDS = 10.0  # between two searches for pods without a Job and for bare pods to delete
# Seconds for which an ended bare pod is kept, so that its name blocks late orders.
KEEP_SECONDS = 600.0
REMOVED = 100  # pods deleted per search: a fifth of the usual rate limit of writes
AT_ONCE = 8  # gates opened in parallel
UNSEEN = "a worker was removed while Fairlot was not watching the cluster"


class GangUngater:
    """Opens the scheduling gates of gangs whose pods all exist. Stops gangs that fail to start or have lost a worker.

    An instance remembers when each gang began to start, so that it can stop gangs that take too long.
    """

    def __init__(
        self,
        *,
        start_seconds: float = START_SECONDS,
        gather_seconds: float = GATHER_SECONDS,
        sweep_seconds: float = SWEEP_SECONDS,
        keep_seconds: float = KEEP_SECONDS,
    ) -> None:
        self._start_seconds, self._gather_seconds = start_seconds, gather_seconds
        self._sweep_seconds, self._swept_at = sweep_seconds, time.monotonic()
        self._keep_seconds = keep_seconds
        self._since: dict[UUID, float] = {}
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="gates")

    def advance(self, api: Api, view: ClusterCache, orders: Callable[[int], Commands]) -> None:
        """Opens the scheduling gates of gangs whose pods all exist. Stops gangs that fail to start or have lost a
        worker.

        At intervals, also deletes running pods whose Job is gone, and bare pods that ended some time ago.

        `view` is the cache of the cluster's gangs. `orders` is a function that takes a job ID and returns the Commands
        for this job. Raises Unreachable if the API server does not answer.
        """
        unsettled = view.unsettled()
        with_roles = view.unsettled_roles()
        all_parts = [part for gang in with_roles for part in gang]
        coming = {status.token for _, status in (*unsettled, *all_parts) if status.phase is Phase.STARTING}
        self._since = {token: self._since.get(token, time.monotonic()) for token in coming}
        for gang, status in unsettled:
            try:
                end, why = self._trouble(gang, status)
                if end:
                    _stop_gang(status, orders(status.job_id), end, why)
                else:
                    self._ungate(api, gang)
            # A failure with one gang must not hold up the other gangs.
            except (Refused, NotOurs, StillThere, KeyError) as trouble:
                logger.warning("job %s, attempt %s: %s", status.job_id, status.epoch, trouble)
        for its_parts in with_roles:
            status = its_parts[0][1]
            try:
                self._advance_roles(api, its_parts, orders(status.job_id))
            except (Refused, NotOurs, StillThere, KeyError) as trouble:
                logger.warning("job %s, attempt %s: %s", status.job_id, status.epoch, trouble)
        if time.monotonic() - self._swept_at >= self._sweep_seconds:
            self._swept_at = time.monotonic()
            for pod in view.orphans():
                try:
                    _stop_orphan(api, pod)
                except Refused as trouble:
                    logger.warning("pod %s has lost its Job: %s", pod["metadata"]["name"], trouble)
            over = view.ended_bare_pods(self._keep_seconds)
            # The choice is random, so that pods that cannot be deleted do not hold up other pods.
            some = random.sample(over, min(REMOVED, len(over)))
            list(self._pool.map(partial(_remove, api), some))

    def _advance_roles(
        self, api: Api, its_parts: Sequence[tuple[Gang, GangStatus]], orders: Commands
    ) -> None:
        """Opens the gates of a gang with roles if the pods of all parts exist. Stops all parts if something has decided
        how the gang ends, such as the end of a role that ends the job."""
        states = [parts.state_of(gang.job, status) for gang, status in its_parts]
        now = parts.latest(states)
        epoch = now[0].status.epoch
        gangs = {objects.part_of(gang.job): gang for gang, status in its_parts if status.epoch == epoch}
        of = objects.parts_of(its_parts[0][0].job)
        lead = gangs.get(0)
        end: End | None
        # The lead was ordered to stop, perhaps by a process that died before it stopped the other parts.
        if lead is not None and objects.is_suspended(lead.job):
            end, why = End.STOPPED, ""
        elif found := parts.verdict(now, of):
            end, why = found.end, found.message
        else:
            troubles = (
                self._trouble(gangs[state.number], state.status) for state in now if not state.has_ended
            )
            end, why = next((trouble for trouble in troubles if trouble[0]), (None, ""))
            if end is None and of > len(now):
                waited = time.monotonic() - self._since.get(now[0].status.token, time.monotonic())
                if waited > self._gather_seconds:
                    end, why = End.START_FAILED, parts.INCOMPLETE
        if end is not None:
            _stop_parts(now, gangs, orders, because(end, why) if why else "")
        elif len(now) == of and all(map(_is_gathered, gangs.values())):
            for gang in gangs.values():
                self._ungate(api, gang)

    def _trouble(self, gang: Gang, status: GangStatus) -> tuple[End | None, str]:
        """Returns why the gang must be stopped, as a pair: the kind of end to record (`LOST` or `START_FAILED`), and
        the reason in words for users.

        Returns (None, "") if the gang need not be stopped.
        """
        pods = objects.of_attempt(gang.job, list(gang.pods.values()))
        if lost := gang.lost or removal_reason(gang.job, pods):
            return End.LOST, lost
        if is_incomplete(gang.job, pods) or _has_new(gang, pods):
            return End.LOST, UNSEEN
        if status.phase is not Phase.STARTING:
            return None, ""
        if hopeless := start_obstacle(pods):
            return End.START_FAILED, hopeless
        missing = len(pods) < objects.workers_of(gang.job)
        if missing and gang.denial and gang.denial.is_final:
            return End.START_FAILED, gang.denial.words
        waited = time.monotonic() - self._since[status.token]
        if missing and waited > self._gather_seconds:
            workers = objects.workers_of(gang.job)
            made = f"only {len(pods)} of the job's {workers} pods were created within {waited:.0f} s"
            return End.START_FAILED, f"{made}: {gang.denial.words}" if gang.denial else made
        if waited > self._start_seconds:
            return (
                End.START_FAILED,
                f"not all of the job's workers started within {waited:.0f} s{_unplaced(pods)}",
            )
        return None, ""

    def _ungate(self, api: Api, gang: Gang) -> None:
        """Opens the scheduling gates of the gang's pods. Does nothing until all pods of the gang exist."""
        pods = objects.of_attempt(gang.job, list(gang.pods.values()))
        gated = [pod for pod in pods if objects.is_gated(pod)]
        if not gated or not _is_gathered(gang):
            return
        nodes, members = objects.nodes_of(gang.job), objects.members_of(pods)
        list(self._pool.map(lambda pod: _open(api, pod, nodes[objects.index_of(pod)], members), gated))


def _is_gathered(gang: Gang) -> bool:
    """Returns whether all pods of the Job's latest attempt exist, among them those that have ended."""
    pods = objects.of_attempt(gang.job, list(gang.pods.values()))
    return {objects.index_of(pod) for pod in pods} == set(range(objects.workers_of(gang.job)))


def _stop_parts(
    now: Sequence[parts.PartState], gangs: Mapping[int, Gang], orders: Commands, reason: str
) -> None:
    """Stops the parts of a gang that have not been stopped, the lead first. Its Job keeps `reason`, from `because`."""
    for state in now:
        status, is_lead = state.status, state.number == 0
        # A lead that has ended by itself is stopped too, so that the Job keeps how its gang has ended.
        if objects.is_suspended(gangs[state.number].job) or (state.has_ended and not is_lead):
            continue
        logger.warning(
            "job %s, attempt %s, %s is stopped: %s", status.job_id, status.epoch, state.role, reason
        )
        orders.of_part(state.number).stop(
            status.job_id, epoch=status.epoch, token=str(status.token), because=reason if is_lead else ""
        )


def _has_new(gang: Gang, pods: Sequence[Object]) -> bool:
    """Returns whether a pod of the gang still has a scheduling gate, although all workers of the gang have run before.

    Such a pod was created later, as a replacement for a worker that was lost.
    """
    return gang.ran is not None and any(map(objects.is_gated, pods))


def _stop_gang(status: GangStatus, orders: Commands, end: End, why: str) -> None:
    logger.warning("job %s, attempt %s, is stopped: %s", status.job_id, status.epoch, why)
    orders.stop(status.job_id, epoch=status.epoch, token=str(status.token), because=because(end, why))


def _stop_orphan(api: Api, pod: Object) -> None:
    """Deletes a pod that outlived its Job. Does nothing if the API server still has the Job."""
    about = pod["metadata"]
    if _has_job(api, pod):
        return
    logger.warning("pod %s in %s has lost its Job and is stopped", about["name"], about["namespace"])
    delete_pod(api, pod)


def _remove(api: Api, pod: Object) -> None:
    try:
        delete_pod(api, pod)
    except Refused as trouble:
        logger.warning("pod %s stays: %s", pod["metadata"]["name"], trouble)


def _has_job(api: Api, pod: Object) -> bool:
    """Returns whether the pod's Job exists. Asks the API server, because the watch may not have reported the Job
    yet."""
    name = objects.job_name(objects.job_id_of(pod), objects.part_of(pod))
    try:
        job = api.get(f"{JOBS.format(pod['metadata']['namespace'])}/{name}")
    except Missing:
        return False
    return objects.is_of(pod, job)


def _open(api: Api, pod: Object, node: str, members: str) -> None:
    about = pod["metadata"]
    path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"
    try:
        api.patch(path, objects.ungate(about["uid"], node=node, members=members))
    except Missing:
        logger.info("pod %s is gone before its gate was opened", about["name"])
    except Invalid as refusal:
        # An earlier call opened the gate, but the watch has not reported that yet. Otherwise the next call tries again.
        logger.info("the gate of pod %s: %s", about["name"], refusal.message)


def _unplaced(pods: Sequence[Object]) -> str:
    """Returns the Kubernetes scheduler's message about a pod that it could not bind to a node, or "" if all pods could
    be bound.

    The text begins with ": ", because the caller appends it to another message.
    """
    for pod in pods:
        for found in pod.get("status", {}).get("conditions", ()):
            said = str(found.get("message", ""))
            is_unplaced = found["type"] == "PodScheduled" and found["status"] == "False"
            if is_unplaced and said and not podgroups.only_waits(said):
                return f": {said}"
    return ""
