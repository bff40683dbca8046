"""How the workers of a gang find each other: a name for each, and lists of them as launchers read them."""

from __future__ import annotations

from scheduling.backends.kubernetes.api import Api, Missing, Object, Taken

RENDEZVOUS_PORT = 29500
# DeepSpeed's launcher looks for its hostfile here when it is told no other place.
HOSTFILE_FOLDER, HOSTFILE = "/job", "hostfile"


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

    False while those of a Job before it are there, which are about to go with that.
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
    for kind, thing in (("services", service), ("configmaps", hosts)):
        path = f"/api/v1/namespaces/{namespace}/{kind}"
        try:
            api.create(path, thing)
        except Taken:
            if _is_going(api, f"{path}/{name}", job):
                return False
    return True


def _is_going(api: Api, path: str, job: Object) -> bool:
    """Whether what is there belongs to a Job of the same name that was deleted: it is collected soon."""
    try:
        owners = api.get(path)["metadata"].get("ownerReferences", ())
    except Missing:
        return True
    return any(
        (owner["kind"], owner["name"]) == ("Job", job["metadata"]["name"])
        and owner["uid"] != job["metadata"]["uid"]
        for owner in owners
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
