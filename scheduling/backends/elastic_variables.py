"""The environment variables by which the workers of an elastic gang know its bounds and find each other."""

from __future__ import annotations

HOST_DISCOVERY = "discover-hosts"
# Horovod calls such a script: a line "host:slots" for each host of the attempt. It is beside the list of hosts.
SCRIPT = """#!/bin/sh
exec sed -n 's/^\\([^ ]*\\) slots=/\\1:/p' "$(dirname "$0")/hostfile"
"""


def of_bounds(least: int, most: int) -> dict[str, str]:
    return {"FAIRLOT_MIN_WORKERS": str(least), "FAIRLOT_MAX_WORKERS": str(most)}


def of_torchrun(*, least: int, job_id: int, workers: int, gpus: int) -> dict[str, str]:
    """Returns options of torchrun, the same for all workers of an attempt with `workers` workers of `gpus` GPUs.

    Its most nodes are the workers of this attempt, so that it begins as soon as all of them have come, and need not
    wait for more. A worker of an attempt that is over cannot join, because the first worker of each attempt keeps the
    list. `least` is the least number of workers of the job.
    """
    return {
        "PET_NNODES": f"{least}:{workers}",
        "PET_NPROC_PER_NODE": str(gpus),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ID": f"fairlot-{job_id}",
    }


def endpoint(host: str, port: int | str) -> dict[str, str]:
    """Returns the variable with the address at which torchrun's workers meet: a port of the first worker."""
    return {"PET_RDZV_ENDPOINT": f"{host}:{port}"}


def host_discovery(hostfile: str) -> dict[str, str]:
    """Returns the variable with the path of the script for `horovodrun --host-discovery-script`."""
    return {"FAIRLOT_HOST_DISCOVERY": f"{hostfile.rpartition('/')[0]}/{HOST_DISCOVERY}"}
