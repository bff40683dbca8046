"""Reads this machine's GPUs through NVIDIA's management library (NVML). Reports no GPUs if no driver is installed."""

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
# Seconds that the driver has to answer. It usually takes some hundredths of a second, but has to initialise each GPU
# first when no process uses that GPU.
PATIENCE = 20.0
# Raised when this GPU or driver does not report a value, or this user may not read it.
_NOT_TOLD = pynvml.NVMLError_NotSupported, pynvml.NVMLError_NoPermission, pynvml.NVMLError_FunctionNotFound


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this machine. `index` is its position in PCI bus order. `uuid` is a valid value for
    CUDA_VISIBLE_DEVICES."""

    index: int
    uuid: str
    product: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Utilization:
    """The load, the used memory and the power of one GPU."""

    uuid: str
    busy_percent: float
    memory_used_bytes: int  # includes the memory that the driver itself needs
    # Number of processes that compute on the GPU, also in other containers; None if the driver does not report it.
    processes: int | None = None
    sampled_at: int = 0  # time of the driver's last measurement, on the driver's clock; 0 if there is none
    watts: float | None = None  # None if the GPU does not report its power
    # Average share of busy multiprocessors since the last call; None at the first call, and for GPUs before Hopper.
    sm_percent: float | None = None


class NvmlError(Exception):
    """Raised when the NVIDIA driver is present but does not work. The message contains the driver's error."""


_unanswered: list[Future[Any]] = []  # calls that the driver has not answered in time


def in_background(ask: Callable[[], T]) -> Future[T]:
    """Runs `ask` in a daemon thread and returns a future for its result."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="nvml", daemon=True).start()
    return answer


def _in_time(ask: Callable[[], T]) -> T:
    """Returns the result of the driver call `ask`. Raises NvmlError if the driver does not answer within PATIENCE
    seconds.

    Raises NvmlError immediately while an earlier call is still unanswered.
    """
    if not all(answer.done() for answer in _unanswered):
        raise NvmlError("the NVIDIA driver does not answer")
    _unanswered.clear()
    answer = in_background(ask)  # NVML itself would wait forever for a hanging driver
    try:
        return answer.result(PATIENCE)
    except TimeoutError:
        _unanswered.append(answer)
        raise NvmlError(f"the NVIDIA driver does not answer within {PATIENCE:g} s") from None


def discover() -> list[Gpu]:
    """Returns all GPUs in index order; empty if there is no driver or no GPU. Raises NvmlError if the driver does not
    work."""
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
    """Returns, by GPU UUID, the device files of each GPU in the folder `dev`. Leaves out GPUs that do not answer.

    `pci` is the folder in which the kernel lists PCI devices. Raises NvmlError if the driver does not work.
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
            except pynvml.NVMLError as error:  # this GPU has failed, but others may work
                logger.warning("GPU %d does not say which devices are its: %s", index, error)
    return found


def _drawing(handle: object, pci: Path) -> list[str]:
    """Returns the names of the GPU's DRM device files (for graphics), such as dri/renderD128.

    `handle` is NVML's handle of the GPU. `pci` is the folder in which the kernel lists PCI devices.
    """
    # NVML writes the domain of a PCI address with eight digits, the kernel with four.
    address = _text(pynvml.nvmlDeviceGetPciInfo(handle).busId).lower()[4:]
    return sorted(f"dri/{node.name}" for node in (pci / address / "drm").glob("*[0-9]"))


def utilization(since: Mapping[str, int] | None = None) -> list[Utilization]:
    """Returns each GPU's load in index order. Leaves out GPUs that do not report a load (such as MIG parents). Raises
    NvmlError if the driver does not work.

    `since` contains, by GPU UUID, the `sampled_at` that the previous call returned. The load is the average since that
    time. For a GPU without an entry in `since`, or without newer measurements, it is NVML's own average over less than
    a second.
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
            found.append(
                Utilization(
                    uuid,
                    busy,
                    used,
                    _processes(handle),
                    at,
                    watts=_watts(handle),
                    sm_percent=_sm_percent(handle, uuid),
                )
            )
    return found


def _busy(handle: object, since: int) -> tuple[float, int]:
    """Returns a pair: the GPU's average load in percent since `since`, and the time of the driver's last measurement.

    Both times are on the driver's clock. If `since` is 0, the load is NVML's own average over less than a second. If
    the driver has no measurements after `since`, the load is also NVML's average, and the returned time is 0.
    """
    rate = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    try:
        # For example, an H100 stores five measurements a second and keeps them for 14 seconds.
        _, samples = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, since)
    except (*_NOT_TOLD, pynvml.NVMLError_NotFound):  # the driver keeps no samples, or has no newer ones
        return rate, 0
    if not samples:
        return rate, 0
    percents = [int(one.sampleValue.uiVal) for one in samples]
    return (sum(percents) / len(percents) if since else rate), int(samples[-1].timeStamp)


def _processes(handle: object) -> int | None:
    """Returns the number of processes on the GPU; None if the driver does not report it, as older drivers do not."""
    try:
        return len(pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle))
    except _NOT_TOLD:
        return None


def _watts(handle: object) -> float | None:
    try:
        return float(pynvml.nvmlDeviceGetPowerUsage(handle)) / 1000
    except (*_NOT_TOLD, pynvml.NVMLError_Unknown):  # "unknown" is a sensor that does not answer now
        return None


# The driver's counters of each GPU at the last call of `utilization`, by UUID; None for GPUs without them. They are
# plain memory, which stays valid when NVML is shut down between two calls.
_counters: dict[str, Any] = {}


def _sm_percent(handle: object, uuid: str) -> float | None:
    """Returns the average share of busy multiprocessors since the last call, in percent.

    Returns None at the first call for a GPU, and if the GPU or the driver does not count it (GPM, from Hopper on).
    """
    # Two calls at the same time never get the same counters, because `pop` is atomic.
    before = _counters.pop(uuid, False)
    if before is None:
        _counters[uuid] = None
        return None
    try:
        if before is False and not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            _counters[uuid] = None
            return None
        now = pynvml.nvmlGpmSampleGet(handle, pynvml.nvmlGpmSampleAlloc())
        percent = _sm_between(before, now) if before is not False else None
    except _NOT_TOLD:
        _counters[uuid] = None
        return None
    except pynvml.NVMLError as error:
        logger.warning("GPU %s does not say how busy its multiprocessors are: %s", uuid, error)
        _counters[uuid] = None
        return None
    _counters[uuid] = now
    return percent


def _sm_between(before: Any, now: Any) -> float | None:
    """Returns the share of busy multiprocessors between two readings of the counters, and frees the first one."""
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    asked.numMetrics = 1
    asked.sample1, asked.sample2 = before, now
    asked.metrics[0].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
    try:
        pynvml.nvmlGpmMetricsGet(asked)
    finally:
        pynvml.nvmlGpmSampleFree(before)
    if asked.metrics[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return min(max(float(asked.metrics[0].value), 0.0), 100.0)


@contextmanager
def _nvml() -> Iterator[bool]:
    """Initialises NVML for the `with` block. Yields True, or False if the driver or its library is not installed."""
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
    """Converts a text from pynvml to str, because older versions of pynvml return bytes."""
    return value.decode() if isinstance(value, bytes) else value
