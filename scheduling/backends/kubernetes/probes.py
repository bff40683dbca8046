"""Endpoints of workers: the port, the readiness probe, the Service, and a preStop hook that avoids lost requests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from scheduling.backends.base import Endpoint
from scheduling.backends.kubernetes.api import Api, Missing, Object, Taken

SERVICE, OWNER = "fairlot.io/service", "fairlot.io/owner"
# A label by which network policies select the pods that the portal proxies users to.
SESSION = {"fairlot.io/session": "true"}
INDEX = "batch.kubernetes.io/job-completion-index"
SERVICES = "/api/v1/namespaces/{}/services"
# Name of the container's port, to which Services and network policies refer.
PORT_NAME = "main"
# Every Service has this port, so that callers only need its name. Pods listen on the port of their revision.
PORT = 80
# Length of the preStop hook. A terminating pod leaves the endpoints at once, and senders need time to notice before its
# SIGTERM.
PRE_STOP_SECONDS = 3


class NameTaken(Exception):
    """Raised when a Service with this name exists and belongs to someone else."""


def of_container(endpoint: Endpoint | None) -> Object:
    """Returns the container fields for an endpoint: port, readiness probe and preStop hook; empty if `endpoint` is
    None."""
    if endpoint is None:
        return {}
    port = endpoint.port
    asked: Object = (
        {"httpGet": {"path": endpoint.path, "port": port}} if endpoint.path else {"tcpSocket": {"port": port}}
    )
    return {
        "ports": [{"name": PORT_NAME, "containerPort": port}],
        "readinessProbe": asked
        | {
            "periodSeconds": endpoint.period_seconds,
            "timeoutSeconds": endpoint.timeout_seconds,
            "failureThreshold": endpoint.failures,
        },
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
    }


def labels(endpoint: Endpoint | None) -> dict[str, str]:
    """Returns the pod labels by which Services and network policies select the pods of this endpoint.

    Returns an empty dictionary if `endpoint` is None.
    """
    if endpoint is None:
        return {}
    of_service = {} if endpoint.service is None else {SERVICE: str(endpoint.service)}
    return of_service | (SESSION if endpoint.is_session else {})


def announce(api: Api, namespace: str, name: str, *, service: int, owner: str) -> None:
    """Creates the Kubernetes Service called `name` for Fairlot's service with ID `service`, if it does not exist.

    `owner` identifies this installation of Fairlot. Raises NameTaken if a Service of this name belongs to another owner
    or to another of Fairlot's services.
    """
    if _find(api, namespace, name, service=service, owner=owner) is None:
        try:
            api.create(SERVICES.format(namespace), _service(name, service=service, owner=owner))
        except Taken:
            _find(api, namespace, name, service=service, owner=owner)


def withdraw(api: Api, namespace: str, name: str, *, service: int, owner: str) -> None:
    """Deletes the Kubernetes Service called `name` if it belongs to Fairlot's service with ID `service`.

    `owner` identifies this installation of Fairlot. Does nothing if there is no such Service, or if it belongs to
    someone else.
    """
    try:
        there = _find(api, namespace, name, service=service, owner=owner)
        if there is not None:
            api.delete(f"{SERVICES.format(namespace)}/{name}", uid=there["metadata"]["uid"])
    except (Missing, NameTaken):
        return  # the Service is gone, or belongs to someone else


def _find(api: Api, namespace: str, name: str, *, service: int, owner: str) -> Object | None:
    try:
        there = api.get(f"{SERVICES.format(namespace)}/{name}")
    except Missing:
        return None
    found = there["metadata"].get("labels", {})
    if (found.get(SERVICE), found.get(OWNER)) != (str(service), owner):
        raise NameTaken(f"the Service {name} in the namespace {namespace} does not belong to this Fairlot")
    return there


def _service(name: str, *, service: int, owner: str) -> Object:
    ours = {SERVICE: str(service), OWNER: owner}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "fairlot", **ours}},
        "spec": {
            "type": "ClusterIP",
            "selector": {**ours, INDEX: "0"},  # only the first worker of a gang listens
            "ports": [{"name": "http", "port": PORT, "targetPort": PORT_NAME}],
        },
    }


def pre_stop_seconds(endpoint: Endpoint | None) -> int:
    """Returns how many seconds a pod's preStop hook sleeps before SIGTERM; 0 without an endpoint."""
    return PRE_STOP_SECONDS if endpoint else 0


def pre_stop_seconds_of(pod: Object) -> int:
    """Returns how many seconds the preStop hook of an existing pod sleeps; 0 if the pod has no such hook."""
    return int(
        pod["spec"]["containers"][0]
        .get("lifecycle", {})
        .get("preStop", {})
        .get("sleep", {})
        .get("seconds", 0)
    )


def variables(endpoint: Endpoint | None) -> dict[str, str]:
    return {"PORT": str(endpoint.port), "FAIRLOT_PORT": str(endpoint.port)} if endpoint else {}


def ready_since(pods: Sequence[Object]) -> tuple[datetime | None, str]:
    """Returns a pair: the time since when the gang's first worker has been ready, and the worker's address.

    The time is None while the worker is not ready. The address is "" while the worker does not run, or if it declares
    no port.

    `pods` are all pods that the first worker (rank 0) has had in one attempt.
    """
    for pod in pods:
        address = _address(pod)
        if not address:
            continue
        for found in pod["status"].get("conditions", ()):
            if (
                found["type"] == "Ready"
                and found["status"] == "True"
                and "deletionTimestamp" not in pod["metadata"]
            ):
                return datetime.fromisoformat(found["lastTransitionTime"]), address
        return None, address
    return None, ""


def _address(pod: Object) -> str:
    """Returns "host:port" of a running pod that declares a port; "" for other pods."""
    status, ports = pod.get("status", {}), pod["spec"]["containers"][0].get("ports", ())
    if status.get("phase") != "Running" or not status.get("podIP") or not ports:
        return ""
    host, port = status["podIP"], ports[0]["containerPort"]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
