"""This machine's GPUs, as NVIDIA's management library (NVML) tells. No driver means no GPUs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pynvml

logger = logging.getLogger(__name__)

PCI = Path("/sys/bus/pci/devices")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU. `index` counts in PCI bus order; `uuid` is what CUDA_VISIBLE_DEVICES takes."""

    index: int
    uuid: str
    product: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Utilization:
    """How busy a GPU was in the driver's last sample: percent of time, and bytes of memory in use.

    `processes` counts what computes on it, in containers of others too; None where the driver does not tell.
    """

    uuid: str
    busy_percent: int
    memory_used_bytes: int
    processes: int | None = None


class NvmlError(Exception):
    """There is a driver, but it does not answer properly; the message says what it said."""


def discover() -> list[Gpu]:
    """All GPUs in index order; empty where there is no driver or no GPU. NvmlError if the driver is broken."""
    with _nvml() as available:
        handles = _handles() if available else []
        return [
            Gpu(
                index=index,
                uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
                product=_text(pynvml.nvmlDeviceGetName(handle)),
                memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
            )
            for index, handle in enumerate(handles)
        ]


def devices(dev: Path, pci: Path = PCI) -> dict[str, list[Path]]:
    """Returns the files in `dev` by which each GPU can be used, by its UUID; without GPUs that do not answer.

    Raises NvmlError if the driver is broken.
    """
    found = {}
    with _nvml() as available:
        for index in range(pynvml.nvmlDeviceGetCount() if available else 0):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                names = [f"nvidia{pynvml.nvmlDeviceGetMinorNumber(handle)}", *_drawing(handle, pci)]
                found[_text(pynvml.nvmlDeviceGetUUID(handle))] = [dev / name for name in names]
            except pynvml.NVMLError as error:  # it is lost; the others go on
                logger.warning("GPU %d does not say which devices are its: %s", index, error)
    return found


def _drawing(handle: object, pci: Path) -> list[str]:
    """Names of the files by which a GPU draws, such as dri/renderD128."""
    # NVML writes the domain of an address with eight digits, the kernel with four.
    address = _text(pynvml.nvmlDeviceGetPciInfo(handle).busId).lower()[4:]
    return sorted(f"dri/{node.name}" for node in (pci / address / "drm").glob("*[0-9]"))


def utilization() -> list[Utilization]:
    """How busy each GPU is, in index order; GPUs that do not tell (such as MIG parents) are left out."""
    found = []
    with _nvml() as available:
        for handle in _handles() if available else []:
            try:
                busy = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            except pynvml.NVMLError_NotSupported:
                continue
            uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
            used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
            found.append(Utilization(uuid, busy, used, _processes(handle)))
    return found


def _processes(handle: object) -> int | None:
    """None: the driver does not tell, as earlier ones have no such function."""
    try:
        return len(pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle))
    except (
        pynvml.NVMLError_NotSupported,
        pynvml.NVMLError_NoPermission,
        pynvml.NVMLError_FunctionNotFound,
    ):
        return None


@contextmanager
def _nvml() -> Iterator[bool]:
    """NVML for a moment; False where the driver or its library is missing."""
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        yield False
        return
    except pynvml.NVMLError as error:
        raise NvmlError(f"the NVIDIA driver does not answer: {error}") from error
    try:
        yield True
    except pynvml.NVMLError as error:
        raise NvmlError(f"the NVIDIA driver does not answer: {error}") from error
    finally:
        pynvml.nvmlShutdown()


def _handles() -> list[object]:
    return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]


def _text(value: str | bytes) -> str:
    """pynvml gave bytes in older versions and gives str in newer ones."""
    return value.decode() if isinstance(value, bytes) else value
