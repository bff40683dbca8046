"""The local backend measures how much real processes use their CPUs and GPUs. For GPUs, a stand-in replaces the
driver's library."""

from __future__ import annotations

import time

import pytest

from scheduling.backends.base import Phase, Use, Worker
from scheduling.backends.local import gpus, use
from scheduling.backends.local.backend import LocalBackend
from scheduling.backends.metering import WINDOW
from tests.scheduling.local_rig import Rig, rig, until

__all__ = ["rig"]
SHORT = 3.0


@pytest.fixture(autouse=True)
def _short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the meter's window (WINDOW) to a few seconds. The meter reports a gang as idle after a whole window
    without use.

    test_metering.py covers the real length.
    """
    monkeypatch.setattr("scheduling.backends.metering.WINDOW", SHORT)
    monkeypatch.setattr(use, "EVERY", 0.2)
    # On a busy machine other tests may delay a supervisor, so longer gaps between samples are allowed.
    monkeypatch.setattr("scheduling.backends.metering.LONGEST_GAP", 60.0)


def first_of(backend: LocalBackend, *, idle: bool) -> Use:
    found: list[Use] = []

    def look() -> bool:
        found.extend(one for one in backend.use() if (one.unused_for > 0) is idle)
        return bool(found)

    until(look, "idle" if idle else "in use")
    return found[0]


def test_a_sleeping_program_is_idle(rig: Rig) -> None:
    gang = rig.start(rig.gang("sleep 1000"))
    rig.wait(gang, Phase.RUNNING)
    seen = first_of(rig.backend, idle=True)
    assert seen.token == gang.token
    assert seen.unused_for >= SHORT
    assert not seen.by_gpus
    assert seen.percent < 100 * use.WAITING * WINDOW / SHORT


def test_a_computing_program_is_not_idle_and_its_children_count(rig: Rig) -> None:
    gang = rig.start(rig.gang("while true; do python -c 'sum(range(3_000_000))'; done"))
    rig.wait(gang, Phase.RUNNING)
    seen = first_of(rig.backend, idle=False)
    assert seen.token == gang.token
    assert seen.percent >= 0
    assert not [one for one in rig.backend.use() if one.unused_for]


def test_a_program_that_reports_progress_is_not_idle(rig: Rig) -> None:
    """Progress counts as use, because a program on a virtual GPU mostly sleeps to simulate the GPU's speed, and uses
    little CPU."""
    gang = rig.start(rig.gang("i=0; while sleep 0.5; do i=$((i+1)); echo step $i; done"))
    rig.wait(gang, Phase.RUNNING)
    rig.wait_for_log("step 1")
    told: list[Use] = []

    def look() -> bool:
        told.extend(rig.backend.use())
        return len(told) > 2

    until(look, "some windows")
    assert [one for one in told if one.unused_for] == []


def test_a_program_that_starts_to_compute_is_no_longer_idle(rig: Rig) -> None:
    program = (
        "import os, time\nwhile not os.path.exists('go'): time.sleep(0.5)\nwhile True: sum(range(100_000))\n"
    )
    gang = rig.start(rig.python(program))
    rig.wait(gang, Phase.RUNNING)
    first_of(rig.backend, idle=True)
    (rig.files().folder / "work" / "rank-0" / "go").touch()
    assert first_of(rig.backend, idle=False).token == gang.token


def test_suspended_and_ended_gangs_are_not_measured(rig: Rig) -> None:
    gang = rig.start(rig.gang("sleep 1000"))
    rig.wait(gang, Phase.RUNNING)
    first_of(rig.backend, idle=True)
    rig.freeze(gang)
    rig.wait(gang, Phase.FROZEN)
    meter = use.UseMeter(rig.root)
    assert meter.sample() == []
    assert meter._uuids == {}


def real(*uuids: str) -> list[Worker]:
    return [Worker(0, "k1", tuple(range(len(uuids))), uuids, None)]


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch, processes: dict[str, int | None]) -> dict[str, int]:
    """Returns {GPU UUID: utilisation in percent}. The driver reports these values, and tests change them."""
    percents = {"GPU-a": 0, "GPU-b": 0}

    def told(since: object) -> list[gpus.Utilization]:
        return [gpus.Utilization(uuid, percent, 0, processes.get(uuid)) for uuid, percent in percents.items()]

    monkeypatch.setattr(gpus, "utilization", told)
    return percents


@pytest.fixture
def processes() -> dict[str, int | None]:
    """Returns {GPU UUID: number of processes} as the driver reports it; tests change it. If a GPU is missing or has
    None, the driver reports no number for this GPU."""
    return {}


def test_gpus_that_tell_are_asked_whatever_the_processors_do(rig: Rig, busy: dict[str, int]) -> None:
    gang = rig.start(rig.python("while True: sum(range(100_000))", gpus=real("GPU-a", "GPU-b")))
    rig.wait(gang, Phase.RUNNING)
    seen = first_of(rig.backend, idle=True)
    assert (seen.token, seen.by_gpus, seen.percent) == (gang.token, True, 0)
    busy["GPU-b"] = 40
    seen = first_of(rig.backend, idle=False)
    assert (seen.by_gpus, seen.percent) == (True, 20)


@pytest.mark.parametrize(
    ("there", "is_empty"), [((0, 0), True), ((0, 1), False), ((0, None), False), ((None, None), False)]
)
def test_gpus_without_processes_are_reported(
    rig: Rig, busy: dict[str, int], processes: dict[str, int | None], there: tuple, is_empty: bool
) -> None:
    processes |= dict(zip(("GPU-a", "GPU-b"), there, strict=True))
    gang = rig.start(rig.gang("sleep 1000", gpus=real("GPU-a", "GPU-b")))
    rig.wait(gang, Phase.RUNNING)
    seen = first_of(rig.backend, idle=True)
    assert (seen.processless_for > 0) is is_empty
    assert seen.processless_for <= seen.unused_for


def test_gpus_are_asked_for_all_the_time_since_the_look_before(
    rig: Rig, busy: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, int]] = []

    def told(since: dict[str, int]) -> list[gpus.Utilization]:
        asked.append(since)
        return [gpus.Utilization("GPU-a", 0.5, 0, 1, sampled_at=len(asked))]

    monkeypatch.setattr(gpus, "utilization", told)
    rig.wait(rig.start(rig.gang("sleep 1000", gpus=real("GPU-a"))), Phase.RUNNING)
    assert first_of(rig.backend, idle=False).percent == 0.5
    assert asked[:2] == [{}, {"GPU-a": 1}]


def test_gpus_without_utilisation_are_measured_by_their_processes(rig: Rig, busy: dict[str, int]) -> None:
    del busy["GPU-b"]  # as a MIG slice, which reports no utilisation
    gang = rig.start(rig.gang("sleep 1000", gpus=real("GPU-a", "GPU-b")))
    rig.wait(gang, Phase.RUNNING)
    assert not first_of(rig.backend, idle=True).by_gpus


def test_a_driver_that_does_not_answer_measures_nothing(
    rig: Rig, busy: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def broken(since: object) -> list[gpus.Utilization]:
        asked.append(time.monotonic())
        raise gpus.NvmlError("the NVIDIA driver does not answer: Unknown Error")

    monkeypatch.setattr(gpus, "utilization", broken)
    gang = rig.start(rig.gang("sleep 1000", gpus=real("GPU-a")))
    rig.wait(gang, Phase.RUNNING)
    told: list[Use] = []

    def look() -> bool:
        told.extend(rig.backend.use())
        return len(asked) > 2 and asked[-1] - asked[0] > 2 * SHORT

    until(look, "some windows")
    assert told == []
