"""Well-known fields of Kubernetes pods that a job spec does not have, each with an error text.

The text names the spec field to use instead, or says why there is no such field. A spec refuses unknown fields anyway;
these texts make the errors more helpful. Fields are found at any depth, so that a user who submits a complete Pod or
Job gets an error text for each field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_USER = "set user_id and group_id, which begin at 1"
_NEVER = "is not allowed here, whoever asks"
_PLACED = "is decided by Fairlot, which gives out the GPUs: name generations that will do"
_RESOURCES = "set cpu, memory and shm, and GPUs by gpus_per_worker"
_ONE = "a worker is one container: put it into the image, or into the command"
# By the field's name in lower case, without _ and -.
REFUSED: dict[str, str] = {
    # Access to the node.
    "hostpath": f"the node's files: {_NEVER}; ask an operator for a volume, and name it in volumes",
    "hostnetwork": f"the node's network: {_NEVER}; the workers of a job reach each other by MASTER_ADDR",
    "hostpid": f"the node's processes: {_NEVER}",
    "hostipc": f"the node's shared memory: {_NEVER}; set shm",
    "hostport": f"a port of the node: {_NEVER}; set port",
    "hostaliases": f"names of hosts of one's own: {_NEVER}",
    "hostusers": f"users of the node: {_NEVER}; {_USER}",
    "privileged": f"{_NEVER}: it would be root on the node",
    "capabilities": f"{_NEVER}: jobs have none",
    "allowprivilegeescalation": f"{_NEVER}: jobs have no way to more rights",
    "procmount": _NEVER,
    "seccompprofile": f"{_NEVER}: it is the runtime's own",
    "apparmorprofile": f"{_NEVER}: it is the runtime's own",
    "selinuxoptions": _NEVER,
    "sysctls": f"{_NEVER}: they are the node's",
    "windowsoptions": _NEVER,
    "volumedevices": f"devices of the node: {_NEVER}",
    # Users and rights.
    "runasuser": f"runs as 1000 where nothing is said; {_USER}",
    "runasgroup": f"runs as 1000 where nothing is said; {_USER}",
    "runasnonroot": f"jobs never run as root; {_USER}",
    "fsgroup": f"is the group that the job runs as; {_USER}",
    "supplementalgroups": f"{_NEVER}; {_USER}",
    "securitycontext": f"is set by Fairlot; {_USER}",
    "serviceaccountname": f"{_NEVER}: jobs run as an account without rights",
    "serviceaccount": f"{_NEVER}: jobs run as an account without rights",
    "automountserviceaccounttoken": f"{_NEVER}: jobs have no token of the cluster",
    # Placement and time.
    "nodename": _PLACED,
    "nodeselector": _PLACED,
    "affinity": _PLACED,
    "tolerations": _PLACED,
    "topologyspreadconstraints": _PLACED,
    "schedulername": _PLACED,
    "schedulinggates": _PLACED,
    "priorityclassname": "would drive out others' pods: set priority, which orders your own jobs",
    "preemptionpolicy": "would drive out others' pods: set priority, which orders your own jobs",
    "runtimeclassname": _PLACED,
    "resourceclaims": f"devices are allocated by Fairlot; {_RESOURCES}",
    "overhead": f"is the cluster's affair; {_RESOURCES}",
    # Fields of a Job.
    "suspend": "is Fairlot's to say: jobs take turns",
    "parallelism": "set workers",
    "completions": "set workers",
    "completionmode": "set workers; RANK tells each which it is",
    "backofflimit": "is Fairlot's to say; a job that fails has failed",
    "restartpolicy": "is Fairlot's to say; a job that fails has failed",
    "ttlsecondsafterfinished": "is Fairlot's to say",
    "activedeadlineseconds": "is not offered: a job may run as long as it has turns",
    "terminationgraceperiodseconds": "set checkpoint_grace_seconds",
    "podfailurepolicy": "is Fairlot's to say",
    "selector": "is Fairlot's to say",
    # Fields of a container.
    "initcontainers": _ONE,
    "ephemeralcontainers": _ONE,
    "containers": f"{_ONE}; set environment (the image) and command",
    "lifecycle": f"{_ONE}; what has to be done at the end, a program does on SIGTERM",
    "image": "set environment to the image's name",
    "args": "put them into command",
    "env": "set variables, and secrets for what nobody may read",
    "envfrom": "set variables, and secrets for what nobody may read",
    "workingdir": "set working_directory",
    "volumemounts": "set volumes: [{name: …, path: …}]",
    "imagepullsecrets": "set image_pull_secret to the name of a secret",
    "resources": _RESOURCES,
    "requests": _RESOURCES,
    "limits": _RESOURCES,
    "ports": "set port",
    "readinessprobe": "set readiness_path",
    "livenessprobe": "is not offered: a program that hangs is stopped by who sees it",
    "startupprobe": "set readiness_path",
    "stdin": "jobs have no terminal",
    "tty": "jobs have no terminal",
    "dnspolicy": "is the cluster's affair",
    "dnsconfig": "is the cluster's affair",
    "hostname": "is Fairlot's to say: workers find each other by it",
    "subdomain": "is Fairlot's to say: workers find each other by it",
    "shareprocessnamespace": _ONE,
    "annotations": "is Fairlot's to say",
    "labels": "set labels, at the top of the spec",
    "namespace": "is the team's; name the team",
    "podtemplate": "a spec is no pod: name what is needed of it in the spec's own fields",
    "template": "a spec is no pod: name what is needed of it in the spec's own fields",
    "apiversion": "a spec is no object of Kubernetes",
    "kind": "a spec is no object of Kubernetes",
    "metadata": "a spec is no object of Kubernetes: set name",
    "spec": "a spec is no object of Kubernetes: its fields stand at the top",
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
            found[path] = f"{name} is no field of a job: {instead}"
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
