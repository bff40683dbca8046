"""Runs pods with real containers on the real node, and reads their output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.cluster.api import PODS, Api, Object, Refused
from tests.cluster.images import PYTHON
from tests.cluster.realnode import GPU, RealNode
from tests.waiting import wait_for


class Containers:
    """Creates and reads pods on the real node, in one namespace that enforces the pod security standard
    `restricted`."""

    def __init__(self, api: Api, namespace: str, node: RealNode) -> None:
        self.api, self.node = api, node
        self.pods = PODS.format(namespace)

    def run(
        self, name: str, command: Sequence[str], *, image: str = PYTHON, gpus: int = 0, memory: str = "512Mi",
        **spec: Any,
    ) -> Object:  # fmt: skip
        limits = {"memory": memory} | ({GPU: str(gpus)} if gpus else {})
        container = {
            "name": "main",
            "image": image,
            "command": list(command),
            "resources": {"limits": limits, "requests": {"cpu": "10m"}},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
        container |= spec.pop("container", {})
        secure = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
        content = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "nodeSelector": {"kubernetes.io/hostname": self.node.name},
            "securityContext": secure,
            "containers": [container],
            **spec,
        }
        return self.api.create(self.pods, {"metadata": {"name": name}, "spec": content})

    def read(self, name: str) -> Object:
        return self.api.get(f"{self.pods}/{name}")

    def log(self, name: str, **query: Any) -> str:
        """Returns the output of the container so far."""
        answer = self.api.http.get(f"{self.pods}/{name}/log", params=query)
        if answer.is_error:
            raise Refused(answer)
        return answer.text

    def first_line(self, name: str) -> str:
        def line() -> str:
            self.wait_for_phase(name, "Running", "Succeeded")
            return self.log(name).partition("\n")[0]

        return wait_for(line, what=lambda: f"{name} says something: {self.read(name)['status']}", every=0.2)

    def wait_for_phase(self, name: str, *phases: str) -> Object:
        pod: Object = {}

        def reached() -> bool:
            pod.update(self.read(name))
            return pod["status"]["phase"] in phases

        wait_for(reached, what=lambda: f"{name} is {' or '.join(phases)}: {pod['status']}", every=0.1)
        return pod

    def end_of(self, name: str) -> Object:
        """Waits until the container has ended, and returns the `terminated` state of its status."""
        pod = self.wait_for_phase(name, "Succeeded", "Failed")
        terminated: Object = pod["status"]["containerStatuses"][0]["state"]["terminated"]
        return terminated
