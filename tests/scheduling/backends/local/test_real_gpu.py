"""The local backend works on the first real GPU of this machine, which no other program may use during the tests.

    .venv/bin/python -m pytest tests/scheduling/backends/local/test_real_gpu.py

As root, this command tests the jobs of a portal that runs as root; as an ordinary user, those of a portal that runs as
an ordinary user.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings

from accounting.models import UsageSegment
from scheduling.backends.base import End, Gang, Phase, Sample, Use, Worker
from scheduling.backends.local import devices, gpus, isolation
from scheduling.backends.local.files import JobFiles
from scheduling.backends.local.gpus import Gpu
from scheduling.backends.summaries import of_value
from scheduling.clusters import backend_factory
from scheduling.clusters.backend_factory import backend_for
from scheduling.clusters.discovery import declare_local_gpus, model_of
from scheduling.models import Job, Node
from tests.scheduling.leases import test_whole_life as life
from tests.scheduling.leases.test_whole_life import log_of, reaches, submit
from tests.scheduling.local_rig import Rig, until
from tests.scheduling.world import world

pytestmark = pytest.mark.skipif(
    not Path("/dev/nvidiactl").exists(), reason="needs a GPU of NVIDIA's and its driver"
)
PROGRAM = Path(__file__).parents[2].joinpath("gpu_program.py").read_text()
TRAINING = Path(__file__).parents[2].joinpath("torch_program.py").read_text()
STEPS = 200  # of TRAINING; take some seconds
MIB = 1024**2
WAYS = {True: "with namespaces", False: "without"}


@pytest.fixture
def gpu() -> Gpu:
    return gpus.discover()[0]


@pytest.fixture
def rig(open_folder: Path) -> Iterator[Rig]:
    """Yields a local backend whose jobs get the device files of this machine's GPUs."""
    it = Rig(open_folder / "jobs")
    it.places = replace(it.places, dev=devices.DEV)
    it.backend = it.another_backend()
    it.backend.prepare()
    yield it
    it.end_everything()


@pytest.fixture(params=WAYS, ids=WAYS.get)
def each_way(rig: Rig, request: pytest.FixtureRequest) -> Rig:
    """Returns the local backend with forced isolation: each test runs once with namespaces and once without."""
    found = rig.backend.isolation
    if request.param and not found.namespaces:
        pytest.skip(f"no namespaces on this machine: {found.why_no_namespaces}")
    if not request.param and (closed := isolation.closed_ancestor(rig.root)) and found.users:
        pytest.skip(f"{closed} is closed to other users")
    isolation.force(rig.places, replace(found, namespaces=request.param))
    return rig


def job(rig: Rig, gpu: Gpu, *asked: object, **changes: Any) -> Gang:
    """Returns a gang of one worker that runs gpu_program.py with the arguments `asked` on the GPU."""
    workers = [Worker(0, "here", (0,), (gpu.uuid,), None)]
    return rig.gang("", command=["python", "-c", PROGRAM, *map(str, asked)], gpus=workers, **changes)


def used(gpu: Gpu) -> gpus.Utilization:
    return next(one for one in gpus.utilization() if one.uuid == gpu.uuid)


def finish(files: JobFiles) -> None:
    """Creates the file that makes gpu_program.py stop counting and print its result."""
    (files.folder / "work" / "rank-0" / "enough").touch()


def test_the_driver_reports_the_gpus(gpu: Gpu) -> None:
    assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", gpu.uuid)
    assert gpu.product
    assert model_of(gpu.product) in gpu.product
    assert gpu.memory_bytes > 1024 * MIB
    assert [one.uuid for one in gpus.utilization()] == [one.uuid for one in gpus.discover()]
    files = gpus.devices(devices.DEV)[gpu.uuid]
    assert files
    assert all(path.is_char_device() for path in files)
    assert str(files[0]) in devices.of_others(())
    assert str(files[0]) not in devices.of_others({gpu.uuid})


def test_a_job_computes_on_the_gpu_that_it_holds(each_way: Rig, gpu: Gpu) -> None:
    gang = each_way.start(job(each_way, gpu, "count"))
    each_way.wait_for_log("step 20")
    finish(each_way.files())
    assert each_way.wait(gang).end is End.SUCCEEDED, each_way.log()
    assert "right after" in each_way.log()


def test_a_job_that_holds_no_gpu_opens_none_where_it_has_namespaces(each_way: Rig, gpu: Gpu) -> None:
    shown = {"PROGRAM": PROGRAM, "SHOWN": gpu.uuid}
    script = 'CUDA_VISIBLE_DEVICES=$SHOWN exec python -c "$PROGRAM" look'
    gang = each_way.gang(script, environment=shown, gpus=[Worker(0, "here", (0,), (), None)])
    assert each_way.wait(each_way.start(gang)).end is End.SUCCEEDED, each_way.log()
    assert each_way.log() == ("error 100\n" if each_way.backend.isolation.namespaces else "sees 1\n")


def test_jobs_can_open_the_devices_that_they_need(rig: Rig) -> None:
    assert isolation.probe_again(rig.places).closed_devices == ()


# --- metrics -------------------------------------------------------------------------------------


def shares_of_multiprocessors(gpu: Gpu) -> list[float]:
    """Looks twice, a second apart. Returns the share of busy multiprocessors between the looks; empty if the driver
    does not count it."""
    used(gpu)
    time.sleep(1)  # the time that is measured
    share = used(gpu).sm_percent
    return [] if share is None else [share]


def test_an_idle_gpu_reports_what_it_is(gpu: Gpu) -> None:
    seen = used(gpu)
    assert (seen.busy_percent, seen.processes) == (0, 0)
    assert seen.memory_used_bytes < gpu.memory_bytes / 10
    assert seen.watts is None or 5 < seen.watts < 2000
    assert shares_of_multiprocessors(gpu) in ([], [pytest.approx(0, abs=1)])


def test_a_process_of_any_program_counts_and_so_do_its_multiprocessors_and_power(gpu: Gpu) -> None:
    before = used(gpu)
    shown = os.environ | {"CUDA_VISIBLE_DEVICES": gpu.uuid}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "ahead", "60"], env=shown, stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "given\n"
            shares = shares_of_multiprocessors(gpu)
            until(lambda: used(gpu).busy_percent == 100, "a busy GPU")
            seen = used(gpu)
        finally:
            other.kill()
    assert seen.processes == 1
    assert seen.memory_used_bytes > before.memory_used_bytes
    assert all(50 < one <= 100 for one in shares), shares  # each multiprocessor has work all the time
    if seen.watts is not None and before.watts is not None:
        assert seen.watts > before.watts
    until(lambda: used(gpu).processes == 0, "the end of the process")


def test_the_samples_of_a_job_have_what_the_driver_measures(rig: Rig, gpu: Gpu) -> None:
    gang = rig.start(job(rig, gpu, "count"))
    rig.wait_for_log("step 20")

    def windows() -> list[Sample]:
        rig.backend.use()
        return [one for one in rig.backend.samples() if one.values.keys() >= {"cpus", "gpu_power@here/0"}]

    found: list[Sample] = []
    until(lambda: (found.extend(windows()), bool(found))[1], "a whole window")
    values = found[-1].values
    assert found[-1].token == gang.token
    assert 0 < values["gpu_utilisation@here/0"].mean <= 100
    assert 0 < values["gpu_memory@here/0"].mean < gpu.memory_bytes
    assert 5 < values["gpu_power@here/0"].mean < 2000
    assert 0.5 < values["cpus"].mean < 2  # it waits for its GPU by asking all the time
    assert values["steps_per_second"].mean > 1
    assert 1 < values.get("gpu_sm@here/0", of_value(50)).mean <= 100


# --- use -----------------------------------------------------------------------------------------


def told(rig: Rig, of: Callable[[Use], bool]) -> Use:
    found: list[Use] = []

    def look() -> bool:
        found.extend(one for one in rig.backend.use() if of(one))
        return bool(found)

    until(look, "such a use")
    return found[0]


@pytest.fixture
def _short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduling.backends.metering.WINDOW", 4.0)


@pytest.mark.usefixtures("_short_windows")
def test_a_computing_job_uses_its_gpu(rig: Rig, gpu: Gpu) -> None:
    gang = rig.start(job(rig, gpu, "count"))
    rig.wait_for_log("step 20")
    seen = told(rig, lambda one: one.percent > 0)
    assert (seen.token, seen.by_gpus, seen.unused_for) == (gang.token, True, 0)


@pytest.mark.usefixtures("_short_windows")
def test_a_job_that_only_holds_memory_is_idle_but_has_a_process(rig: Rig, gpu: Gpu) -> None:
    rig.start(job(rig, gpu, "hold", 2048))
    rig.wait_for_log("holds")
    seen = told(rig, lambda one: one.unused_for > 0)
    assert (seen.by_gpus, seen.percent, seen.processless_for) == (True, 0, 0)
    assert used(gpu).memory_used_bytes > 2048 * MIB


@pytest.mark.usefixtures("_short_windows")
def test_a_job_that_does_not_touch_its_gpu_has_no_process_there(rig: Rig, gpu: Gpu) -> None:
    gang = rig.gang("sleep 1000", gpus=[Worker(0, "here", (0,), (gpu.uuid,), None)])
    rig.wait(rig.start(gang), Phase.RUNNING)
    assert told(rig, lambda one: one.unused_for > 0).processless_for > 0


@pytest.mark.usefixtures("_short_windows")
def test_a_short_computation_between_two_samples_counts_as_use(rig: Rig, gpu: Gpu) -> None:
    rig.start(job(rig, gpu, "bursts", 1.7))
    rig.wait_for_log("begins")
    seen: list[Use] = []
    until(lambda: (seen.extend(rig.backend.use()), len(seen) > 2)[1], "some looks")
    assert [one for one in seen[1:] if one.unused_for] == []


# --- time slices ---------------------------------------------------------------------------------


def test_a_suspended_job_leaves_the_gpu_to_others_and_continues_correctly(each_way: Rig, gpu: Gpu) -> None:
    first = each_way.start(job(each_way, gpu, "count"))
    each_way.wait_for_log("step 20")
    each_way.freeze(first)
    each_way.wait(first, Phase.FROZEN)
    assert used(gpu).busy_percent == 0
    before = each_way.log()

    other = each_way.start(job(each_way, gpu, "count", job=2))
    each_way.wait_for_log("step 20", job=2)
    finish(each_way.files(2))
    assert each_way.wait(other).end is End.SUCCEEDED
    assert "right after" in each_way.log(2)
    assert each_way.log() == before

    second = job(each_way, gpu, "count", epoch=2)
    each_way.backend.thaw(second)
    each_way.wait(second, Phase.RUNNING)
    until(lambda: each_way.log() != before, "more steps")
    finish(each_way.files())
    assert each_way.wait(second).end is End.SUCCEEDED
    assert "right after" in each_way.log()


def test_a_job_is_suspended_once_the_gpu_has_finished_its_work(rig: Rig, gpu: Gpu) -> None:
    first = rig.start(job(rig, gpu, "ahead", 3))
    rig.wait_for_log("given")
    rig.freeze(first)
    rig.wait(first, Phase.FROZEN)
    assert used(gpu).busy_percent == 0
    assert rig.log() == "given\n"
    second = job(rig, gpu, "ahead", 3, epoch=2)
    rig.backend.thaw(second)
    assert rig.wait(second).end is End.SUCCEEDED
    assert rig.log() == "given\nright\n"


def test_a_kernel_that_does_not_end_is_not_waited_for(rig: Rig, gpu: Gpu) -> None:
    gang = rig.start(job(rig, gpu, "ahead", 40))
    rig.wait_for_log("given")
    rig.freeze(gang)
    rig.wait(gang, Phase.FROZEN)
    assert used(gpu).busy_percent > 0


def test_a_frozen_job_that_is_stopped_gives_its_memory_back(rig: Rig, gpu: Gpu) -> None:
    before = used(gpu).memory_used_bytes
    gang = rig.start(job(rig, gpu, "hold", 4096))
    rig.wait_for_log("holds")
    rig.freeze(gang)
    rig.wait(gang, Phase.FROZEN)
    assert used(gpu).memory_used_bytes > before + 4096 * MIB
    rig.stop(gang, grace=0)
    assert rig.wait(gang).end is End.STOPPED
    until(lambda: used(gpu).memory_used_bytes < before + 1024 * MIB, "free memory")


def test_what_a_frozen_job_allocated_is_missing_to_the_next_one(rig: Rig, gpu: Gpu) -> None:
    most = int(gpu.memory_bytes * 0.6 / MIB)
    first = rig.start(job(rig, gpu, "hold", most))
    rig.wait_for_log("holds")
    rig.freeze(first)
    rig.wait(first, Phase.FROZEN)
    other = rig.start(job(rig, gpu, "hold", most, job=2))
    assert rig.wait(other).end is End.FAILED
    assert rig.log(2) == "cuMemAlloc_v2 gave 2\n"  # out of memory


@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")
def test_a_training_that_is_frozen_twice_ends_with_the_same_weights(rig: Rig, gpu: Gpu) -> None:
    """The processes of the loader, its pinned memory and PyTorch's own threads and caches outlive a freeze."""
    workers = [Worker(0, "here", (0,), (gpu.uuid,), None)]
    given: dict[str, Any] = {"command": ["python", "-c", TRAINING, str(STEPS)], "gpus": workers}
    assert rig.wait(rig.start(rig.gang("", job=2, **given))).end is End.SUCCEEDED
    gang = rig.start(rig.gang("", **given))
    for epoch, step in (2, "step 50\n"), (3, "step 150\n"):
        rig.wait_for_log(step)
        rig.freeze(gang)
        rig.wait(gang, Phase.FROZEN)
        assert used(gpu).busy_percent == 0
        gang = rig.gang("", epoch=epoch, **given)
        rig.backend.thaw(gang)
        rig.wait(gang, Phase.RUNNING)
    assert rig.wait(gang).end is End.SUCCEEDED, rig.log()
    assert rig.log() == rig.log(2)
    assert "weights" in rig.log()


@pytest.mark.django_db
def test_two_teams_take_turns_on_one_gpu_from_declaring_it_to_the_bill(
    gpu: Gpu, open_folder: Path, settings: LazySettings
) -> None:
    settings.FAIRLOT_JOBS_DIR = open_folder
    backend_factory._backend.cache_clear()
    lab = world(v100=0, slicing="freeze")
    node = next(
        one for one in declare_local_gpus(actor=None, cluster=lab.cluster) if gpu.uuid in one.gpu_uuids
    )
    Node.objects.exclude(pk=node.pk).delete()  # leaves one node, so that the two jobs have to take turns
    assert node.generation.name == model_of(gpu.product)
    backend_for(lab.cluster).prepare()
    command = f"exec python3 - count <<'END'\n{PROGRAM}\nEND"
    try:
        first = submit(lab, command=command, gpus=node.gpus)
        lab.fill()
        life.until(lab, lambda: "step 20\n" in log_of(lab, first), "some steps")
        other = submit(lab, "charlie", command=command, gpus=node.gpus)
        lab.contest(first)
        life.until(lab, lambda: "step 20\n" in log_of(lab, other), "some steps of the other")
        assert lab.states([first, other]) == [Job.State.SUSPENDED, Job.State.RUNNING]
        finish(JobFiles(backend_for(lab.cluster).root, other.pk))
        reaches(lab, other, Job.State.SUCCEEDED)
        lab.fill()
        reaches(lab, first, Job.State.RUNNING)
        finish(JobFiles(backend_for(lab.cluster).root, first.pk))
        reaches(lab, first, Job.State.SUCCEEDED)
        for job in (first, other):
            assert "right after" in log_of(lab, job)
            held = sum((one.held_until - one.held_from).total_seconds() for one in job.leases.all())
            booked = sum(float(one.gpu_seconds) for one in UsageSegment.objects.filter(job_id=job.pk))
            assert booked == pytest.approx(node.gpus * held, abs=1e-5)
    finally:
        life.end_all(lab)
        backend_factory._backend.cache_clear()
