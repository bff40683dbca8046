"""GPUs are found through the real NVML bindings. A small C library stands in for the driver's NVML library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[4]
# C source of functions from nvml.h, for a machine with two GPUs, of which the second reports no utilisation.
STAND_IN = r"""
#include <stdio.h>
#include <string.h>
#include <unistd.h>
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } utilization_t;
static int ids[] = {0, 1};
int nvmlInit_v2(void) {
  if (INIT < 0) pause();  // for ever
  return INIT;
}
int nvmlInitWithFlags(unsigned int flags) { return nvmlInit_v2(); }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
  if (index > 1) return 2;
  *device = &ids[index];
  return 0;
}
int nvmlDeviceGetName(int *device, char *name, unsigned int length) {
  snprintf(name, length, *device ? "NVIDIA A100-SXM4-40GB" : "Tesla V100-PCIE-16GB");
  return 0;
}
int nvmlDeviceGetUUID(int *device, char *uuid, unsigned int length) {
  snprintf(uuid, length, "GPU-0000000%d-1111-2222-3333-444444444444", *device);
  return 0;
}
int nvmlDeviceGetMemoryInfo(int *device, memory_t *memory) {
  memory->total = (*device ? 40ULL : 16ULL) << 30;
  memory->used = 3ULL << 30;
  memory->free = memory->total - memory->used;
  return 0;
}
int nvmlDeviceGetUtilizationRates(int *device, utilization_t *rates) {
  if (*device) return 3;
  rates->gpu = 87;
  rates->memory = 12;
  return 0;
}
// Of each fifth of a second, the last ones; the clock is in microseconds.
typedef struct { unsigned long long at; union { double d; unsigned int ui; } value; } sample_t;
int nvmlDeviceGetSamples(int *device, int kind, unsigned long long since, int *type, unsigned *count, sample_t *found) {
  static const unsigned int percents[] = {SAMPLES};
  unsigned int most = sizeof percents / sizeof *percents, newer = 0;
  if (kind != 1) return 2;
  if (!found) { *count = most; return 0; }
  for (unsigned int i = 0; i < most; i++)
    if (200000ULL * (i + 1) > since) found[newer++] = (sample_t){200000ULL * (i + 1), {.ui = percents[i]}};
  *type = 1;
  *count = newer;
  return newer ? 0 : 6;
}
typedef struct { unsigned int pid; unsigned long long used; unsigned int instance, compute; } process_t;
int nvmlDeviceGetComputeRunningProcesses_v3(int *device, unsigned int *count, process_t *found) {
  if (*count < 1) { *count = 1; return 7; }  // too few: so many there are
  *count = 1;
  found[0].pid = 4711;
  return 0;
}
typedef struct { char legacy[16]; unsigned int domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
int nvmlDeviceGetPciInfo_v3(int *device, pci_t *pci) {
  snprintf(pci->bus_id, 32, "00000000:3%X:00.0", 10 + *device);
  return 0;
}
int nvmlDeviceGetMinorNumber(int *device, unsigned int *minor) {
  *minor = 1 - *device;  // the order of the driver is not that of NVML
  return 0;
}
int nvmlDeviceGetPowerUsage(int *device, unsigned int *milliwatts) {
  *milliwatts = 250500;
  return 0;
}
// Counters since the driver was loaded; the share of busy multiprocessors is what they differ by.
typedef struct { unsigned int version, supported; } support_t;
typedef struct { unsigned int id; int code; double value; char *names[3]; } metric_t;
typedef struct { unsigned int version, count; int *first, *second; metric_t metrics[1]; } asked_t;
static int counters[8], used;
int nvmlGpmQueryDeviceSupport(int *device, support_t *support) {
  support->supported = GPM;
  return support->version == 1 ? 0 : 25;
}
int nvmlGpmSampleAlloc(int **sample) { *sample = &counters[used]; return 0; }
int nvmlGpmSampleGet(int *device, int *sample) { *sample = 30 * used++ + 1; return 0; }
int nvmlGpmMetricsGet(asked_t *asked) {
  if (asked->version != 1 || asked->count != 1 || asked->metrics[0].id != 2 || !*asked->first) return 2;
  asked->metrics[0].code = 0;
  asked->metrics[0].value = *asked->second - *asked->first;
  return 0;
}
int nvmlGpmSampleFree(int *sample) { *sample = 0; return 0; }
const char *nvmlErrorString(int code) { return code == 999 ? "Unknown Error" : "Not Supported"; }
"""
ASK = """
import dataclasses, json, sys
from pathlib import Path
from scheduling.backends.local import gpus
try:
    seen = {"gpus": [dataclasses.astuple(gpu) for gpu in gpus.discover()],
            "busy": [dataclasses.astuple(busy) for busy in gpus.utilization(json.loads(sys.argv[1]))],
            "devices": {uuid: list(map(str, paths)) for uuid, paths in gpus.devices(Path("/dev"), Path("pci")).items()}}
except gpus.NvmlError as error:
    seen = {"error": str(error)}
print(json.dumps(seen))
"""


ASK_THREE_TIMES = """
import json
from scheduling.backends.local import gpus
print(json.dumps([[one.sm_percent for one in gpus.utilization()] for _ in range(3)]))
"""
ASK_FOR_A_MOMENT = """
import json
from scheduling.backends.local import gpus
gpus.PATIENCE, said = 0.2, []
for question in (gpus.discover, gpus.utilization):
    try:
        question()
    except gpus.NvmlError as error:
        said.append(str(error))
print(json.dumps(said))
"""
NONE: dict[str, Any] = {"gpus": [], "busy": [], "devices": {}}


def ask(library_path: Path, since: dict[str, int] | None = None, script: str = ASK) -> Any:
    """Runs `script` in a new Python process that loads the NVML library in the folder `library_path`. Passes `since` to
    the script as JSON, and returns the JSON that the script prints."""
    environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(library_path), "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, json.dumps(since or {})],
        capture_output=True,
        text=True,
        check=True,
        cwd=library_path,
        env=environment,
        timeout=PATIENCE,
    )
    return json.loads(run.stdout)


def stand_in(folder: Path, *, init: int = 0, samples: str = "0, 9, 0, 0, 87", gpm: int = 1) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler (cc) for the library that stands in for the driver's")
    (folder / "nvml.c").write_text(STAND_IN)
    library = folder / "libnvidia-ml.so.1"
    command = [
        compiler,
        "-shared",
        "-fPIC",
        f"-DINIT={init}",
        f"-DGPM={gpm}",
        f"-DSAMPLES={samples}",
        "-o",
        library,
        folder / "nvml.c",
    ]
    subprocess.run(command, check=True, timeout=PATIENCE)
    return folder


def test_gpus_are_found_with_uuid_product_and_memory(tmp_path: Path) -> None:
    seen = ask(stand_in(tmp_path))
    assert seen["gpus"] == [
        [0, "GPU-00000000-1111-2222-3333-444444444444", "Tesla V100-PCIE-16GB", 16 << 30],
        [1, "GPU-00000001-1111-2222-3333-444444444444", "NVIDIA A100-SXM4-40GB", 40 << 30],
    ]


FIRST = "GPU-00000000-1111-2222-3333-444444444444"


def test_utilisation_leaves_out_gpus_that_do_not_tell(tmp_path: Path) -> None:
    seen = ask(stand_in(tmp_path))
    assert seen["busy"] == [[FIRST, 87, 3 << 30, 1, 1_000_000, 250.5, None]]


def test_utilisation_is_of_all_the_time_since_the_look_before(tmp_path: Path) -> None:
    library = stand_in(tmp_path, samples="100, 0, 9, 0, 0")
    assert ask(library, {FIRST: 200_000})["busy"] == [[FIRST, 9 / 4, 3 << 30, 1, 1_000_000, 250.5, None]]
    # Without samples since then (for example because the driver's clock was set back), the present utilisation is
    # reported, and the next call starts from zero.
    assert ask(library, {FIRST: 1_000_000})["busy"] == [[FIRST, 87, 3 << 30, 1, 0, 250.5, None]]


def test_utilisation_is_of_the_last_moment_where_the_driver_keeps_no_samples(tmp_path: Path) -> None:
    assert ask(stand_in(tmp_path, samples=""), {FIRST: 200_000})["busy"] == [
        [FIRST, 87, 3 << 30, 1, 0, 250.5, None]
    ]


@pytest.mark.parametrize(("gpm", "percents"), [(1, [[None], [30.0], [30.0]]), (0, [[None]] * 3)])
def test_the_activity_of_multiprocessors_is_counted_between_two_looks(
    tmp_path: Path, gpm: int, percents: list[list[float | None]]
) -> None:
    assert ask(stand_in(tmp_path, gpm=gpm), script=ASK_THREE_TIMES) == percents


def test_the_devices_of_a_gpu_are_those_of_its_number_and_its_place_on_the_bus(tmp_path: Path) -> None:
    for node in ("0000:3a:00.0/drm/card0", "0000:3a:00.0/drm/renderD128", "0000:00:02.0/drm/renderD129"):
        (tmp_path / "pci" / node).mkdir(parents=True)
    assert ask(stand_in(tmp_path))["devices"] == {
        "GPU-00000000-1111-2222-3333-444444444444": ["/dev/nvidia1", "/dev/dri/card0", "/dev/dri/renderD128"],
        "GPU-00000001-1111-2222-3333-444444444444": ["/dev/nvidia0"],
    }


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a driver")
def test_no_driver_means_no_gpus(tmp_path: Path) -> None:
    assert ask(tmp_path) == NONE


def test_a_driver_that_is_not_loaded_means_no_gpus(tmp_path: Path) -> None:
    assert ask(stand_in(tmp_path, init=9)) == NONE


def test_a_broken_driver_is_a_clear_error(tmp_path: Path) -> None:
    assert ask(stand_in(tmp_path, init=999)) == {"error": "the NVIDIA driver does not answer: Unknown Error"}


def test_a_hanging_driver_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    """A call to a hanging driver times out, later calls fail immediately, and the process can still exit."""
    said = ask(stand_in(tmp_path, init=-1), script=ASK_FOR_A_MOMENT)
    assert said == [
        "the NVIDIA driver does not answer within 0.2 s",
        "the NVIDIA driver does not answer",
    ]
