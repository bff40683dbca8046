"""Says how users open a terminal in a worker's pod, because Fairlot has no right to run programs there."""

from __future__ import annotations

from scheduling.backends.base import TerminalElsewhere
from scheduling.backends.kubernetes.api import Object


def elsewhere(namespace: str, pod: Object) -> TerminalElsewhere:
    """Returns the error for a request for a terminal. It has the command for the worker's pod."""
    name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]
    return TerminalElsewhere(
        "The portal has no right to run programs in pods. With your own right to do so in the namespace "
        f"{namespace}, the following command opens a shell beside the worker. The cluster's audit log records it.",
        f"kubectl --namespace {namespace} exec --stdin --tty {name} --container {container} -- /bin/sh",
    )
