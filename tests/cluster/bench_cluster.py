"""What peers have published for clusters of this size, measured here: `make bench-cluster`.

SCALE=0.1 in the environment is a tenth of each size. Nothing here fails for being slow. A real control plane,
nodes and pods that kwok plays, and of Fairlot: this process, which decides and watches, and WORKERS others that
carry out orders. All of them share the machine's cores.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.conf import LazySettings

from fairshare.model import Reason
from scheduling.actions import cancel_job
from scheduling.models import Job, Lease, Node, Operation
from tests.cluster import deployed
from tests.cluster.api import NODES as NODES_PATH
from tests.cluster.attached_lab import Lab, attached_lab
from tests.cluster.controlplane import ControlPlane
from tests.cluster.history import AuditTail
from tests.cluster.orders_process import at_work
from tests.waiting import wait_for

SCALE = float(os.environ.get("SCALE", "1"))
WORKERS = int(os.environ.get("WORKERS", "1"))
WRITES = float(os.environ.get("WRITES_PER_SECOND", "2000"))
NODES, GPUS = round(500 * SCALE), 8
GANG = round(512 * SCALE)
SAMPLES = 5

pytestmark = [pytest.mark.cluster, pytest.mark.django_db(transaction=True)]


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def cpu_seconds(pid: int) -> float:
    """Of a process, all of its threads, until now."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Bench:
    """A lab whose orders are carried out by other processes, and its clock."""

    def __init__(self, lab: Lab, plane: ControlPlane, workers: Sequence[int]) -> None:
        self.lab, self.plane, self.workers = lab, plane, workers
        self._spent: dict[str, float] = {}
        self.audit = AuditTail(plane.audit_log)

    @contextmanager
    def closing(self) -> Iterator[Bench]:
        try:
            yield self
        finally:
            self.audit.close()

    def spent(self) -> str:
        """CPU seconds since this was last asked: where cores are shared and slow, they say more than a clock."""
        now = {"Fairlot": self._own_seconds(), "Kubernetes": self._seconds_of_components()}
        said = ", ".join(
            f"{name} {seconds - self._spent.get(name, 0.0):.1f}" for name, seconds in now.items()
        )
        self._spent = now
        return f"{said} CPU seconds"

    def _own_seconds(self) -> float:
        return time.process_time() + sum(map(cpu_seconds, self.workers))

    def _seconds_of_components(self) -> float:
        running = [one.process for one in self.plane.components if one.process]
        return sum(cpu_seconds(process.pid) for process in running)

    def writes(self) -> int:
        """Of Fairlot's, since this was last asked."""
        ours = self.audit.events(about=f'"username":"{deployed.FAIRLOT}"')
        return sum(event["verb"] in ("create", "patch", "update", "delete") for event in ours)

    def until_run(self, jobs: list[int]) -> None:
        running = Job.objects.filter(pk__in=jobs, state=Job.State.RUNNING)
        wait_for(lambda: (self.lab.watch(), running.count() == len(jobs))[1], what="all run", every=0.0)

    def until_empty(self) -> None:
        held = Lease.objects.filter(cluster=self.lab.cluster, state__in=Lease.HOLDING)
        wait_for(lambda: (self.lab.watch(), not held.exists())[1], what="no GPU is held", every=0.0)

    def end_all(self) -> None:
        for job in Job.objects.filter(cluster=self.lab.cluster).unfinished():
            cancel_job(actor=self.lab.people.olga, job=job)
        self.until_empty()


@contextmanager
def started(nodes: int) -> Iterator[ControlPlane]:
    folder = Path(tempfile.mkdtemp(prefix="fairlot-bench-"))
    limits = {"max-requests-inflight": 5000, "max-mutating-requests-inflight": 2500}
    try:
        with ControlPlane(folder, apiserver=limits).started() as plane:
            plane.add_nodes(nodes, gpus=GPUS)
            deployed.install(plane)
            yield plane
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_figures(settings: LazySettings, tmp_path: Path) -> None:
    settings.FAIRLOT_JOBS_DIR = tmp_path
    settings.FAIRLOT_LOG_STREAMS = 1  # kwok has no logs, and answers every attempt at one with an error
    say(f"\n{NODES} nodes with {GPUS} GPUs; {WORKERS} workers; {WRITES:g} writes a second at most")
    with started(max(NODES, GANG)) as plane:
        kubeconfig = deployed.flattened(plane.kubeconfig(deployed.FAIRLOT))
        lab_ = attached_lab(
            kubeconfig, plane.admin, writes_per_second=WRITES, writes_at_once=2 * WRITES, clean_up=False
        )
        with (
            lab_ as lab,
            at_work(lab.cluster.pk, WORKERS) as workers,
            Bench(lab, plane, workers).closing() as bench,
        ):
            one_gang(bench)
            remove_nodes(bench, GANG - NODES)
            fill(bench)
            give_back(bench)
            never(bench)


def remove_nodes(bench: Bench, count: int) -> None:
    """The gang needs more of them than the other shapes have."""
    nodes = bench.lab.cluster.nodes
    for node in list(nodes.order_by("-name")[: max(count, 0)]):
        bench.lab.admin.delete(f"{NODES_PATH}/{node.host}")
    up = nodes.exclude(state=Node.State.DOWN)
    wait_for(lambda: (bench.lab.watch(), up.count() == NODES)[1], what=f"{NODES} nodes", every=0.0)


def one_gang(bench: Bench) -> None:
    bench.writes()
    bench.spent()
    began = time.monotonic()
    job = bench.lab.send(workers=GANG, gpus=GPUS)
    bench.lab.fill()
    bench.until_run([job.pk])
    say(
        f"one gang of {GANG} pods: {time.monotonic() - began:.1f} s from its submission until all of it runs,"
        f" {bench.writes()} writes; {bench.spent()} (KAI: 48.7 s)"
    )
    bench.end_all()


def fill(bench: Bench) -> None:
    count = NODES * GPUS
    bench.writes()
    began = time.monotonic()
    jobs = [bench.lab.send().pk for _ in range(count)]
    submitted = time.monotonic()
    bench.spent()
    bench.lab.fill()
    decided = time.monotonic()
    bench.until_run(jobs)
    done = time.monotonic()
    say(
        f"{count} jobs of one GPU: submitted in {submitted - began:.1f} s; then {done - submitted:.1f} s until all run,"
        f" of which deciding {decided - submitted:.1f} s; {bench.writes()} writes; {bench.spent()}"
        f" (KAI: 397.8 s, 460.5 s with the submission)"
    )


def give_back(bench: Bench) -> None:
    """Charlie wants one GPU of a full cluster; how long it takes from the round that gives it to her."""
    lab, told, ran = bench.lab, [], []
    stops = Operation.objects.filter(cluster=lab.cluster, verb=Operation.Verb.STOP, done_at=None)
    for _ in range(SAMPLES):
        job = lab.send("charlie")
        lab.quantum()
        lab.pass_time(lab.cluster.effective_quantum)
        began = time.monotonic()
        lab.quantum()
        wait_for(lambda: (lab.watch(), not stops.exists())[1], what="it is told to stop", every=0.0)
        told.append(time.monotonic() - began)
        bench.until_run([job.pk])
        ran.append(time.monotonic() - began)
    say(
        f"one GPU back in a full cluster, {SAMPLES} times: told to stop after {max(told):.2f} s at most,"
        f" the other runs after {max(ran):.2f} s (KAI: 13.9 s on average)"
    )


def never(bench: Bench) -> None:
    began = time.monotonic()
    job = bench.lab.send(workers=max(NODES, GANG) + 1, gpus=GPUS)
    bench.lab.fill()
    said = time.monotonic() - began
    job.refresh_from_db()
    assert Reason(job.reason).is_never
    say(f"a gang that can never fit: said after {said:.2f} s (KAI: 249.5 s)")
