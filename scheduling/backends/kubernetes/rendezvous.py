"""How the workers of a gang find each other: a name for each, and lists of them as launchers read them."""

from __future__ import annotations

from contextlib import suppress

from scheduling.backends.kubernetes.api import Api, Changed, Missing, Object, Taken

RENDEZVOUS_PORT = 29500
# DeepSpeed's launcher looks for its hostfile here when it is told no other place.
HOSTFILE_FOLDER, HOSTFILE = "/job", "hostfile"
JOBS = "/apis/batch/v1/namespaces/{}/jobs/{}"
TRIES = 3  # to make what the cluster collects meanwhile


def variables(name: str, *, workers: int, gpus: int) -> dict[str, str]:
    """The same for each worker of the gang whose Job is `name`; its rank is told apart.

    WORLD_SIZE counts workers, of which each has all GPUs of its own; a launcher such as torchrun, which
    starts a process a GPU, reads the variables with PET_ and sets it anew for its processes.
    """
    first = host(name, 0)
    return {
        "FAIRLOT_WORLD_SIZE": str(workers),
        "FAIRLOT_GPUS": str(gpus),
        "WORLD_SIZE": str(workers),
        "LOCAL_RANK": "0",  # each worker sees its own GPUs only
        "MASTER_ADDR": first,
        "MASTER_PORT": str(RENDEZVOUS_PORT),
        # torchrun's own options, each as a variable.
        "PET_NNODES": str(workers),
        "PET_NPROC_PER_NODE": str(gpus),
        "PET_MASTER_ADDR": first,
        "PET_MASTER_PORT": str(RENDEZVOUS_PORT),
    } | (_of_launchers() if workers > 1 else {})


def host(name: str, rank: int) -> str:
    """Where a worker is reached from the others."""
    return f"{name}-{rank}.{name}"


def prepare(api: Api, namespace: str, job: Object, *, job_label: str, workers: int, gpus: int) -> bool:
    """The names of a gang's workers and the list of them; they go when the Job does. Twice is as good as once.

    Those that a Job before it has left make room. False when `job` itself is such a one by now.
    """
    about = job["metadata"]
    name, job_id = about["name"], about["labels"][job_label]
    metadata = {
        "name": name,
        "labels": about["labels"],
        "ownerReferences": [
            {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": about["uid"], "controller": True}
        ],
    }
    slots = "".join(f"{host(name, rank)} slots={gpus}\n" for rank in range(workers))
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "clusterIP": "None",
            # The others ask for a worker before it is ready for anybody.
            "publishNotReadyAddresses": True,
            "selector": {job_label: job_id},
        },
    }
    hosts = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {HOSTFILE: slots}}
    return all(
        _put(api, namespace, kind, thing, job)
        for kind, thing in (("services", service), ("configmaps", hosts))
    )


def _put(api: Api, namespace: str, kind: str, thing: Object, job: Object) -> bool:
    """Makes it. What a Job before this one has left there goes first: the cluster collects it only later."""
    path, name = f"/api/v1/namespaces/{namespace}/{kind}", job["metadata"]["name"]
    for _ in range(TRIES):
        with suppress(Taken):
            api.create(path, thing)
            return True
        with suppress(Missing, Changed):  # by the same order, given twice at once
            there = api.get(f"{path}/{name}")
            if not _is_of_another(there, job):
                return True
            # The Job is asked for after what was found: else that might be of one that came after it.
            if api.get(JOBS.format(namespace, name))["metadata"]["uid"] != job["metadata"]["uid"]:
                return False
            api.delete(f"{path}/{name}", uid=there["metadata"]["uid"])
    return False


def _is_of_another(thing: Object, job: Object) -> bool:
    """Whether it belongs to a Job of the same name that is another one."""
    about = job["metadata"]
    return any(
        (owner["kind"], owner["name"]) == ("Job", about["name"]) and owner["uid"] != about["uid"]
        for owner in thing["metadata"].get("ownerReferences", ())
    )


def volume(name: str) -> Object:
    return {"name": "hosts", "configMap": {"name": name}}


def mount() -> Object:
    return {"name": "hosts", "mountPath": HOSTFILE_FOLDER, "readOnly": True}


def _of_launchers() -> dict[str, str]:
    """Where Open MPI (and Horovod by it) and Fairlot's users find the list."""
    path = f"{HOSTFILE_FOLDER}/{HOSTFILE}"
    return {
        "FAIRLOT_HOSTFILE": path,
        "OMPI_MCA_orte_default_hostfile": path,
        "PRTE_MCA_prte_default_hostfile": path,  # from Open MPI 5 on
    }
