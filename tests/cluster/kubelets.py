"""Simulates the kubelets of a few nodes without delay, for tests in which pods must not be held up.

kwok can simulate thousands of nodes, but after some dozens of pods it has ignored further pods for tens of seconds. The
kubelets of this module follow the same annotations (stages.yaml).
"""

from __future__ import annotations

import heapq
import itertools
import queue
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from tests.cluster.api import NODES, PODS, Object, Refused
from tests.cluster.controlplane import ControlPlane
from tests.cluster.nodes import add_nodes, gpu_node
from tests.cluster.player import Player

# The user name of the simulated kubelets, which also appears in the audit log.
USER = "kwok"
MANAGER = "kubelets"  # field manager of the fields that the kubelets write
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
LEASE_SECONDS = 40
HEARTBEAT_SECONDS = 10.0
ALL_PODS = "/api/v1/pods"
# HTTP statuses for a pod that was changed meanwhile or is gone. The watch reports its new state.
OVERTAKEN = (404, 409, 422)


class Kubelets(Player):
    """The simulated kubelets of the nodes `names`. They handle only pods that match the label selector."""

    def __init__(self, plane: ControlPlane, names: Sequence[str], selector: str) -> None:
        super().__init__(plane.kubeconfig(USER), ALL_PODS, labelSelector=selector)
        self.names = list(names)
        self._api.http.headers["User-Agent"] = MANAGER
        self._admin = plane.admin

    @contextmanager
    def started(self, **node: Any) -> Iterator[Kubelets]:
        """Creates the nodes and simulates them until the end of the block. `node` contains arguments of `gpu_node`."""
        try:
            with self._playing(self._beat):
                add_nodes(self._admin, (self._node(name, node) for name in self.names))
                yield self
        finally:  # later tests must not find nodes that nothing simulates any more
            there = {node["metadata"]["name"] for node in self._admin.items(NODES)}
            for name in there & set(self.names):
                self._admin.delete(f"{NODES}/{name}")

    def _node(self, name: str, asked: Mapping[str, Any]) -> Object:
        node = gpu_node(name, **asked)
        node["metadata"]["annotations"] = {}  # keeps kwok from simulating the node too
        return node

    # --- nodes -----------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Reports the nodes as ready by renewing their Lease objects."""
        told: set[str] = set()
        while not self._stopped.wait(HEARTBEAT_SECONDS if told == set(self.names) else 0.05):
            there = {node["metadata"]["name"] for node in self._api.items(NODES)}
            for name in self.names:
                if name in there:
                    self._renew(name)
                    if name not in told:
                        self._api.merge(f"{NODES}/{name}/status", {"status": _ready_node(name)})
                        told.add(name)

    def _renew(self, name: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
        try:
            self._api.merge(f"{LEASES}/{name}", {"spec": spec})
        except Refused as refusal:
            if refusal.code != 404:
                raise
            self._api.create(LEASES, {"metadata": {"name": name}, "spec": spec})

    # --- pods ------------------------------------------------------------------------------------

    def _play(self) -> None:
        """Applies the next change to each pod when the change is due. Delays count from the pod's last change."""
        newest: dict[str, str] = {}
        numbers = itertools.count()
        due: list[tuple[float, int, Object]] = []
        while not self._stopped.is_set():
            try:
                pod = self._seen.get(timeout=max(0.0, due[0][0] - time.monotonic()) if due else None)
            except queue.Empty:
                _, _, pod = heapq.heappop(due)
                if newest.get(pod["metadata"]["uid"]) == pod["metadata"]["resourceVersion"]:
                    self._act(pod)
                continue
            if pod is None or pod["spec"].get("nodeName") not in self.names:
                continue
            newest[pod["metadata"]["uid"]] = pod["metadata"]["resourceVersion"]
            if (after := _seconds_until_due(pod)) is not None:
                heapq.heappush(due, (time.monotonic() + after, next(numbers), pod))

    def _act(self, pod: Object) -> None:
        about = pod["metadata"]
        path = f"{PODS.format(about['namespace'])}/{about['name']}"
        same = {"op": "test", "path": "/metadata/resourceVersion", "value": about["resourceVersion"]}
        try:
            if _has_ended(pod):
                self._api.delete(path, gracePeriodSeconds=0, preconditions={"uid": about["uid"]})
            else:
                status = _ended(pod) if _is_to_end(pod) else _running(pod)
                self._api.patch(f"{path}/status", [same, {"op": "add", "path": "/status", "value": status}])
        except Refused as refusal:
            if refusal.code not in OVERTAKEN:
                raise


def _has_ended(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def _is_to_end(pod: Object) -> bool:
    is_over = "deletionTimestamp" in pod["metadata"] or "activeDeadlineSeconds" in pod["spec"]
    return is_over or pod["status"].get("phase") == "Running"


def _mark(pod: Object, name: str) -> str | None:
    value: str | None = pod["metadata"].get("annotations", {}).get(f"test.fairlot/{name}")
    return value


def _seconds_until_due(pod: Object) -> float | None:
    """Returns how many seconds after the pod's last change the kubelet's next change is due; None if none is due."""
    about = pod["metadata"]
    if _has_ended(pod):
        return 0.0 if "deletionTimestamp" in about and not about.get("finalizers") else None
    if "deletionTimestamp" in about:
        return min(float(_mark(pod, "stop-after") or 0), float(about["deletionGracePeriodSeconds"]))
    if "activeDeadlineSeconds" in pod["spec"]:
        grace = pod["spec"]["terminationGracePeriodSeconds"]
        return min(float(_mark(pod, "stop-after") or 0), float(grace))
    if pod["status"].get("phase") == "Running":
        ends = _mark(pod, "run-for")
        return None if ends is None else float(ends)
    return float(_mark(pod, "start-after") or 0)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _ready_node(name: str) -> Object:
    now = _now()
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "is played"}
    return {
        "conditions": [ready | {"lastHeartbeatTime": now, "lastTransitionTime": now}],
        "addresses": [
            {"type": "InternalIP", "address": "10.0.0.1"},
            {"type": "Hostname", "address": name},
        ],
    }


def _conditions(pod: Object, status: str, kinds: Sequence[str], reason: str = "") -> list[Object]:
    """Returns the pod's conditions with the types `kinds` set to `status`. Keeps conditions of other types."""
    others = [one for one in pod["status"].get("conditions", []) if one["type"] not in kinds]
    said = {"status": status, "lastTransitionTime": _now()} | ({"reason": reason} if reason else {})
    return [*others, *({"type": kind} | said for kind in kinds)]


def _running(pod: Object) -> Object:
    now = _now()
    status: Object = pod["status"]
    ready = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
    return status | {
        "phase": "Running",
        "conditions": _conditions(pod, "True", ready),
        "containerStatuses": [
            _container(box, {"running": {"startedAt": now}}, runs=True) for box in pod["spec"]["containers"]
        ],
        "hostIP": "10.0.0.1",
        "startTime": now,
    }


def _ended(pod: Object) -> Object:
    now = _now()
    is_deleted, is_over = "deletionTimestamp" in pod["metadata"], "activeDeadlineSeconds" in pod["spec"]
    said = _mark(pod, "stop-exit-code") or 143 if is_deleted or is_over else _mark(pod, "exit-code") or 0
    code = int(said)
    why = {"reason": "DeadlineExceeded"} if is_over and not is_deleted else {}
    end = {
        "exitCode": code,
        "reason": "Error" if code else "Completed",
        "startedAt": pod["status"].get("startTime", now),
        "finishedAt": now,
    }
    reason = "PodFailed" if code else "PodCompleted"
    status: Object = pod["status"]
    return (
        status
        | why
        | {
            "phase": "Failed" if code or why else "Succeeded",
            "conditions": _conditions(pod, "False", ("ContainersReady", "Ready"), reason),
            "containerStatuses": [
                _container(box, {"terminated": end}, runs=False) for box in pod["spec"]["containers"]
            ],
        }
    )


def _container(box: Object, state: Object, *, runs: bool) -> Object:
    return {
        "name": box["name"],
        "image": box["image"],
        "imageID": "",
        "ready": runs,
        "restartCount": 0,
        "started": runs,
        "state": state,
    }
