"""The environment variables by which workers with roles know who they are and find each other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

# TensorFlow's evaluator is no member of the cluster that trains.
EVALUATOR = "evaluator"


def variables(role: str, index: int, addresses: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Returns the variables of the worker with number `index` in the role `role`, such as FAIRLOT_HOSTS_WORKER and
    FAIRLOT_HOSTS_PS for the addresses of these roles.

    `addresses` has the addresses (host:port) of all workers of the gang by role, each in the order of its workers.
    """
    hosts = {
        f"FAIRLOT_HOSTS_{name.upper().replace('-', '_')}": ",".join(found)
        for name, found in addresses.items()
    }
    return hosts | {
        "FAIRLOT_ROLE": role,
        "FAIRLOT_ROLE_INDEX": str(index),
        "FAIRLOT_ROLE_SIZE": str(len(addresses[role])),
    }


def tf_config(role: str, index: int, addresses: Mapping[str, Sequence[str]]) -> str:
    """Returns the value of TF_CONFIG, from which TensorFlow reads its cluster and the worker's task in it."""
    cluster = {name: list(found) for name, found in addresses.items() if name != EVALUATOR}
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})


def hostfile_variables(path: str) -> dict[str, str]:
    """Returns the variables that contain the path of the host list, for each MPI, Horovod and users' programs."""
    return {
        "FAIRLOT_HOSTFILE": path,
        "OMPI_MCA_orte_default_hostfile": path,
        "PRTE_MCA_prte_default_hostfile": path,  # from Open MPI 5 on
        "I_MPI_HYDRA_HOST_FILE": path,
        "HYDRA_HOST_FILE": path,  # of MPICH
    }
