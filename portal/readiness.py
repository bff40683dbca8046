"""Says what a program must do so that Fairlot finds it ready."""

from __future__ import annotations

from scheduling.models import Cluster, Job, Lease


def what_to_do(job: Job, lease: Lease | None, cluster: Cluster) -> str:
    """Returns sentences that say where the program of a job must answer; "" if nothing is known to be wrong.

    `lease` is the job's open lease, and `cluster` the job's cluster.
    """
    if lease is None or lease.is_ready or not lease.why_not_ready:
        return ""
    if cluster.backend == Cluster.Backend.LOCAL:
        _, _, port = lease.address.rpartition(":")
        where = (
            f"the port in the environment variable PORT (now {port}), at 127.0.0.1. Fairlot chooses the port, so write"
            " $PORT in the command, not a number"
        )
    else:
        where = (
            f"port {job.spec.get('port')}, which the environment variable PORT contains, at all addresses (0.0.0.0),"
            " not only at 127.0.0.1"
        )
    path = job.spec.get("readiness_path")
    answers = f" It must answer GET {path} there with a status from 200 to 399." if path else ""
    return f"The program must listen on {where}.{answers}"
