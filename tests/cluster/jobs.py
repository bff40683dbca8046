"""Creates and changes Jobs in the form that Fairlot uses, for tests of the control plane itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.cluster.api import JOBS, PODS, Api, Object
from tests.cluster.nodes import condition
from tests.waiting import wait_for

EPOCH = "fairlot.test/epoch"
EPOCH_PATH = "/metadata/annotations/fairlot.test~1epoch"
GATE = "fairlot.test/placement"
TEMPLATE = "/spec/template/spec"
SECONDS = 60.0  # for operations that take one or two seconds on an idle machine


def indexed_job(
    name: str,
    *,
    pods: int = 1,
    gpus: int = 1,
    gated: bool = False,
    behaviour: Mapping[str, str] | None = None,
    grace: int = 30,
    image: str = "example/none",
    **spec: Any,
) -> Object:
    """Returns a suspended Indexed Job. `behaviour` sets annotations that control the simulation of its pods, see
    stages.yaml.

    For example, {"run-for": "2"} makes a pod's program end after 2 seconds.
    """
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": {EPOCH: "0"}},
        "spec": {
            "suspend": True,
            "completionMode": "Indexed",
            "completions": pods,
            "parallelism": pods,
            "podReplacementPolicy": "Failed",
            "backoffLimit": 0,
            "template": {
                "metadata": {
                    "annotations": {f"test.fairlot/{key}": said for key, said in (behaviour or {}).items()}
                },
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": grace,
                    "schedulingGates": [{"name": GATE}] if gated else [],
                    "containers": [
                        {
                            "name": "main",
                            "image": image,
                            "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
                        }
                    ],
                },
            },
            **spec,
        },
    }


def on_nodes(*names: str) -> Object:
    """Returns a node affinity that keeps a pod on these nodes."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(names)}]}
    required = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def fenced(job: Object, *operations: Mapping[str, Any], epoch: int) -> list[Mapping[str, Any]]:
    """Returns a JSON Patch that applies `operations` and increases the Job's epoch by one.

    The patch fails if the Job in the cluster has another UID than `job`, or another epoch than `epoch`.
    """
    return [
        {"op": "test", "path": "/metadata/uid", "value": job["metadata"]["uid"]},
        {"op": "test", "path": EPOCH_PATH, "value": str(epoch)},
        {"op": "replace", "path": EPOCH_PATH, "value": str(epoch + 1)},
        *operations,
    ]


def placed(affinity: Object) -> Mapping[str, Any]:
    return {"op": "add", "path": f"{TEMPLATE}/affinity", "value": affinity}


def suspended(value: bool) -> Mapping[str, Any]:
    return {"op": "replace", "path": "/spec/suspend", "value": value}


class Work:
    """Creates, changes and reads Jobs in one namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api = api
        self.jobs, self.all_pods = JOBS.format(namespace), PODS.format(namespace)

    def create(self, name: str, **job: Any) -> Object:
        return self.api.create(self.jobs, indexed_job(name, **job))

    def read(self, name: str) -> Object:
        return self.api.get(f"{self.jobs}/{name}")

    def change(self, name: str, operations: Sequence[Mapping[str, Any]]) -> Object:
        return self.api.patch(f"{self.jobs}/{name}", operations)

    def start(self, job: Object, *nodes: str, epoch: int = 0) -> Object:
        """Starts the Job on these nodes with one patch, which fails if the Job's epoch is not `epoch`."""
        operations = fenced(job, placed(on_nodes(*nodes)), suspended(False), epoch=epoch)
        return self.change(job["metadata"]["name"], operations)

    def suspend(self, job: Object, *, epoch: int) -> Object:
        return self.change(job["metadata"]["name"], fenced(job, suspended(True), epoch=epoch))

    def pods(self, name: str) -> list[Object]:
        return self.api.items(self.all_pods, labelSelector=f"batch.kubernetes.io/job-name={name}")

    def pod(self, pod: Object) -> str:
        return f"{self.all_pods}/{pod['metadata']['name']}"

    def let_end(self, name: str) -> None:
        """Lets the Job's terminating pods end immediately, even if their annotation `stop-after` says that stopping
        takes time."""
        for pod in self.pods(name):
            self.api.merge(self.pod(pod), {"metadata": {"annotations": {"test.fairlot/stop-after": "0"}}})

    def wait_for_pods(self, name: str, count: int, phase: str) -> list[Object]:
        """Waits until `count` of the Job's pods are in the phase `phase`, and returns the pods."""

        def found() -> list[Object]:
            pods = [pod for pod in self.pods(name) if pod["status"]["phase"] == phase]
            return pods if len(pods) == count else []

        return wait_for(found, what=f"{count} pods of {name} are {phase}")

    def wait_for_condition(self, name: str, wanted: str) -> Object:
        def found() -> Object | None:
            job = self.read(name)
            return job if condition(job, wanted) == "True" else None

        job = wait_for(found, what=f"{name} is {wanted}")
        assert job
        return job

    def wait_until_drained(self, name: str) -> Object:
        """Waits until the Job is suspended and has no pods, so that its GPUs are free, and returns the Job."""

        def found() -> Object | None:
            job = self.read(name)
            status = job["status"]
            left = status.get("active", 0) + status.get("terminating", 0) + len(self.pods(name))
            return job if condition(job, "Suspended") == "True" and not left else None

        job = wait_for(found, what=f"{name} is suspended and has no pods")
        assert job
        return job
