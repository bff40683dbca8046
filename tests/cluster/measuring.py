"""Shared code of benchmarks that have their own control plane: starting a cluster, measuring CPU time, counting
writes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scheduling.jobs.actions import cancel_job
from scheduling.models import Job, Lease
from tests.cluster import deployed
from tests.cluster.attached_lab import Lab, attached_lab
from tests.cluster.controlplane import ControlPlane, control_plane
from tests.cluster.history import AuditTail
from tests.cluster.orders_process import at_work

SCALE = float(os.environ.get("SCALE", "1"))
WORKERS = int(os.environ.get("WORKERS", "1"))
# The values of the measurements that are repeated, so that the API server's limit does not decide the result.
INFLIGHT = {"max-requests-inflight": 5000, "max-mutating-requests-inflight": 2500}


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of a process and all its threads so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Bench:
    """An attached cluster for benchmarks, with counters of CPU time and of API writes. Other processes carry out its
    orders."""

    def __init__(self, lab: Lab, plane: ControlPlane, workers: Sequence[int]) -> None:
        self.lab, self.plane, self.workers = lab, plane, workers
        self._spent: dict[str, float] = {}
        self.audit = AuditTail(plane.audit_log)

    def spent(self) -> str:
        """Returns a text with the CPU seconds of Fairlot and of Kubernetes since the last call.

        On shared or slow cores CPU seconds vary less than wall time.
        """
        now = {"Fairlot": self._own_seconds(), "Kubernetes": self._seconds_of_components()}
        said = ", ".join(
            f"{name} {seconds - self._spent.get(name, 0.0):.1f}" for name, seconds in now.items()
        )
        self._spent = now
        return f"{said} CPU seconds"

    def _own_seconds(self) -> float:
        return time.process_time() + sum(map(cpu_seconds, self.workers))

    def _seconds_of_components(self) -> float:
        running = [one.process for one in self.plane.components if one.running and one.process]
        return sum(cpu_seconds(process.pid) for process in running)

    def writes(self) -> int:
        """Returns the number of Fairlot's write requests since the last call, from the audit log."""
        ours = self.audit.events(about=f'"username":"{deployed.FAIRLOT}"')
        return sum(event["verb"] in ("create", "patch", "update", "delete") for event in ours)

    def until_run(self, jobs: list[int]) -> None:
        """Waits until all these jobs run. They must be the newest jobs of the cluster."""
        # A query with thousands of IDs would disturb the measurement.
        running = Job.objects.filter(cluster=self.lab.cluster, pk__gte=min(jobs), state=Job.State.RUNNING)
        self.lab.watch_until(lambda: running.count() == len(jobs), what="all run")

    def until_empty(self) -> None:
        held = Lease.objects.filter(cluster=self.lab.cluster, state__in=Lease.HOLDING)
        self.lab.watch_until(lambda: not held.exists(), what="no GPU is held")

    def end_all(self) -> None:
        for job in Job.objects.filter(cluster=self.lab.cluster).unfinished():
            cancel_job(actor=self.lab.people.olga, job=job)
        self.until_empty()


@contextmanager
def started(nodes: int, gpus: int) -> Iterator[ControlPlane]:
    """Yields a control plane with `nodes` nodes of `gpus` GPUs each. deploy/kubernetes is installed on it."""
    with control_plane("bench", apiserver=INFLIGHT) as plane:
        plane.add_nodes(nodes, gpus=gpus)
        deployed.install(plane)
        yield plane


@contextmanager
def attached(plane: ControlPlane, *, writes_per_second: float) -> Iterator[Bench]:
    """Yields a Bench: the cluster of `plane`, attached to Fairlot. WORKERS processes carry out its orders.

    `writes_per_second`: the rate limit for Fairlot's write requests to the API server. The largest burst is twice this
    number of requests.
    """
    kubeconfig = deployed.flattened(plane.kubeconfig(deployed.FAIRLOT))
    limits = {"writes_per_second": writes_per_second, "writes_at_once": 2 * writes_per_second}
    with (
        attached_lab(kubeconfig, plane.admin, clean_up=False, **limits) as lab,
        at_work(lab.cluster.pk, WORKERS) as workers,
    ):
        bench = Bench(lab, plane, workers)
        try:
            yield bench
        finally:
            bench.audit.close()
