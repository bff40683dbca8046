"""The environment variables by which the workers of an elastic gang know its bounds and meet in torchrun."""

from __future__ import annotations


def variables(*, least: int, most: int, job_id: int, workers: int, gpus: int) -> dict[str, str]:
    """Returns the variables that are the same for all workers of an attempt with `workers` workers of `gpus` GPUs.
    `least` and `most` are the bounds that the job names.

    Those that begin with PET_ are options of torchrun. Its most nodes are the workers of this attempt, so that it
    begins as soon as all of them have come, and need not wait for more. A worker of an attempt that is over cannot
    join, because the first worker of each attempt keeps the list.
    """
    return {
        "FAIRLOT_MIN_WORKERS": str(least),
        "FAIRLOT_MAX_WORKERS": str(most),
        "PET_NNODES": f"{least}:{workers}",
        "PET_NPROC_PER_NODE": str(gpus),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ID": f"fairlot-{job_id}",
    }


def endpoint(host: str, port: int | str) -> dict[str, str]:
    """Returns the variable with the address at which torchrun's workers meet: a port of the first worker."""
    return {"PET_RDZV_ENDPOINT": f"{host}:{port}"}
