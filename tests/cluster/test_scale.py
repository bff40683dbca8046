"""Tests rounds of time slicing with a thousand jobs on 500 nodes with 8 GPUs each: `make soak`.

The test takes five minutes on two otherwise idle cores, so `make test` leaves it out. SCALE=0.25 in the environment
runs a quarter of the size.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from django.conf import LazySettings

from scheduling.backends.kubernetes.api import Api as OwnApi
from scheduling.backends.kubernetes.gang_ungater import START_SECONDS
from scheduling.models import HeldGpu, Job, Lease
from tests.cluster import deployed
from tests.cluster.attached_lab import Lab, attached_lab
from tests.cluster.controlplane import ControlPlane, control_plane
from tests.cluster.nodes import V100
from tests.cluster.witness import Witness

SCALE = float(os.environ.get("SCALE", "0"))
NODES, GPUS, JOBS = round(500 * SCALE), 8, round(1000 * SCALE)
QUANTA = 3
# Maps (workers, GPUs of each worker) to the number of such jobs in a hundred. Most jobs are small, but most GPUs are in
# gangs.
SHAPES = {(1, 1): 30, (1, 2): 15, (1, 4): 15, (1, 8): 15, (2, 8): 12, (4, 4): 5, (4, 8): 5, (8, 8): 3}
SEED = random.randrange(1_000_000)

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.django_db,
    pytest.mark.skipif(not SCALE, reason="minutes of both cores: make soak"),
]


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with control_plane("scale") as running:
        running.add_nodes(NODES - NODES // 4)
        running.add_nodes(NODES // 4, prefix="old", product=V100)
        deployed.install(running)
        yield running


@pytest.fixture
def lab(settings: LazySettings, tmp_path: Path, plane: ControlPlane) -> Iterator[Lab]:
    settings.FAIRLOT_JOBS_DIR = tmp_path
    kubeconfig = deployed.flattened(plane.kubeconfig(deployed.FAIRLOT))
    with attached_lab(
        kubeconfig, plane.admin, writes_per_second=2000, writes_at_once=200, clean_up=False
    ) as made:
        yield made


def test_no_node_is_overcommitted_no_worker_runs_twice_and_no_gang_runs_in_part(
    lab: Lab, plane: ControlPlane
) -> None:
    sys.stdout.write(f"seed {SEED}\n")
    chance = random.Random(SEED)
    shapes = chance.choices(list(SHAPES), weights=list(SHAPES.values()), k=JOBS)
    capacity = {node.name: node.gpus for node in lab.cluster.nodes.all()}
    assert sum(capacity.values()) == NODES * GPUS
    api = OwnApi(yaml.safe_load(plane.kubeconfig("test-admin").read_text()))
    witness = Witness(capacity)
    with witness.watching(api):
        # Bob has the whole cluster. Then Charlie submits jobs, half of the cluster changes hands, and a part of it
        # changes back.
        for owner, part in (("bob", shapes[: JOBS // 2]), ("charlie", shapes[JOBS // 2 :])):
            for workers, gpus in part:
                job = lab.send(owner, workers=workers, gpus=gpus)
                witness.knows(lab.home(job), job.pk, workers)
            lab.fill()
            settle(lab)
        for _ in range(QUANTA):
            lab.quantum()
            settle(lab)
            lab.pass_time(lab.cluster.effective_quantum)
        running = Job.objects.filter(state=Job.State.RUNNING)
        held = HeldGpu.objects.filter(lease__state=Lease.State.RUNNING).count()
        moved = Lease.objects.filter(state=Lease.State.CLOSED).count()
    api.close()
    sys.stdout.write(
        f"{running.count()} of {JOBS} jobs run on {held} GPUs, {moved} turns are over; {witness.started} pods ran, "
        f"at most {witness.most_bound} GPUs at once; part of a gang alone {witness.longest_part:.1f} s at most\n"
    )
    assert witness.faults == []
    assert witness.longest_part < START_SECONDS
    assert held == sum(workers * gpus for workers, gpus in running.values_list("workers", "gpus_per_worker"))
    assert moved > JOBS // 20, "gangs have taken turns"


def settle(lab: Lab) -> None:
    """Carries out Fairlot's orders to the cluster and watches the cluster, until no lease is reserved, starting or
    stopping."""
    pending = Lease.objects.filter(
        cluster=lab.cluster, state__in=[Lease.State.RESERVED, Lease.State.STARTING, Lease.State.STOPPING]
    )
    lab.until(lambda: not pending.exists(), lambda: f"{pending.count()} leases are under way")
