"""Lets the workers of a gang find each other: each worker has a DNS name, and launchers get a list of hosts."""

from __future__ import annotations

from contextlib import suppress

from scheduling.backends.elastic_variables import HOST_DISCOVERY, SCRIPT
from scheduling.backends.kubernetes.api import Api, Changed, Missing, Object, Taken
from scheduling.backends.role_variables import hostfile_variables

RENDEZVOUS_PORT = 29500
# DeepSpeed's launcher looks for its hostfile at this path by default.
HOSTFILE_FOLDER, HOSTFILE = "/job", "hostfile"
HOSTFILE_PATH = f"{HOSTFILE_FOLDER}/{HOSTFILE}"
JOBS = "/apis/batch/v1/namespaces/{}/jobs/{}"
TRIES = 3  # to create an object while the cluster still deletes an old object of that name


def variables(name: str, *, workers: int, gpus: int) -> dict[str, str]:
    """Returns the environment variables that are the same for all workers of a gang.

    `name` is the name of the gang's Job. `gpus` is the number of GPUs of each worker.

    With 2 workers of 8 GPUs, WORLD_SIZE is 2. A launcher such as torchrun starts one process per GPU, and sets
    WORLD_SIZE to 16 in these processes.
    """
    first = host(name, 0)
    return {
        "FAIRLOT_WORLD_SIZE": str(workers),
        "FAIRLOT_GPUS": str(gpus),
        "WORLD_SIZE": str(workers),
        "LOCAL_RANK": "0",  # each worker sees only its own GPUs
        "MASTER_ADDR": first,
        "MASTER_PORT": str(RENDEZVOUS_PORT),
        # Options of torchrun in the form of environment variables.
        "PET_NNODES": str(workers),
        "PET_NPROC_PER_NODE": str(gpus),
        "PET_MASTER_ADDR": first,
        "PET_MASTER_PORT": str(RENDEZVOUS_PORT),
    } | (hostfile_variables(HOSTFILE_PATH) if workers > 1 else {})


def host(name: str, rank: int) -> str:
    """Returns the DNS name of the worker with this rank. Only pods of the same namespace can use this name.

    `name` is the name of the gang's Job.
    """
    return f"{name}-{rank}.{name}"


def hosts(name: str, *, workers: int, gpus: int) -> str:
    """Returns the host list of the gang whose Job has the name `name`. `gpus` is the number of GPUs of each worker."""
    return "".join(f"{host(name, rank)} slots={gpus}\n" for rank in range(workers))


def prepare(api: Api, namespace: str, job: Object, *, job_label: str, slots: str) -> bool:
    """Creates a gang's Service, which gives its workers DNS names, and its ConfigMap with the host list. Idempotent.

    - `slots`: the host list.
    - `job_label`: the name of the label that contains the job's ID.

    Returns False if the objects could not be created, for example because a later Job has replaced `job`. Kubernetes
    deletes the objects together with `job`.
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
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "clusterIP": "None",
            # Workers look up each other's names before they are ready.
            "publishNotReadyAddresses": True,
            "selector": {job_label: job_id},
        },
    }
    host_list = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {HOSTFILE: slots, HOST_DISCOVERY: SCRIPT},
    }
    return all(
        _put(api, namespace, kind, thing, job)
        for kind, thing in (("services", service), ("configmaps", host_list))
    )


def _put(api: Api, namespace: str, kind: str, thing: Object, job: Object) -> bool:
    """Creates the object `thing` in the collection `kind`, such as "services", unless `job` already has this object.

    Replaces an object of the same name that an earlier Job left. Returns False if `job` is no longer the current Job,
    or after TRIES failures.
    """
    path, name = f"/api/v1/namespaces/{namespace}/{kind}", job["metadata"]["name"]
    for _ in range(TRIES):
        with suppress(Taken):
            api.create(path, thing)
            return True
        with suppress(Missing, Changed):  # the same order, given twice, may change these objects too
            there = api.get(f"{path}/{name}")
            if not _is_of_another(there, job):
                return True
            # Read after `there`. In the opposite order, `there` could belong to a later Job.
            if api.get(JOBS.format(namespace, name))["metadata"]["uid"] != job["metadata"]["uid"]:
                return False
            # Kubernetes deletes the objects of a deleted Job with a delay.
            api.delete(f"{path}/{name}", uid=there["metadata"]["uid"])
    return False


def _is_of_another(thing: Object, job: Object) -> bool:
    """Returns whether the object is owned by another Job (earlier or later) with the same name as `job`."""
    about = job["metadata"]
    return any(
        (owner["kind"], owner["name"]) == ("Job", about["name"]) and owner["uid"] != about["uid"]
        for owner in thing["metadata"].get("ownerReferences", ())
    )


def volume(name: str) -> Object:
    return {"name": "hosts", "configMap": {"name": name, "defaultMode": 0o755}}


def mount() -> Object:
    return {"name": "hosts", "mountPath": HOSTFILE_FOLDER, "readOnly": True}
