"""Well-known fields of Kubernetes pods that a job spec does not have, each with an error text.

The text names the spec field to use instead, or says why there is no such field. A spec refuses unknown fields anyway;
these texts make the errors more helpful. Fields are found at any depth, so that a user who submits a complete Pod or
Job gets an error text for each field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_USER = "set user_id and group_id, which must be 1 or more"
_NEVER = "is never allowed, for any user"
_PLACED = "Fairlot decides this, because it allocates the GPUs; list the accepted GPU types in generations"
_RESOURCES = "set cpu, memory, shm and gpus_per_worker"
_ONE = "a worker is one container; add this to the image or to the command"
# By the field's name in lower case, without _ and -.
REFUSED: dict[str, str] = {
    # Access to the node.
    "hostpath": f"access to the node's files {_NEVER}; ask an operator for a volume, and add the volume to volumes",
    "hostnetwork": f"the node's network {_NEVER}; the workers of a job reach each other at MASTER_ADDR",
    "hostpid": f"access to the node's processes {_NEVER}",
    "hostipc": f"the node's shared memory {_NEVER}; set shm",
    "hostport": f"a port of the node {_NEVER}; set port",
    "hostaliases": f"a custom host name {_NEVER}",
    "hostusers": f"using the node's users {_NEVER}; {_USER}",
    "privileged": f"a privileged container {_NEVER}, because it would be root on the node",
    "capabilities": f"a capability {_NEVER}; jobs run without capabilities",
    "allowprivilegeescalation": f"privilege escalation {_NEVER}",
    "procmount": f"this field {_NEVER}",
    "seccompprofile": f"another profile {_NEVER}; the container runtime sets its default",
    "apparmorprofile": f"another profile {_NEVER}; the container runtime sets its default",
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
    "securitycontext": f"Fairlot sets this; {_USER}",
    "serviceaccountname": f"another account {_NEVER}; jobs run as a service account without rights",
    "serviceaccount": f"another account {_NEVER}; jobs run as a service account without rights",
    "automountserviceaccounttoken": f"a token of the cluster {_NEVER} in jobs",
    # Placement and time.
    "nodename": _PLACED,
    "nodeselector": _PLACED,
    "affinity": _PLACED,
    "tolerations": _PLACED,
    "topologyspreadconstraints": _PLACED,
    "schedulername": _PLACED,
    "schedulinggates": _PLACED,
    "priorityclassname": "this would evict the pods of others; set priority, which orders only your own jobs",
    "preemptionpolicy": "this would evict the pods of others; set priority, which orders only your own jobs",
    "runtimeclassname": _PLACED,
    "resourceclaims": f"Fairlot allocates devices; {_RESOURCES}",
    "overhead": f"the cluster decides this; {_RESOURCES}",
    # Fields of a Job.
    "suspend": "Fairlot decides this, because jobs take turns",
    "parallelism": "set workers",
    "completions": "set workers",
    "completionmode": "set workers; the variable RANK holds the number of each worker",
    "backofflimit": "Fairlot decides this, and does not retry a program that fails",
    "restartpolicy": "Fairlot decides this, and does not retry a program that fails",
    "ttlsecondsafterfinished": "Fairlot decides this",
    "activedeadlineseconds": "Fairlot does not offer this; a job runs in as many turns as it needs",
    "terminationgraceperiodseconds": "set checkpoint_grace_seconds",
    "podfailurepolicy": "Fairlot decides this",
    "selector": "Fairlot decides this",
    # Fields of a container.
    "initcontainers": _ONE,
    "ephemeralcontainers": _ONE,
    "containers": f"{_ONE}; set environment (the image) and command",
    "lifecycle": f"{_ONE}; to act before the end, handle SIGTERM in the program",
    "image": "set environment to the image's name",
    "args": "add the arguments to command",
    "env": "set variables, or secrets for values that nobody may read",
    "envfrom": "set variables, or secrets for values that nobody may read",
    "workingdir": "set working_directory",
    "volumemounts": "set volumes: [{name: …, path: …}]",
    "imagepullsecrets": "set image_pull_secret to the name of a secret",
    "resources": _RESOURCES,
    "requests": _RESOURCES,
    "limits": _RESOURCES,
    "ports": "set port",
    "readinessprobe": "set readiness_path",
    "livenessprobe": "Fairlot does not offer this; cancel a job whose program hangs",
    "startupprobe": "set readiness_path",
    "stdin": "jobs have no terminal",
    "tty": "jobs have no terminal",
    "dnspolicy": "the cluster decides this",
    "dnsconfig": "the cluster decides this",
    "hostname": "Fairlot decides this, because workers find each other by host name",
    "subdomain": "Fairlot decides this, because workers find each other by host name",
    "shareprocessnamespace": _ONE,
    "annotations": "Fairlot decides this",
    "labels": "set labels, at the top of the spec",
    "namespace": "the team determines the namespace; choose the team",
    "podtemplate": "a job spec is not a pod template; use the fields of the job spec",
    "template": "a job spec is not a pod template; use the fields of the job spec",
    "apiversion": "a job spec is not a Kubernetes object",
    "kind": "a job spec is not a Kubernetes object",
    "metadata": "a job spec is not a Kubernetes object; set name",
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
    """Returns the error text for each Kubernetes field in `data`, a user's mapping. The keys are the paths of the
    fields.

    Skips the top-level fields in `known`, because they are fields of the spec itself.
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
