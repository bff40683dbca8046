"""Repeats Kueue's own benchmark: 15,000 workloads of 30 queues in 5 groups, without pods.

Run it with `make bench-cluster`. SCALE=0.1 in the environment runs a tenth of the workloads.

Each queue has 20 GPUs. Its workloads have 1, 5 or 20 GPUs and take 0.2, 0.5 or 1 s. They arrive within 60 s. A queue
whose GPUs are always busy needs 66 s for them. The benchmark runs twice: with the limit of writes per second that Kueue
has by default, and without a limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import pytest
from django.conf import LazySettings
from django.db import connection

from accounting.models import Tenant, User
from scheduling.jobs.submitting import submit_job
from scheduling.models import Cluster, Job
from scheduling.rounds.actions import run_round
from scheduling.spec.job_spec import JobSpec
from tests import make
from tests.cluster.api import Object
from tests.cluster.finisher import Finisher
from tests.cluster.measuring import SCALE, WORKERS, Bench, attached, say, started

GROUPS, QUEUES, ROOM = 5, 6, 20
UNLIMITED = 5_000  # more writes a second than a measurement needs

pytestmark = [pytest.mark.cluster, pytest.mark.django_db(transaction=True)]


@dataclass(frozen=True)
class Kind:
    """A kind of workload.

    `count`: workloads per queue. `gpus`: GPUs of each. `seconds`: duration of each. `apart`: seconds between
    submissions.
    """

    name: str
    count: int
    gpus: int
    seconds: float
    apart: float


KINDS = (
    Kind("small", 350, 1, 0.2, 0.1),
    Kind("medium", 100, 5, 0.5, 0.5),
    Kind("large", 50, 20, 1.0, 1.2),
)
SECONDS = {kind.gpus: kind.seconds for kind in KINDS}


@dataclass(frozen=True)
class Arrival:
    at: float
    kind: Kind
    team: Tenant
    user: User


@pytest.mark.parametrize("writes", [50, UNLIMITED])
def test_workloads_one_at_a_time(settings: LazySettings, tmp_path: Path, writes: int) -> None:
    settings.FAIRLOT_JOBS_DIR = tmp_path
    with started(GROUPS * QUEUES, ROOM) as plane, attached(plane, writes_per_second=writes) as bench:
        # From here on nothing simulates pods. The nodes keep their state.
        for component in (plane.kwok, plane.scheduler, plane.controller_manager):
            component.stop()
        arrivals = sorted(plan(), key=lambda one: one.at)
        with Finisher(plane, how_long).started() as finisher:
            report(bench, finisher, writes, *drive(bench, arrivals, finisher))


def how_long(job: Object) -> float:
    [container] = job["spec"]["template"]["spec"]["containers"]
    return SECONDS[int(container["resources"]["limits"]["nvidia.com/gpu"])]


def plan() -> list[Arrival]:
    found = []
    for group in range(GROUPS):
        parent = make.tenant(f"Group {group}")
        for number in range(QUEUES):
            team, user = make.tenant(f"Queue {group}-{number}", parent=parent), make.user(f"u{group}{number}")
            make.membership(user, team)
            found += [
                Arrival(attempt * kind.apart, kind, team, user)
                for kind in KINDS
                for attempt in range(max(1, round(kind.count * SCALE)))
            ]
    return found


def drive(bench: Bench, arrivals: Sequence[Arrival], finisher: Finisher) -> tuple[float, float]:
    """Submits each workload at the time of its arrival, and runs Fairlot until all workloads are done.

    Returns two times in seconds from the start: of the last submission, and of the end of the last workload.
    """
    cluster = bench.lab.cluster
    bench.writes()
    bench.spent()
    began, submitted = time.monotonic(), threading.Event()
    took: list[float] = []
    never = threading.Event()

    def submit() -> None:
        try:
            for one in arrivals:
                never.wait(max(0.0, began + one.at - time.monotonic()))
                spec = JobSpec(
                    name=one.kind.name,
                    command="true",
                    environment="example/train",
                    gpus_per_worker=one.kind.gpus,
                )
                submit_job(actor=one.user, tenant=one.team, cluster=cluster, spec=spec)
            took.append(time.monotonic() - began)
        finally:
            submitted.set()
            connection.close()

    thread = threading.Thread(target=submit)
    thread.start()
    while not _is_done(bench, cluster, submitted):
        finisher.check()
    thread.join()
    return took[0], time.monotonic() - began


def _is_done(bench: Bench, cluster: Cluster, submitted: threading.Event) -> bool:
    run_round(cluster_id=cluster.pk)
    bench.lab.watch()
    return submitted.is_set() and not Job.objects.filter(cluster=cluster).unfinished().exists()


def report(bench: Bench, finisher: Finisher, writes: int, submitted: float, done: float) -> None:
    jobs = list(Job.objects.filter(cluster=bench.lab.cluster).only("id", "spec", "state", "created_at"))
    assert {job.state for job in jobs} == {Job.State.SUCCEEDED}
    waits: dict[str, list[float]] = {kind.name: [] for kind in KINDS}
    for job in jobs:
        waits[job.spec["name"]].append(finisher.began[job.pk] - job.created_at.timestamp())
    told = ", ".join(f"{name} {mean(found):.1f} s" for name, found in waits.items())
    limit = "unlimited writes" if writes == UNLIMITED else f"{writes} writes a second"
    say(
        f"\n{len(jobs)} workloads of {GROUPS * QUEUES} teams, {limit}, {WORKERS} workers: submitted in"
        f" {submitted:.1f} s, done in {done:.1f} s ({len(jobs) / done:.1f} a second); waited on average: {told};"
        f" {bench.writes()} writes; {bench.spent()}"
        f" (Kueue, 15,000 of them at 50 a second: 351 s, 42.7 a second; small 215.5, medium 76.8, large 16.5 s)"
    )
