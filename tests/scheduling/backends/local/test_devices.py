"""A job can open only the device files of its own GPUs. If Fairlot cannot ensure this, it shows a warning."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from scheduling.backends.base import BackendError, End, Worker
from scheduling.backends.local import devices, gpus, isolation
from scheduling.backends.local.isolation import HostPaths, Isolation
from tests.scheduling.local_rig import Rig

ROOT = Path(__file__).resolve().parents[4]
NAMES = (
    "nvidia0",
    "nvidia1",
    "nvidia10",
    "dri/renderD128",
    "dri/renderD129",
    "nvidiactl",
    "nvidia-uvm",
    "null",
)


@pytest.fixture
def dev(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields a folder that stands in for /dev, with files instead of devices.

    GPU "a" has nvidia1 and renderD129, and GPU "b" has nvidia0. The device nvidia10 belongs to no known GPU.
    """
    (ROOT / "artifacts").mkdir(exist_ok=True)
    # not in /tmp, because each job has its own /tmp
    made = Path(tempfile.mkdtemp(prefix="dev-", dir=ROOT / "artifacts"))
    made.chmod(0o755)
    (made / "dri").mkdir()
    for name in NAMES:
        (made / name).write_text("opened\n")
        (made / name).chmod(0o666)
    if os.geteuid() == 0:  # root can make a real device file; this one acts like /dev/null
        (made / "nvidia10").unlink()
        with suppress(PermissionError):
            os.mknod(made / "nvidia10", stat.S_IFCHR, os.makedev(1, 3))
            (made / "nvidia10").chmod(0o666)
    known = {"a": [made / "nvidia1", made / "dri/renderD129"], "b": [made / "nvidia0"]}
    monkeypatch.setattr(gpus, "devices", lambda dev: known)
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize(
    ("held", "closed"),
    [
        ("", {"nvidia0", "nvidia1", "nvidia10", "dri/renderD129"}),
        ("a", {"nvidia0", "nvidia10"}),
        ("b", {"nvidia1", "nvidia10", "dri/renderD129"}),
    ],
)
def test_a_job_opens_only_the_devices_of_its_own_gpus(
    rig: Rig, dev: Path, held: str, closed: set[str]
) -> None:
    if not rig.backend.isolation.namespaces:
        pytest.skip("no namespaces on this machine")
    rig.backend.places = replace(rig.places, dev=dev)
    workers = [Worker(0, "node", (), tuple(held), None)]
    script = (
        f"cd {dev}; for name in {' '.join(NAMES)}; do cat $name >/dev/null && echo has $name.; done; true"
    )
    assert rig.wait(rig.start(rig.gang(script, gpus=workers))).end is End.SUCCEEDED
    opened = {name for name in NAMES if f"has {name}." in rig.log()}
    assert opened == set(NAMES) - closed, rig.log()


def test_without_devices_nothing_is_asked_or_covered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "devices", lambda dev: pytest.fail("asked"))
    (tmp_path / "nvidiactl").touch()
    assert devices.of_others({"a"}, tmp_path) == []
    assert devices.needed(tmp_path) == []


def test_a_job_whose_gpu_cannot_be_distinguished_from_others_does_not_start(
    rig: Rig, dev: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not rig.backend.isolation.namespaces:
        pytest.skip("no namespaces on this machine")
    rig.backend.places = replace(rig.places, dev=dev)
    seen = rig.wait(rig.start(rig.gang("true", gpus=[Worker(0, "node", (), ("gone",), None)])))
    assert (seen.end, "the GPU gone is missing on this machine" in seen.message) == (End.START_FAILED, True)

    def broken(dev: Path) -> None:
        raise gpus.NvmlError("the NVIDIA driver does not answer")

    monkeypatch.setattr(gpus, "devices", broken)
    with pytest.raises(BackendError, match="driver does not answer"):  # so the order is repeated
        rig.start(rig.gang("true", epoch=2, gpus=[Worker(0, "node", (), ("a",), None)]))
    assert devices.of_others((), dev) == [str(dev / name) for name in ("nvidia0", "nvidia1", "nvidia10")]


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's jobs have the same rights as it has")
def test_devices_that_jobs_need_and_cannot_open_are_named(dev: Path, tmp_path: Path) -> None:
    (dev / "nvidia-uvm").unlink()
    (dev / "nvidia1").chmod(0o660)
    found = isolation.known(HostPaths(jobs=tmp_path / "jobs", dev=dev))
    assert found.closed_devices == (str(dev / "nvidia-uvm"), str(dev / "nvidia1"))
    assert f"Jobs cannot open {dev / 'nvidia1'}" in " ".join(found.not_kept)
    assert Isolation(users=True, namespaces=True).closed_devices == ()
