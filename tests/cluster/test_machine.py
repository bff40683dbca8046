"""Tests which machines can run the real node and on which its tests are skipped, and tests the node's GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import IO, Any

import pytest

from tests.cluster import images, machine
from tests.cluster.gpus import Gpus, library
from tests.cluster.nodes import A100
from tests.waiting import PATIENCE

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
ROOTS = pytest.mark.skipif(os.geteuid() != 0, reason="a real node needs root")
SEE = """
import json
from scheduling.backends.local import gpus
try:
    print(json.dumps({"uuids": [gpu.uuid for gpu in gpus.discover()],
                      "memory": [gpu.memory_bytes for gpu in gpus.discover()],
                      "busy": [[gpu.busy_percent, gpu.memory_used_bytes, gpu.processes]
                               for gpu in gpus.utilization()]}))
except gpus.NvmlError as error:
    print(json.dumps({"error": str(error)}))
"""


def see(inventory: Path) -> dict[str, Any]:
    """Returns what Fairlot reads about the GPUs through NVML. Runs in another process, which loads the simulated
    library."""
    told = {"LD_LIBRARY_PATH": str(library().parent), "NVML_INVENTORY": str(inventory)}
    done = subprocess.run(
        [sys.executable, "-c", SEE],
        capture_output=True, text=True, check=True, cwd=ROOT, env=os.environ | told, timeout=PATIENCE,
    )  # fmt: skip
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


@pytest.fixture
def root_lacks_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(machine, "forbids", lambda: None)
    monkeypatch.setattr(machine, "NEEDED", {"containerd-of-tomorrow": ("no-such-program",)})
    monkeypatch.setattr(machine, "install", lambda packages: None)


def test_a_user_who_is_not_root_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(machine.Unfit, match="a real node needs root"):
        machine.prepare()


@pytest.mark.usefixtures("root_lacks_a_package")
def test_what_is_missing_is_named_and_fails_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(machine.Unfit, match="needs containerd-of-tomorrow"):
        machine.prepare()
    monkeypatch.setenv("CI", "1")
    with pytest.raises(RuntimeError, match="install containerd-of-tomorrow"):
        machine.prepare()


@ROOTS
@pytest.mark.parametrize("capability", ["sys_admin", "net_admin"])
def test_a_machine_that_permits_no_containers_is_recognised(capability: str) -> None:
    code = "from tests.cluster import machine\ntry: machine.prepare()\nexcept machine.Unfit as unfit: print(unfit)"
    argv = ["setpriv", f"--bounding-set=-{capability}", sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout.startswith("this machine lets nobody run containers: namespaces and mounts in them: ")
    assert "not permitted" in done.stdout


@pytest.mark.skipif(machine.found("cc") is None, reason="needs a C compiler (cc)")
def test_the_library_reports_what_a_test_sets(tmp_path: Path) -> None:
    gpus = Gpus(tmp_path / "gpus", 2, A100, 80 << 30)
    gpus.tell(gpus.uuids[1], "busy", 87)
    gpus.tell(gpus.uuids[1], "used", 3 << 30)
    seen = see(gpus.folder)
    assert seen == {
        "uuids": gpus.uuids,
        "memory": [80 << 30] * 2,
        "busy": [[0, 0, None], [87, 3 << 30, None]],
    }
    for name, processes in zip(gpus.uuids, (0, 2), strict=True):
        gpus.tell(name, "processes", processes)
    assert see(gpus.folder)["busy"] == [[0, 0, 0], [87, 3 << 30, 2]]
    gpus.fail(gpus.uuids[0])
    assert see(gpus.folder) == {"error": "the NVIDIA driver does not answer: GPU is lost"}


def test_an_image_is_made_once_and_has_what_its_program_needs() -> None:
    try:
        machine.prepare()
    except machine.Unfit as unfit:
        pytest.skip(str(unfit))
    image = images.python()
    path = image.stored()
    assert image.stored() == path
    with tarfile.open(path) as tar:
        index = json.loads(content(tar, "index.json").read())
        manifest = json.loads(content(tar, blob(index["manifests"][0])).read())
        with tarfile.open(fileobj=content(tar, blob(manifest["layers"][0]))) as layer:
            inside = set(layer.getnames())
    interpreter = str(Path(sys.executable).resolve()).lstrip("/")
    assert {interpreter, "bin/sh", "bin/python3", "opt/examples/digits/train.py"} <= inside
    assert not any("/tests/" in name or name.endswith(".a") for name in inside)


def content(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    found = tar.extractfile(name)
    assert found
    return found


def blob(described: dict[str, Any]) -> str:
    return f"blobs/{described['digest'].replace(':', '/')}"
