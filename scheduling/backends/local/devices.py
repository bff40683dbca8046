"""The device files of this machine's GPUs: files that a job must not open, and files that every job with GPUs needs."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from scheduling.backends.local import gpus

DEV = Path("/dev")
CONTROL = ("nvidiactl", "nvidia-uvm")  # files that every program needs in addition to the files of its GPUs


def of_others(held: Collection[str], dev: Path = DEV) -> list[str]:
    """Returns the device files of all GPUs except the GPUs in `held`; empty on machines without GPUs.

    `held` contains the UUIDs of the job's GPUs. `dev` is the folder of device files. Raises ValueError if a GPU in
    `held` does not exist. Raises gpus.NvmlError if the driver does not say which device files belong to a GPU.
    """
    found = _numbered(dev)
    if not found:
        return []
    try:
        known = gpus.devices(dev)
    except gpus.NvmlError:
        if held:
            raise
        known = {}
    if missing := sorted(set(held) - known.keys()):
        raise ValueError(f"the GPU {missing[0]} is missing on this machine")
    every = {*found, *(path for paths in known.values() for path in paths)}
    own = {path for uuid in held for path in known[uuid]}
    return sorted(str(path) for path in every - own if path.exists())


def needed(dev: Path = DEV) -> list[str]:
    """Returns the device files that every job with GPUs must be able to open; empty on machines without GPUs."""
    found = _numbered(dev)
    return sorted(map(str, [*found, *(dev / name for name in CONTROL)])) if found else []


def _numbered(dev: Path) -> list[Path]:
    return [path for path in dev.glob("nvidia*") if path.name.removeprefix("nvidia").isdecimal()]
