"""How the workers of a gang find each other: a DNS name for each, and host lists for launchers."""

from __future__ import annotations

from contextlib import suppress

from scheduling.backends.kubernetes.api import Api, Changed, Missing, Object, Taken

RENDEZVOUS_PORT = 29500
# DeepSpeed's launcher looks for its hostfile here by default.
HOSTFILE_FOLDER, HOSTFILE = "/job", "hostfile"
JOBS = "/apis/batch/v1/namespaces/{}/jobs/{}"
TRIES = 3  # to create an object while the cluster collects the old one


def variables(name: str, *, workers: int, gpus: int) -> dict[str, str]:
    """Returns the variables that are the same for each worker of the gang whose Job is `name`.

    WORLD_SIZE counts workers, each of which sees only its own GPUs. A launcher such as torchrun, which starts a
    process per GPU, reads the variables with PET_ and sets WORLD_SIZE again for its processes.
    """
    first = host(name, 0)
    return {
        "FAIRLOT_WORLD_SIZE": str(workers),
        "FAIRLOT_GPUS": str(gpus),
        "WORLD_SIZE": str(workers),
        "LOCAL_RANK": "0",  # each worker sees only its own GPUs
        "MASTER_ADDR": first,
        "MASTER_PORT": str(RENDEZVOUS_PORT),
        # torchrun's options as variables.
        "PET_NNODES": str(workers),
        "PET_NPROC_PER_NODE": str(gpus),
        "PET_MASTER_ADDR": first,
        "PET_MASTER_PORT": str(RENDEZVOUS_PORT),
    } | (_of_launchers() if workers > 1 else {})


def host(name: str, rank: int) -> str:
    """Returns the name by which the other workers reach a worker."""
    return f"{name}-{rank}.{name}"


def prepare(api: Api, namespace: str, job: Object, *, job_label: str, workers: int, gpus: int) -> bool:
    """Creates the names of a gang's workers and the list of them. They are deleted with the Job. Idempotent.

    Replaces those of an earlier Job. Returns False when `job` itself was replaced by a later one.
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
            # Workers look up each other before they are ready.
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
    """Creates the object. Deletes that of an earlier Job first, because the cluster collects it only later."""
    path, name = f"/api/v1/namespaces/{namespace}/{kind}", job["metadata"]["name"]
    for _ in range(TRIES):
        with suppress(Taken):
            api.create(path, thing)
            return True
        with suppress(Missing, Changed):  # by the same order, given twice at once
            there = api.get(f"{path}/{name}")
            if not _is_of_another(there, job):
                return True
            # Read after the object, which otherwise might belong to a later Job.
            if api.get(JOBS.format(namespace, name))["metadata"]["uid"] != job["metadata"]["uid"]:
                return False
            api.delete(f"{path}/{name}", uid=there["metadata"]["uid"])
    return False


def _is_of_another(thing: Object, job: Object) -> bool:
    """Returns whether the object belongs to another Job of the same name."""
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
    """Returns the path of the host list for Open MPI (and Horovod through it) and for Fairlot's users."""
    path = f"{HOSTFILE_FOLDER}/{HOSTFILE}"
    return {
        "FAIRLOT_HOSTFILE": path,
        "OMPI_MCA_orte_default_hostfile": path,
        "PRTE_MCA_prte_default_hostfile": path,  # from Open MPI 5 on
    }
