"""Workers that others ask: their port, how Kubernetes learns that they are ready, and that they leave politely."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from scheduling.backends.base import Endpoint
from scheduling.backends.kubernetes.api import Api, Missing, Object, Taken

SERVICE, OWNER = "fairlot.io/service", "fairlot.io/owner"
# By which a tenant's walls tell the pods that the portal leads people to.
SESSION = {"fairlot.io/session": "true"}
INDEX = "batch.kubernetes.io/job-completion-index"
SERVICES = "/api/v1/namespaces/{}/services"
# The container's own, by which Services and walls name it.
PORT_NAME = "main"
# Of every service, so that its name is all that callers must know; pods listen where their revision says.
PORT = 80
# Between a pod's leaving the endpoints, which is at once, and its SIGTERM: until all who send to it know.
GOODBYE_SECONDS = 3


class NameTaken(Exception):
    """There is a Service of that name which is another's."""


def of_container(endpoint: Endpoint | None) -> Object:
    """What a container with an endpoint has besides."""
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
        "lifecycle": {"preStop": {"sleep": {"seconds": GOODBYE_SECONDS}}},
    }


def labels(endpoint: Endpoint | None) -> dict[str, str]:
    """By which a Service finds its pods, and the walls find sessions."""
    if endpoint is None:
        return {}
    of_service = {} if endpoint.service is None else {SERVICE: str(endpoint.service)}
    return of_service | (SESSION if endpoint.is_session else {})


def announce(api: Api, namespace: str, name: str, *, service: int, owner: str) -> None:
    """Makes the Service if it is not there; NameTaken when another one is."""
    if _find(api, namespace, name, service=service, owner=owner) is None:
        try:
            api.create(SERVICES.format(namespace), _service(name, service=service, owner=owner))
        except Taken:
            _find(api, namespace, name, service=service, owner=owner)


def withdraw(api: Api, namespace: str, name: str, *, service: int, owner: str) -> None:
    """Deletes the Service if it is there and this one's."""
    try:
        there = _find(api, namespace, name, service=service, owner=owner)
        if there is not None:
            api.delete(f"{SERVICES.format(namespace)}/{name}", uid=there["metadata"]["uid"])
    except (Missing, NameTaken):
        return  # it is gone, or was never ours


def _find(api: Api, namespace: str, name: str, *, service: int, owner: str) -> Object | None:
    try:
        there = api.get(f"{SERVICES.format(namespace)}/{name}")
    except Missing:
        return None
    found = there["metadata"].get("labels", {})
    if (found.get(SERVICE), found.get(OWNER)) != (str(service), owner):
        raise NameTaken(f"a Service {name} of somebody else is in {namespace}")
    return there


def _service(name: str, *, service: int, owner: str) -> Object:
    ours = {SERVICE: str(service), OWNER: owner}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "fairlot", **ours}},
        "spec": {
            "type": "ClusterIP",
            "selector": {**ours, INDEX: "0"},  # of a gang its first worker answers
            "ports": [{"name": "http", "port": PORT, "targetPort": PORT_NAME}],
        },
    }


def goodbye(endpoint: Endpoint | None) -> int:
    """Seconds that its pod needs before its own grace begins."""
    return GOODBYE_SECONDS if endpoint else 0


def goodbye_of(pod: Object) -> int:
    """The same, of a pod that is there."""
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
    """Since when the gang's first worker is ready (None: it is not), and its address; `pods` of one turn."""
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
    """Of what runs and has a port; empty of others."""
    status, ports = pod.get("status", {}), pod["spec"]["containers"][0].get("ports", ())
    if status.get("phase") != "Running" or not status.get("podIP") or not ports:
        return ""
    host, port = status["podIP"], ports[0]["containerPort"]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
