"""Measures Fairlot on a cluster of about 500 nodes and prints the results beside published ones of the KAI scheduler.

Run it with `make bench-cluster`. SCALE=0.1 in the environment runs a tenth of each size. The control plane is real, and
kwok simulates nodes and pods. This process runs rounds and watches the cluster. WORKERS other processes send the start
and stop orders to the API server.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from django.conf import LazySettings

from accounting.core.clock import now_from_database
from fairshare.model import Reason
from scheduling.clusters.attaching import set_bare_pods
from scheduling.models import Node, Operation
from tests.cluster.api import NODES as NODES_PATH
from tests.cluster.measuring import SCALE, WORKERS, Bench, attached, say, started

WRITES = float(os.environ.get("WRITES_PER_SECOND", "2000"))
NODES, GPUS = round(500 * SCALE), 8
GANG = round(512 * SCALE)
SAMPLES = 5

pytestmark = [pytest.mark.cluster, pytest.mark.django_db(transaction=True)]


def test_figures(settings: LazySettings, tmp_path: Path) -> None:
    settings.FAIRLOT_JOBS_DIR = tmp_path
    settings.FAIRLOT_LOG_STREAMS = 1  # kwok has no logs and answers each request for a log with an error
    say(f"\n{NODES} nodes with {GPUS} GPUs; {WORKERS} workers; {WRITES:g} writes a second at most")
    with started(max(NODES, GANG), GPUS) as plane, attached(plane, writes_per_second=WRITES) as bench:
        one_gang(bench)
        remove_nodes(bench, GANG - NODES)
        fill(bench, bare=False)
        bench.end_all()
        fill(bench, bare=True)
        give_back(bench)
        never(bench)


def remove_nodes(bench: Bench, count: int) -> None:
    """Deletes `count` nodes that only the measurement of a large gang needs, and waits until Fairlot has noticed."""
    nodes = bench.lab.cluster.nodes
    for node in list(nodes.order_by("-name")[: max(count, 0)]):
        bench.lab.admin.delete(f"{NODES_PATH}/{node.host}")
    up = nodes.exclude(state=Node.State.DOWN)
    bench.lab.watch_until(lambda: up.count() == NODES, what=lambda: f"{up.count()} of {NODES} nodes")


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


def fill(bench: Bench, *, bare: bool) -> None:
    """Measures how long a burst of one-GPU jobs takes to fill the cluster. With `bare`, jobs run as pods without a
    Job."""
    set_bare_pods(actor=bench.lab.people.ada, cluster=bench.lab.cluster, bare_pods=bare)
    count, shape = NODES * GPUS, "pods without Jobs" if bare else "Jobs"
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
        f"{count} jobs of one GPU as {shape}: submitted in {submitted - began:.1f} s; then {done - submitted:.1f} s"
        f" until all run, of which deciding {decided - submitted:.1f} s; {bench.writes()} writes; {bench.spent()}"
        " (KAI: 397.8 s, 460.5 s with the submission)"
    )


def give_back(bench: Bench) -> None:
    """Measures how long Charlie's job waits for a GPU of a full cluster, from the beginning of the round that gives it
    one."""
    lab, told, ran = bench.lab, [], []
    stops = Operation.objects.filter(cluster=lab.cluster, verb=Operation.Verb.STOP)
    for _ in range(SAMPLES):
        job = lab.send("charlie")
        lab.quantum()
        lab.pass_time(lab.cluster.effective_quantum)
        began = now_from_database()
        lab.quantum()
        bench.until_run([job.pk])
        ran.append((now_from_database() - began).total_seconds())
        # Takes the time of the stop order from the database, because the watching process would see other changes
        # first.
        done = stops.filter(done_at__gte=began).values_list("done_at", flat=True)
        told += [(at - began).total_seconds() for at in done if at]
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
