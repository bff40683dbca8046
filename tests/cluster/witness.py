"""Watches every pod and records violations of invariants, independently of Fairlot's own data.

The invariants: the pods bound to a node request at most as many GPUs as the node has, no worker has two bound pods,
and no part of a gang runs for long without the other workers.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from scheduling.backends.kubernetes import objects
from scheduling.backends.kubernetes.api import Api, Object
from scheduling.backends.kubernetes.discovery import requested
from scheduling.backends.kubernetes.reflector import Reflector


class Witness:
    """Checks the invariants on each event of a pod. A reflector, which watches the pods, calls the methods for events.

    `faults` has one sentence for each violation.
    """

    def __init__(self, capacity: Mapping[str, int]) -> None:
        """`capacity` maps the name of each node to its number of GPUs."""
        self.capacity = capacity
        self.faults: list[str] = []
        self.most_bound = 0  # most GPUs bound at one moment
        self.started = 0  # number of pods that have run
        self.longest_part = 0.0  # most seconds that a part of a gang ran without the other workers
        self._alive: dict[str, Object] = {}  # pods by UID
        # UIDs by (namespace, job, rank).
        self._workers: dict[tuple[str, int, int], set[str]] = defaultdict(set)
        self._bound: dict[str, int] = defaultdict(int)
        self._parts: dict[tuple[str, int, int], float] = {}  # start by (namespace, job, epoch)
        # Ranks by (namespace, job, epoch).
        self._running: dict[tuple[str, int, int], set[int]] = defaultdict(set)
        self._size: dict[tuple[str, int], int] = {}
        self._ran: set[str] = set()

    @contextmanager
    def watching(self, api: Api) -> Iterator[Witness]:
        reflector = Reflector(api, "/api/v1/pods", self, {"labelSelector": objects.JOB})
        thread = threading.Thread(target=reflector.run, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            reflector.stop()
            thread.join()
        if reflector.lists > 1:
            self.faults.append("the witness looked away: what happened meanwhile is not known")

    def knows(self, namespace: str, job_id: int, workers: int) -> None:
        """Records the number of workers of a gang, which the witness needs to see whether a gang runs without some
        workers."""
        self._size[namespace, job_id] = workers

    def replace(self, found: Sequence[Object], age: float = 0.0) -> None:
        for pod in found:
            self.put(pod)

    def heard(self) -> None:
        """Does nothing. The reflector calls this method at each answer of the API server, and an answer violates no
        invariant."""

    def put(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        before = self._alive.pop(uid, None)
        if before is not None:
            self._leave(before)
        if not objects.has_ended(pod):
            self._alive[uid] = pod
            self._enter(pod)
        self._judge_gang(pod)

    def remove(self, pod: Object) -> None:
        before = self._alive.pop(pod["metadata"]["uid"], None)
        if before is not None:
            self._leave(before)
        self._judge_gang(pod)

    def _enter(self, pod: Object) -> None:
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
        if node:
            self._bound[node] += sum(requested(pod).values())
            if self._bound[node] > self.capacity[node]:
                self.faults.append(f"{self._bound[node]} GPUs are bound on {node}")
            self.most_bound = max(self.most_bound, sum(self._bound.values()))
        worker = _worker(pod)
        self._workers[worker].add(uid)
        # A pod behind its gate or without a node holds no GPUs and runs nothing.
        placed = [one for one in self._workers[worker] if self._alive[one]["spec"].get("nodeName")]
        if len(placed) > 1:
            self.faults.append(f"two pods of worker {worker} at once: {placed}")
        if pod["status"].get("phase") == "Running":
            self._running[_attempt(pod)].add(objects.rank_of(pod))
            if uid not in self._ran:
                self._ran.add(uid)
                self.started += 1

    def _leave(self, pod: Object) -> None:
        if node := pod["spec"].get("nodeName"):
            self._bound[node] -= sum(requested(pod).values())
        self._workers[_worker(pod)].discard(pod["metadata"]["uid"])
        self._running[_attempt(pod)].discard(objects.rank_of(pod))

    def _judge_gang(self, pod: Object) -> None:
        namespace, job_id, _ = attempt = _attempt(pod)
        size, running = self._size.get((namespace, job_id)), self._running[attempt]
        told_to_go = "deletionTimestamp" in pod["metadata"] or objects.has_ended(pod)
        if size is None or not running or len(running) == size or told_to_go:
            since = self._parts.pop(attempt, None)
            if since is not None:
                self.longest_part = max(self.longest_part, time.monotonic() - since)
        else:
            self._parts.setdefault(attempt, time.monotonic())


def _worker(pod: Object) -> tuple[str, int, int]:
    return pod["metadata"]["namespace"], objects.job_id_of(pod), objects.rank_of(pod)


def _attempt(pod: Object) -> tuple[str, int, int]:
    return pod["metadata"]["namespace"], objects.job_id_of(pod), objects.epoch_of(pod)
