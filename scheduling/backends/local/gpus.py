"""This machine's GPUs, as NVIDIA's management library (NVML) tells. No driver means no GPUs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pynvml

logger = logging.getLogger(__name__)
T = TypeVar("T")

PCI = Path("/sys/bus/pci/devices")
# Seconds that the driver has to answer, some hundredths of which it takes; where no process uses GPUs, it starts each
# of them first.
PATIENCE = 20.0
# What this GPU, this driver or this user does not get told.
_NOT_TOLD = pynvml.NVMLError_NotSupported, pynvml.NVMLError_NoPermission, pynvml.NVMLError_FunctionNotFound


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU. `index` counts in PCI bus order; `uuid` is what CUDA_VISIBLE_DEVICES takes."""

    index: int
    uuid: str
    product: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Utilization:
    """How busy a GPU was, in percent of the time, and bytes of its memory in use, the driver's own included.

    `processes` counts what computes on it, in containers of others too; None where the driver does not tell.
    `sampled_at` is when the driver measured last, on its own clock; 0 where it does not tell that.
    """

    uuid: str
    busy_percent: float
    memory_used_bytes: int
    processes: int | None = None
    sampled_at: int = 0


class NvmlError(Exception):
    """There is a driver, but it does not answer properly; the message says what it said."""


_unanswered: list[Future[Any]] = []  # questions to a driver that hangs


def in_background(ask: Callable[[], T]) -> Future[T]:
    """Returns where the answer will be. The thread keeps no process from ending."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="nvml", daemon=True).start()
    return answer


def _in_time(ask: Callable[[], T]) -> T:
    """Returns what the driver answers. NVML waits for ever for one that hangs: raises NvmlError after PATIENCE.

    Until it answers what it was asked then, nobody waits for it again.
    """
    if not all(answer.done() for answer in _unanswered):
        raise NvmlError("the NVIDIA driver does not answer")
    _unanswered.clear()
    answer = in_background(ask)
    try:
        return answer.result(PATIENCE)
    except TimeoutError:
        _unanswered.append(answer)
        raise NvmlError(f"the NVIDIA driver does not answer within {PATIENCE:g} s") from None


def discover() -> list[Gpu]:
    """All GPUs in index order; empty where there is no driver or no GPU. NvmlError if the driver is broken."""
    return _in_time(_discover)


def _discover() -> list[Gpu]:
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
    return _in_time(lambda: _devices(dev, pci))


def _devices(dev: Path, pci: Path) -> dict[str, list[Path]]:
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


def utilization(since: Mapping[str, int] | None = None) -> list[Utilization]:
    """How busy each GPU was, in index order; GPUs that do not tell (such as MIG parents) are left out.

    `since` has each GPU's `sampled_at` of the look before, by UUID: percent is of all the time since then. Of others,
    and where the driver keeps no samples, it is of the fraction of a second that the driver measured last.
    Raises NvmlError.
    """
    return _in_time(lambda: _utilization(since or {}))


def _utilization(since: Mapping[str, int]) -> list[Utilization]:
    found = []
    with _nvml() as available:
        for handle in _handles() if available else []:
            uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
            try:
                busy, at = _busy(handle, since.get(uuid, 0))
            except pynvml.NVMLError_NotSupported:
                continue
            used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
            found.append(Utilization(uuid, busy, used, _processes(handle), at))
    return found


def _busy(handle: object, since: int) -> tuple[float, int]:
    """Percent of the time since then, and until when that was, both on the driver's clock.

    NVML's rates are of one period of some hundred milliseconds: who looks every other second misses most of what is
    done. Of its samples it keeps the last ones (of an H100, five a second for 14 seconds).
    """
    rate = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    try:
        _, samples = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, since)
    except (*_NOT_TOLD, pynvml.NVMLError_NotFound):  # it has none, or no newer ones
        return rate, 0
    if not samples:
        return rate, 0
    percents = [int(one.sampleValue.uiVal) for one in samples]
    return (sum(percents) / len(percents) if since else rate), int(samples[-1].timeStamp)


def _processes(handle: object) -> int | None:
    """None: the driver does not tell, as earlier ones have no such function."""
    try:
        return len(pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle))
    except _NOT_TOLD:
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
