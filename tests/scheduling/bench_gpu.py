"""Measures the first real GPU of this machine as Fairlot uses it. `make bench-gpu` prints the figures.

It needs an NVIDIA GPU that no other program uses meanwhile, and its driver. With PyTorch it also measures a training.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
django.setup()

import pynvml  # noqa: E402 - the rest needs Django's set-up

from scheduling.backends.base import Gang, Phase, Worker  # noqa: E402
from scheduling.backends.local import devices, gpus  # noqa: E402
from tests.scheduling.local_rig import ROOT, Rig, until  # noqa: E402

PROGRAMS = Path(__file__).parent
MIB = 1024**2
LOOKS, FREEZES = 20, 5


def say(what: str, value: str) -> None:
    sys.stdout.write(f"{what:<58} {value}\n")
    sys.stdout.flush()


@contextmanager
def local_backend() -> Iterator[Rig]:
    """Yields a local backend in a folder that every user may enter, whose jobs see this machine's GPUs."""
    (ROOT / "artifacts").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="jobs-", dir=ROOT / "artifacts") as folder:
        Path(folder).chmod(0o755)
        rig = Rig(Path(folder) / "jobs")
        rig.places = replace(rig.places, dev=devices.DEV)
        rig.backend = rig.another_backend()
        rig.backend.prepare()
        try:
            yield rig
        finally:
            rig.end_everything()


def milliseconds(do: Callable[[], object]) -> float:
    began = time.perf_counter()
    do()
    return 1000 * (time.perf_counter() - began)


def look(uuid: str) -> gpus.Utilization:
    return next(one for one in gpus.utilization() if one.uuid == uuid)


def measure_looks(uuid: str, state: str) -> None:
    since: dict[str, int] = {}
    look(uuid)
    took = [milliseconds(lambda: gpus.utilization(since)) for _ in range(LOOKS)]
    time.sleep(1)  # the time that is measured
    seen = look(uuid)
    power = "unknown" if seen.watts is None else f"{seen.watts:.0f} W"
    activity = "unknown" if seen.sm_percent is None else f"{seen.sm_percent:.0f} %"
    say(
        f"{state}: one look at all GPUs, median and longest",
        f"{statistics.median(took):.0f}, {max(took):.0f} ms",
    )
    say(f"{state}: utilisation, multiprocessors, power", f"{seen.busy_percent:.0f} %, {activity}, {power}")
    say(f"{state}: memory in use, processes", f"{seen.memory_used_bytes / MIB:.0f} MiB, {seen.processes}")


def measure_freezes(rig: Rig, gang: Gang, uuid: str, name: str) -> None:
    """Freezes and thaws the gang some times, and prints how long that takes."""
    frozen, continued, kept = list[float](), list[float](), 0
    for _ in range(FREEZES):
        began = time.perf_counter()
        rig.freeze(gang)
        rig.wait(gang, Phase.FROZEN)
        frozen.append(time.perf_counter() - began)
        kept = look(uuid).memory_used_bytes
        before = rig.log(gang.job_id)
        gang = replace(gang, epoch=gang.epoch + 1, token=rig.gang("").token)
        began = time.perf_counter()
        rig.backend.thaw(gang)
        wait_for_more(rig, gang.job_id, before)
        continued.append(time.perf_counter() - began)
        rig.wait(gang, Phase.RUNNING)
    say(f"{name}: from the order to frozen, median and longest", _both(frozen))
    say(f"{name}: from the order to the next ten steps", _both(continued))
    say(f"{name}: memory in use while it is frozen", f"{kept / MIB:.0f} MiB")


def wait_for_more(rig: Rig, job: int, before: str) -> None:
    until(lambda: rig.log(job) != before, "the next steps")


def _both(took: list[float]) -> str:
    return f"{statistics.median(took):.2f}, {max(took):.2f} s"


def main() -> None:
    found = gpus.discover()
    if not found:
        sys.exit("this machine has no NVIDIA GPU, or no driver")
    gpu = found[0]
    pynvml.nvmlInit()
    driver = pynvml.nvmlSystemGetDriverVersion()
    pynvml.nvmlShutdown()
    say("GPU, memory, driver", f"{gpu.product}, {gpu.memory_bytes / MIB:.0f} MiB, {driver}")
    measure_looks(gpu.uuid, "idle")
    workers = [Worker(0, "here", (0,), (gpu.uuid,), None)]
    programs = {
        "counting": ("gpu_program.py", "count"),
        "holding 16 GiB": ("gpu_program.py", "count", str(16 * 1024)),
        "PyTorch": ("torch_program.py", "100000"),
    }
    if find_spec("torch") is None:
        del programs["PyTorch"]
    for job, (name, (program, *asked)) in enumerate(programs.items(), 1):
        text = (PROGRAMS / program).read_text()
        with local_backend() as rig:
            gang = rig.start(rig.gang("", job=job, command=["python", "-c", text, *asked], gpus=workers))
            rig.wait_for_log("step 20", job=job)
            measure_looks(gpu.uuid, name)
            measure_freezes(rig, gang, gpu.uuid, name)


if __name__ == "__main__":
    main()
