"""The device files of this machine's GPUs: which of them a job may open, and which it needs."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from scheduling.backends.local import gpus

DEV = Path("/dev")
CONTROL = ("nvidiactl", "nvidia-uvm")  # what every program needs beside the files of its GPUs


def of_others(held: Collection[str], dev: Path = DEV) -> list[str]:
    """Returns the device files of all GPUs but those whose UUIDs are `held`; empty where there are none.

    Raises ValueError when one that is held is not there, and gpus.NvmlError when the driver does not say which
    files are its.
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
        raise ValueError(f"the GPU {missing[0]} is not on this machine now")
    every = {*found, *(path for paths in known.values() for path in paths)}
    own = {path for uuid in held for path in known[uuid]}
    return sorted(str(path) for path in every - own if path.exists())


def needed(dev: Path = DEV) -> list[str]:
    """Returns the device files that jobs must be able to open to compute on GPUs; empty where there are no GPUs."""
    found = _numbered(dev)
    return sorted(map(str, [*found, *(dev / name for name in CONTROL)])) if found else []


def _numbered(dev: Path) -> list[Path]:
    return [path for path in dev.glob("nvidia*") if path.name.removeprefix("nvidia").isdecimal()]
