"""Well-known fields of Kubernetes pods that a job spec does not have, each with an error text.

The text names the spec field to use instead, or says why there is no such field. A spec refuses unknown fields anyway;
these texts make the errors more helpful. Fields are found at any depth, so that a user who submits a complete Pod or
Job gets an error text for each field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_USE_USER_ID = "use the fields “user_id” and “group_id” of the job spec instead, which must be 1 or more"
_PLACED = (
    "Fairlot chooses the nodes, because it allocates GPUs; list the accepted GPU types in the field “generations” of"
    " the job spec"
)
_PRIORITY = (
    "with this field, Kubernetes would evict other users' pods; use the field “priority” of the job spec instead, which"
    " orders only your jobs"
)
_USE_CPU_AND_MEMORY = "use the fields “cpu”, “memory”, “shm” and “gpus_per_worker” of the job spec instead"
_ONE_CONTAINER = "a worker is one container; put other programs into its image or command"
# By the field's name in lower case, without _ and -.
REFUSED: dict[str, str] = {
    # Access to the node.
    "hostpath": (
        "access to the node's files is never allowed; ask an operator for a volume, and list it in the field “volumes”"
    ),
    "hostnetwork": "access to the node's network is never allowed; workers reach each other at MASTER_ADDR",
    "hostpid": "access to the node's processes is never allowed",
    "hostipc": "access to the node's shared memory is never allowed; use the field “shm” of the job spec instead",
    "hostport": "a port of the node is never allowed; use the field “port” of the job spec instead",
    "hostaliases": "a custom host name is never allowed",
    "hostusers": f"access to the node's user namespace is never allowed; {_USE_USER_ID}",
    "privileged": "a privileged container is never allowed, because it would be root on the node",
    "capabilities": "a capability is never allowed; jobs run without capabilities",
    "allowprivilegeescalation": "privilege escalation is never allowed",
    "procmount": "a custom mount of /proc is never allowed",
    "seccompprofile": "a custom seccomp profile is never allowed; the container runtime uses its default profile",
    "apparmorprofile": "a custom AppArmor profile is never allowed; the container runtime uses its default profile",
    "selinuxoptions": "a custom SELinux label is never allowed",
    "sysctls": "a change of kernel settings is never allowed, because it would affect the node",
    "windowsoptions": "an option for Windows is never allowed",
    "volumedevices": "a device of the node is never allowed",
    # Users and rights.
    "runasuser": f"jobs run as user and group 1000 by default; {_USE_USER_ID}",
    "runasgroup": f"jobs run as user and group 1000 by default; {_USE_USER_ID}",
    "runasnonroot": f"jobs never run as root; {_USE_USER_ID}",
    "fsgroup": f"the fsGroup is always the group that the job runs as; {_USE_USER_ID}",
    "supplementalgroups": f"a supplemental group is never allowed; {_USE_USER_ID}",
    "securitycontext": f"Fairlot sets the security context; {_USE_USER_ID}",
    "serviceaccountname": "a custom service account is never allowed; jobs run as a service account without rights",
    "serviceaccount": "a custom service account is never allowed; jobs run as a service account without rights",
    "automountserviceaccounttoken": "a token for the cluster's API is never allowed",
    # Placement and time.
    "nodename": _PLACED,
    "nodeselector": _PLACED,
    "affinity": _PLACED,
    "tolerations": _PLACED,
    "topologyspreadconstraints": _PLACED,
    "schedulername": _PLACED,
    "schedulinggates": _PLACED,
    "priorityclassname": _PRIORITY,
    "preemptionpolicy": _PRIORITY,
    "runtimeclassname": _PLACED,
    "resourceclaims": f"Fairlot allocates devices; {_USE_CPU_AND_MEMORY}",
    "overhead": f"the cluster decides how much overhead a pod has; {_USE_CPU_AND_MEMORY}",
    # Fields of a Job.
    "suspend": "Fairlot itself suspends and resumes jobs, because jobs take turns on the GPUs",
    "parallelism": "set the number of pods in the field “workers” of the job spec instead",
    "completions": "set the number of pods in the field “workers” of the job spec instead",
    "completionmode": "use the field “workers” of the job spec instead; the variable RANK is the number of a worker",
    "backofflimit": "set the number of retries in the field “retries” of the job spec instead",
    "restartpolicy": "use the field “retries” of the job spec instead, which starts all workers again",
    "ttlsecondsafterfinished": "Fairlot decides when ended pods are deleted",
    "activedeadlineseconds": "set the longest time on GPUs in the field “time_limit_hours” of the job spec instead",
    "terminationgraceperiodseconds": "use the field “checkpoint_grace_seconds” of the job spec instead",
    "podfailurepolicy": "list the exit codes that are retried in the field “retries” of the job spec instead",
    "selector": "Fairlot sets the selector that assigns pods to a Job",
    # Fields of a container.
    "initcontainers": _ONE_CONTAINER,
    "ephemeralcontainers": _ONE_CONTAINER,
    "containers": (
        "a worker is one container; enter its image in the field “environment”, and its command in the field “command”"
    ),
    "lifecycle": f"{_ONE_CONTAINER}; to act before the job ends, handle SIGTERM in the program",
    "image": "enter the image in the field “environment” of the job spec",
    "args": "add the arguments to the field “command” of the job spec",
    "env": "use the field “variables” of the job spec instead, or the field “secrets” for confidential values",
    "envfrom": "use the field “variables” of the job spec instead, or the field “secrets” for confidential values",
    "workingdir": "use the field “working_directory” of the job spec instead",
    "volumemounts": "use the field “volumes” of the job spec instead: [{name: …, path: …}]",
    "imagepullsecrets": "enter the name of a secret in the field “image_pull_secret” of the job spec",
    "resources": _USE_CPU_AND_MEMORY,
    "requests": _USE_CPU_AND_MEMORY,
    "limits": _USE_CPU_AND_MEMORY,
    "ports": "use the field “port” of the job spec instead",
    "readinessprobe": "use the field “readiness_path” of the job spec instead",
    "livenessprobe": "Fairlot has no liveness probes; cancel a job whose program hangs",
    "startupprobe": "use the field “readiness_path” of the job spec instead",
    "stdin": "jobs have no terminal",
    "tty": "jobs have no terminal",
    "dnspolicy": "the cluster decides how pods look up host names",
    "dnsconfig": "the cluster decides how pods look up host names",
    "hostname": "Fairlot sets host names, because workers find each other by host name",
    "subdomain": "Fairlot sets host names, because workers find each other by host name",
    "shareprocessnamespace": _ONE_CONTAINER,
    "annotations": "Fairlot sets the annotations of pods",
    "labels": "use the field “labels” at the top level of the job spec instead",
    "namespace": "each team has its own namespace; choose the team of the job",
    "podtemplate": "a job spec is not a pod template; use the fields of the job spec",
    "template": "a job spec is not a pod template; use the fields of the job spec",
    "apiversion": "a job spec is not a Kubernetes object; leave the field out",
    "kind": "a job spec is not a Kubernetes object; leave the field out",
    "metadata": "a job spec is not a Kubernetes object; use the fields “name” and “labels” of the job spec instead",
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
