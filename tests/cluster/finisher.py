"""Completes started Jobs, in place of the Job controller, the scheduler and the nodes, for benchmarks without pods.

As in Kueue's own benchmark, a started Job completes as soon as its simulated duration is over.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from scheduling.backends.kubernetes import objects
from tests.cluster.api import Object, Refused
from tests.cluster.controlplane import ControlPlane
from tests.cluster.player import Player

# Fairlot's policies and Kubernetes' RBAC rules allow this user to set the status of Jobs.
USER = "system:serviceaccount:kube-system:job-controller"
ALL_JOBS = "/apis/batch/v1/jobs"


class Finisher(Player):
    """Completes Jobs in place of real components. `seconds_of` returns the duration of a Job's program in seconds.

    `began` maps job IDs to the Unix time at which the job was first started.
    """

    def __init__(self, plane: ControlPlane, seconds_of: Callable[[Object], float]) -> None:
        super().__init__(plane.kubeconfig(USER), ALL_JOBS)
        self._seconds_of = seconds_of
        self.began: dict[int, float] = {}

    @contextmanager
    def started(self) -> Iterator[Finisher]:
        with self._playing():
            yield self

    def check(self) -> None:
        """Raises the error that stopped the finisher's thread, if there is one."""
        if self.trouble is not None:
            raise self.trouble

    def _play(self) -> None:
        """Sets the status of each Job once after each start and stop.

        A started Job becomes complete when its duration is over. A stopped Job immediately becomes suspended.
        """
        due: list[tuple[float, int, Object]] = []
        numbers, known = itertools.count(), set[tuple[str, int]]()
        while not self._stopped.is_set():
            try:
                job = self._seen.get(timeout=max(0.0, due[0][0] - time.monotonic()) if due else None)
            except queue.Empty:
                self._say(heapq.heappop(due)[2])
                continue
            if job is None or not self._concerns(job) or (attempt := _attempt(job)) in known:
                continue
            known.add(attempt)
            seconds = 0.0
            if not objects.is_suspended(job):
                self.began.setdefault(objects.job_id_of(job), time.time())
                seconds = self._seconds_of(job)
            heapq.heappush(due, (time.monotonic() + seconds, next(numbers), job))

    @staticmethod
    def _concerns(job: Object) -> bool:
        return objects.epoch_of(job) > 0 and not objects.condition(job, "Complete")

    def _say(self, job: Object) -> None:
        about = job["metadata"]
        path = f"/apis/batch/v1/namespaces/{about['namespace']}/jobs/{about['name']}/status"
        say = _suspended if objects.is_suspended(job) else _complete
        try:
            self._api.replace(path, {**job, "status": say()})
        except Refused as refusal:
            if refusal.code not in (404, 409):  # the Job was deleted or changed
                raise


def _attempt(job: Object) -> tuple[str, int]:
    """Returns (UID, metadata.generation) of a Job. The pair differs after each order."""
    # Every order increases the generation.
    return job["metadata"]["uid"], job["metadata"]["generation"]


def _complete() -> Object:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "startTime": now,
        "completionTime": now,
        "succeeded": 1,
        "completedIndexes": "0",
        "uncountedTerminatedPods": {},
        "conditions": [_condition("SuccessCriteriaMet", now), _condition("Complete", now)],
    }


def _suspended() -> Object:
    return {"conditions": [_condition("Suspended", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))]}


def _condition(kind: str, now: str) -> Object:
    return {"type": kind, "status": "True", "lastProbeTime": now, "lastTransitionTime": now}
