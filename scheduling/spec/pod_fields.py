"""Well-known fields of Kubernetes pods that a job spec does not have, each with an error text.

The text names the spec field to use instead, or says why there is no such field. A spec refuses unknown fields anyway;
these texts make the errors more helpful. Fields are found at any depth, so that a user who submits a complete Pod or
Job gets an error text for each field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_USER = "use the spec's user_id and group_id instead, which must be 1 or more"
_NEVER = "is never allowed for any user"
_PLACED = "Fairlot decides this, because it allocates the GPUs; list the accepted GPU types in the spec's generations"
_RESOURCES = "use the spec's cpu, memory, shm and gpus_per_worker instead"
_ONE = "a worker is one container; add this to the image or to the command"
# By the field's name in lower case, without _ and -.
REFUSED: dict[str, str] = {
    # Access to the node.
    "hostpath": f"access to the node's files {_NEVER}; ask an operator for a volume, and add it to the spec's volumes",
    "hostnetwork": f"the node's network {_NEVER}; the workers of a job reach each other at MASTER_ADDR",
    "hostpid": f"access to the node's processes {_NEVER}",
    "hostipc": f"the node's shared memory {_NEVER}; use the spec's shm instead",
    "hostport": f"a port of the node {_NEVER}; use the spec's port instead",
    "hostaliases": f"a custom host name {_NEVER}",
    "hostusers": f"the node's user namespace {_NEVER}; {_USER}",
    "privileged": f"a privileged container {_NEVER}, because it would be root on the node",
    "capabilities": f"a capability {_NEVER}; jobs run without capabilities",
    "allowprivilegeescalation": f"privilege escalation {_NEVER}",
    "procmount": f"this field {_NEVER}",
    "seccompprofile": f"a custom profile {_NEVER}; the container runtime uses its default profile",
    "apparmorprofile": f"a custom profile {_NEVER}; the container runtime uses its default profile",
    "selinuxoptions": f"this field {_NEVER}",
    "sysctls": f"a change of kernel settings {_NEVER}, because they affect the node",
    "windowsoptions": f"this field {_NEVER}",
    "volumedevices": f"a device of the node {_NEVER}",
    # Users and rights.
    "runasuser": f"jobs run as user and group 1000 by default; {_USER}",
    "runasgroup": f"jobs run as user and group 1000 by default; {_USER}",
    "runasnonroot": f"jobs never run as root; {_USER}",
    "fsgroup": f"this is always the group that the job runs as; {_USER}",
    "supplementalgroups": f"a supplemental group {_NEVER}; {_USER}",
    "securitycontext": f"this is set by Fairlot; {_USER}",
    "serviceaccountname": f"a custom service account {_NEVER}; jobs run as a service account without rights",
    "serviceaccount": f"a custom service account {_NEVER}; jobs run as a service account without rights",
    "automountserviceaccounttoken": f"a token for the cluster's API {_NEVER}",
    # Placement and time.
    "nodename": _PLACED,
    "nodeselector": _PLACED,
    "affinity": _PLACED,
    "tolerations": _PLACED,
    "topologyspreadconstraints": _PLACED,
    "schedulername": _PLACED,
    "schedulinggates": _PLACED,
    "priorityclassname": (
        "this would evict other users' pods; use the spec's priority instead, which orders only your jobs"
    ),
    "preemptionpolicy": (
        "this would evict other users' pods; use the spec's priority instead, which orders only your jobs"
    ),
    "runtimeclassname": _PLACED,
    "resourceclaims": f"Fairlot allocates devices; {_RESOURCES}",
    "overhead": f"the cluster decides this; {_RESOURCES}",
    # Fields of a Job.
    "suspend": "Fairlot itself suspends and resumes jobs, because jobs take turns on the GPUs",
    "parallelism": "use the spec's workers instead",
    "completions": "use the spec's workers instead",
    "completionmode": "use the spec's workers instead; the variable RANK holds the number of each worker",
    "backofflimit": "Fairlot decides this, and does not retry a program that fails",
    "restartpolicy": "Fairlot decides this, and does not retry a program that fails",
    "ttlsecondsafterfinished": "Fairlot decides this",
    "activedeadlineseconds": "a job spec cannot set a time limit; a limit of the team can",
    "terminationgraceperiodseconds": "use the spec's checkpoint_grace_seconds instead",
    "podfailurepolicy": "Fairlot decides this",
    "selector": "Fairlot decides this",
    # Fields of a container.
    "initcontainers": _ONE,
    "ephemeralcontainers": _ONE,
    "containers": "a worker is one container; use the spec's environment (the image) and command instead",
    "lifecycle": f"{_ONE}; to act before the job ends, handle SIGTERM in the program",
    "image": "enter the image's name as the spec's environment",
    "args": "add the arguments to the spec's command",
    "env": "use the spec's variables instead, or its secrets for confidential values",
    "envfrom": "use the spec's variables instead, or its secrets for confidential values",
    "workingdir": "use the spec's working_directory instead",
    "volumemounts": "use the spec's volumes instead: [{name: …, path: …}]",
    "imagepullsecrets": "enter the name of a secret as the spec's image_pull_secret",
    "resources": _RESOURCES,
    "requests": _RESOURCES,
    "limits": _RESOURCES,
    "ports": "use the spec's port instead",
    "readinessprobe": "use the spec's readiness_path instead",
    "livenessprobe": "Fairlot does not offer this; cancel a job whose program hangs",
    "startupprobe": "use the spec's readiness_path instead",
    "stdin": "jobs have no terminal",
    "tty": "jobs have no terminal",
    "dnspolicy": "the cluster decides this",
    "dnsconfig": "the cluster decides this",
    "hostname": "Fairlot decides this, because workers find each other by host name",
    "subdomain": "Fairlot decides this, because workers find each other by host name",
    "shareprocessnamespace": _ONE,
    "annotations": "Fairlot decides this",
    "labels": "use labels at the top level of the spec instead",
    "namespace": "the team determines the namespace; choose the team",
    "podtemplate": "a job spec is not a pod template; use the fields of the job spec",
    "template": "a job spec is not a pod template; use the fields of the job spec",
    "apiversion": "a job spec is not a Kubernetes object",
    "kind": "a job spec is not a Kubernetes object",
    "metadata": "a job spec is not a Kubernetes object; use the spec's name and labels instead",
    "spec": "a job spec is not a Kubernetes object; write its fields at the top level",
}
# Fields are looked up to this depth, enough for the container fields of a CronJob; at most this many are reported.
DEEPEST, MOST = 12, 40


def why_not(field: str) -> str | None:
    """Explains why a spec does not have the Kubernetes field `field`, and what to use instead.

    Returns None if `field` is not a well-known Kubernetes field.
    """
    return REFUSED.get(field.lower().replace("_", "").replace("-", ""))


def refusals(data: Mapping[Any, Any], known: frozenset[str]) -> dict[str, str]:
    """Returns the error text for each Kubernetes field in `data`, the spec as a user wrote it. The keys are the paths
    of the fields.

    Skips the top-level fields in `known`, because they are fields of the spec itself. Returns at most MOST texts.
    """
    found: dict[str, str] = {}
    for path, name in _fields({key: value for key, value in data.items() if key not in known}, "", 0):
        if (instead := why_not(name)) and len(found) < MOST:
            found[path] = f"{name} is not a field of a job spec: {instead}"
    return found


def _fields(value: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if depth > DEEPEST:
        return
    if isinstance(value, Mapping):
        for key, inner in value.items():
            place = f"{path}.{key}" if path else str(key)
            yield place, str(key)
            yield from _fields(inner, place, depth + 1)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _fields(inner, f"{path}[{number}]", depth + 1)
