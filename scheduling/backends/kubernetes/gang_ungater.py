"""Bringing gangs up: all of their pods are let run at once, or none of them ever runs.

Two steps, as Kueue's topology ungater does it (kueue.x-k8s.io, pkg/controller/tas): every pod of a gang is
made behind a scheduling gate, and only when all are there is each let through to the node of its rank.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from uuid import UUID

from scheduling.backends.base import End, Phase
from scheduling.backends.kubernetes import objects, podgroups
from scheduling.backends.kubernetes.api import Api, Invalid, Missing, Object, Refused
from scheduling.backends.kubernetes.cluster_cache import Gang, View
from scheduling.backends.kubernetes.gang_status import Sight, because, hindrance, is_incomplete, taken_away
from scheduling.backends.kubernetes.orders import JOBS, Commands, NotOurs, StillThere, delete_pod

logger = logging.getLogger(__name__)

# Until all workers of a gang run; images of some GiB may have to be pulled first.
START_SECONDS = 600.0
# Until all pods of a gang exist: nothing but a quota, a policy or a slow controller stands between.
GATHER_SECONDS = 120.0
SWEEP_SECONDS = 10.0  # between two looks for pods that have lost their Job, or are needed no more
# Bare pods that have ended keep their name for so long, and with it late requests off.
KEEP_SECONDS = 600.0
REMOVED = 100  # of them, at most, at each look: a fifth of the usual limit of writes
AT_ONCE = 8  # gates that are opened at the same time
UNSEEN = "a worker was taken away before anybody looked"


class Tender:
    """Remembers since when gangs have been coming up, by its own clock."""

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

    def tend(self, api: Api, view: View, orders: Callable[[int], Commands]) -> None:
        """One look at every gang that is coming up or runs. Raises Unreachable."""
        unsettled = view.unsettled()
        coming = {sight.token for _, sight in unsettled if sight.phase is Phase.STARTING}
        self._since = {token: self._since.get(token, time.monotonic()) for token in coming}
        for gang, sight in unsettled:
            try:
                end, why = self._trouble(gang, sight)
                if end:
                    _take_back(sight, orders(sight.job_id), end, why)
                else:
                    self._let_through(api, gang)
            # Which does not keep the others waiting.
            except (Refused, NotOurs, StillThere, KeyError) as trouble:
                logger.warning("job %s, turn %s: %s", sight.job_id, sight.epoch, trouble)
        if time.monotonic() - self._swept_at >= self._sweep_seconds:
            self._swept_at = time.monotonic()
            for pod in view.orphans():
                try:
                    _stop_orphan(api, pod)
                except Refused as trouble:
                    logger.warning("pod %s has lost its Job: %s", pod["metadata"]["name"], trouble)
            over = view.tombstones(self._keep_seconds)
            # Any of them, so that what cannot go keeps no others.
            some = random.sample(over, min(REMOVED, len(over)))
            list(self._pool.map(partial(_remove, api), some))

    def _trouble(self, gang: Gang, sight: Sight) -> tuple[End | None, str]:
        """Why a gang has to be taken back, and how that counts; None when it has not."""
        pods = objects.of_turn(gang.job, list(gang.pods.values()))
        if lost := gang.lost or taken_away(gang.job, pods):
            return End.LOST, lost
        if is_incomplete(gang.job, pods) or _has_new(gang, pods):
            return End.LOST, UNSEEN
        if sight.phase is not Phase.STARTING:
            return None, ""
        if hopeless := hindrance(pods):
            return End.START_FAILED, hopeless
        missing = len(pods) < objects.workers_of(gang.job)
        if missing and gang.denial and gang.denial.is_final:
            return End.START_FAILED, gang.denial.words
        waited = time.monotonic() - self._since[sight.token]
        if missing and waited > self._gather_seconds:
            made = f"{len(pods)} of its {objects.workers_of(gang.job)} pods were made in {waited:.0f} s"
            return End.START_FAILED, f"{made}: {gang.denial.words}" if gang.denial else made
        if waited > self._start_seconds:
            return End.START_FAILED, f"not all of its workers ran within {waited:.0f} s{_unplaced(pods)}"
        return None, ""

    def _let_through(self, api: Api, gang: Gang) -> None:
        """Opens the gates of a gang whose pods are all there; one that is open already stays open."""
        pods = objects.of_turn(gang.job, list(gang.pods.values()))
        gated = [pod for pod in pods if objects.is_gated(pod)]
        if not gated or {objects.rank_of(pod) for pod in pods} != set(range(objects.workers_of(gang.job))):
            return
        nodes, members = objects.nodes_of(gang.job), objects.members_of(pods)
        list(self._pool.map(lambda pod: _open(api, pod, nodes[objects.rank_of(pod)], members), gated))


def _has_new(gang: Gang, pods: Sequence[Object]) -> bool:
    """Whether a worker waits behind its gate though all have run."""
    return gang.ran is not None and any(map(objects.is_gated, pods))


def _take_back(sight: Sight, orders: Commands, end: End, why: str) -> None:
    logger.warning("job %s, turn %s, is taken back: %s", sight.job_id, sight.epoch, why)
    orders.stop(sight.job_id, epoch=sight.epoch, token=str(sight.token), because=because(end, why))


def _stop_orphan(api: Api, pod: Object) -> None:
    """Whoever deletes a Job without its pods leaves nobody who would ever stop them."""
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
    """By a fresh look: the Job may only not have been told of yet."""
    name = objects.job_name(objects.job_id_of(pod))
    try:
        job = api.get(f"{JOBS.format(pod['metadata']['namespace'])}/{name}")
    except Missing:
        return False
    return objects.is_of(pod, job)


def _open(api: Api, pod: Object, node: str, members: str) -> None:
    about = pod["metadata"]
    path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"
    try:
        api.patch(path, objects.let_through(about["uid"], node=node, members=members))
    except Missing:
        logger.info("pod %s is gone before its gate was opened", about["name"])
    except Invalid as refusal:
        # Opened before, which has not been told yet; else the next look finds it closed again.
        logger.info("the gate of pod %s: %s", about["name"], refusal.message)


def _unplaced(pods: Sequence[Object]) -> str:
    """What the scheduler says of a pod that it could not place."""
    for pod in pods:
        for found in pod.get("status", {}).get("conditions", ()):
            said = str(found.get("message", ""))
            is_unplaced = found["type"] == "PodScheduled" and found["status"] == "False"
            if is_unplaced and said and not podgroups.only_waits(said):
                return f": {said}"
    return ""
