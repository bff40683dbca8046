"""A command declares the GPUs of this machine as nodes. The tests use the real NVML bindings with a stand-in for the
driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from django.db import connection

from accounting.models import AuditEvent
from scheduling.clusters.discovery import model_of
from scheduling.models import Cluster, Node
from tests.scheduling.backends.local.test_gpus import ROOT, stand_in
from tests.waiting import PATIENCE


def declare(library_path: Path) -> subprocess.CompletedProcess[str]:
    at = connection.settings_dict
    url = f"postgresql://{at['USER']}:{quote(at['PASSWORD'])}@{at['HOST']}:{at['PORT']}/{at['NAME']}"
    return subprocess.run(
        [sys.executable, "-W", "error", "manage.py", "declare_gpus", "lab"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"DATABASE_URL": url, "LD_LIBRARY_PATH": str(library_path)},
        timeout=PATIENCE,
    )


@pytest.mark.django_db(transaction=True)
def test_each_model_becomes_a_node_and_twice_is_as_good_as_once(tmp_path: Path) -> None:
    Cluster.objects.create(name="lab")
    library = stand_in(tmp_path)
    for _ in range(2):
        done = declare(library)
        assert done.returncode == 0, done.stderr
    nodes = Node.objects.select_related("generation").order_by("generation__name")
    assert [(n.generation.name, n.generation.memory_gib, n.gpus, n.virtual_speed) for n in nodes] == [
        ("A100", 40, 1, None),
        ("V100", 16, 1, None),
    ]
    assert nodes[0].gpu_uuids == ["GPU-00000001-1111-2222-3333-444444444444"]
    assert AuditEvent.objects.filter(verb="node.declare").count() == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a driver")
def test_without_a_driver_it_says_so(tmp_path: Path) -> None:
    Cluster.objects.create(name="lab")
    done = declare(tmp_path)
    assert done.returncode == 1
    assert "no NVIDIA driver" in done.stderr
    assert not Node.objects.exists()


@pytest.mark.parametrize(
    ("product", "model"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("Tesla V100-PCIE-16GB", "V100"),
        ("Tesla K80", "K80"),
        ("Quadro RTX 6000", "RTX 6000"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA TITAN V", "TITAN V"),
    ],
)
def test_products_are_known_by_their_model(product: str, model: str) -> None:
    assert model_of(product) == model
