"""The example program "digits" learns, resumes from its checkpoint exactly, and also runs as a gang of several
workers."""

from __future__ import annotations

import itertools
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from scheduling.backends.base import End, Phase, Worker
from scheduling.backends.local import processes
from tests.scheduling.local_rig import EXAMPLES, Rig, until
from tests.waiting import PATIENCE, wait_for

TRAIN = 'python "$FAIRLOT_EXAMPLES/digits/train.py" '


def checkpoint(rig: Rig, job: int) -> dict[str, np.ndarray]:
    with np.load(rig.files(job).folder / "checkpoint" / "digits.npz") as saved:
        return dict(saved)


def test_it_reaches_its_accuracy_by_default(rig: Rig) -> None:
    seen = rig.wait(rig.start(rig.gang(TRAIN + "--seconds-per-step 0")))
    assert (seen.end, seen.steps) == (End.SUCCEEDED, 300), rig.log()
    final = re.fullmatch(r"final accuracy (0\.\d{4})", rig.log().splitlines()[-1])
    assert final is not None
    assert float(final[1]) >= 0.96


def test_a_missed_target_is_a_failure(rig: Rig) -> None:
    seen = rig.wait(rig.start(rig.gang(TRAIN + "--seconds-per-step 0 --steps 5 --target-accuracy 0.9")))
    assert (seen.end, seen.exit_code) == (End.FAILED, 1)
    assert "missed the target" in rig.log()


def test_an_interrupted_run_ends_with_the_very_weights_of_an_unbroken_one(rig: Rig) -> None:
    slow = TRAIN + "--steps 60 --seconds-per-step 0.02"
    for epoch, step in ((1, 7), (2, 31)):
        part = rig.start(rig.gang(slow, epoch=epoch))
        rig.wait_for_log(f"step {step} ")
        rig.stop(part, grace=PATIENCE)
        assert rig.wait(part).end is End.STOPPED
        assert f"stopping as ordered; saved step {checkpoint(rig, 1)['step']}" in rig.log()
    assert rig.wait(rig.start(rig.gang(slow + " --target-accuracy 0", epoch=3))).end is End.SUCCEEDED
    unbroken = rig.gang(TRAIN + "--steps 60 --seconds-per-step 0 --target-accuracy 0", job=2)
    assert rig.wait(rig.start(unbroken)).end is End.SUCCEEDED
    ours, theirs = checkpoint(rig, 1), checkpoint(rig, 2)
    assert {name: ours[name].tobytes() for name in ours} == {name: theirs[name].tobytes() for name in theirs}
    assert re.findall(r"^step (\d+)", rig.log(), re.MULTILINE) == [str(step) for step in range(1, 61)]


def test_a_suspension_longer_than_a_step_is_not_taken_for_a_stop(rig: Rig) -> None:
    gang = rig.start(rig.gang(TRAIN + "--steps 1000 --seconds-per-step 0.2"))
    rig.wait_for_log("step 2 ")
    rig.freeze(gang)
    rig.wait(gang, Phase.FROZEN)
    frozen = time.monotonic()
    until(lambda: time.monotonic() > frozen + 0.5)  # in real time: longer than a step
    thawed = rig.gang(TRAIN, epoch=2)
    rig.backend.thaw(thawed)
    step = max(map(int, re.findall(r"^step (\d+)", rig.log(), re.MULTILINE)))
    rig.wait_for_log(f"step {step + 3} ")
    rig.stop(thawed, grace=PATIENCE)
    assert rig.wait(thawed).end is End.STOPPED, rig.log()


def test_two_workers_train_one_model_and_resume_together(rig: Rig) -> None:
    gang = rig.start(rig.gang(TRAIN + "--steps 200 --seconds-per-step 0.02", workers=2))
    rig.wait_for_log("step 20 ")
    rig.stop(gang, grace=PATIENCE)
    seen = rig.wait(gang)
    assert (seen.end, seen.message) == (End.STOPPED, "stopped by Fairlot"), rig.log() + rig.log(rank=1)
    second = rig.gang(TRAIN + "--steps 200 --seconds-per-step 0", workers=2, epoch=2)
    assert rig.wait(rig.start(second)).end is End.SUCCEEDED, rig.log() + rig.log(rank=1)
    alone = rig.gang(TRAIN + "--steps 200 --seconds-per-step 0", job=2)
    assert rig.wait(rig.start(alone)).end is End.SUCCEEDED
    together, single = checkpoint(rig, 1), checkpoint(rig, 2)
    # Two workers add the gradients in another order, so the parameters differ by rounding.
    assert np.allclose(together["parameters"], single["parameters"], atol=1e-6)
    parts = [int(step) for step in re.findall(r"did its part of step (\d+)", rig.log(rank=1))]
    assert sorted(set(parts)) == list(range(1, 201))


def test_when_a_worker_goes_away_the_other_saves_and_the_gang_fails(rig: Rig) -> None:
    gang = rig.start(rig.gang("exec " + TRAIN + "--steps 5000 --seconds-per-step 0.02", workers=2))
    rig.wait_for_log("step 10 ")
    victim = next(
        process
        for process in rig.processes_of(gang)
        if b"FAIRLOT_RANK=1\0" in Path(f"/proc/{process.pid}/environ").read_bytes()
    )
    processes.send(victim, signal.SIGKILL)
    seen = rig.wait(gang)
    assert (seen.end, seen.message.split(",")[0]) == (End.FAILED, "worker 1 was killed by SIGKILL")
    assert int(checkpoint(rig, 1)["step"]) >= 10


@pytest.mark.parametrize("gone", [0, 1])
def test_a_worker_that_loses_its_peer_ends_by_itself(tmp_path: Path, gone: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    gang = [
        subprocess.Popen(
            [
                sys.executable,
                EXAMPLES / "digits" / "train.py",
                "--seconds-per-step",
                "0.01",
                "--steps",
                "5000",
            ],
            env={"FAIRLOT_RANK": str(rank), "FAIRLOT_WORLD_SIZE": "2", "MASTER_PORT": str(port)},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    assert gang[0].stdout
    assert gang[0].stdout.readline().startswith("step 1 ")
    gang[gone].kill()
    said, _ = gang[1 - gone].communicate(timeout=PATIENCE)
    assert gang[1 - gone].returncode == 1
    assert "went away" in said
    gang[gone].communicate()
    assert (tmp_path / "checkpoint" / "digits.npz").exists() == (gone == 1)


def test_a_faster_gpu_makes_steps_faster_as_much_as_the_model_gains(rig: Rig) -> None:
    def seconds(speed: float, sensitivity: float, job: int) -> float:
        command = f"{TRAIN} --steps 20 --seconds-per-step 0.1 --sensitivity {sensitivity} --target-accuracy 0"
        gang = rig.gang(command, job=job, gpus=[Worker(0, "node", (0,), (), speed)])
        begun = rig.wait(rig.start(gang), Phase.RUNNING)
        assert begun
        rig.wait_for_log("step 1 ", job=job)
        first = time.monotonic()
        until(lambda: "final" in rig.log(job), "the end")
        return time.monotonic() - first

    # At least 19 steps of 0.1 s, half of that at sensitivity 0.5, and a quarter at 1. A busy machine may add a lot to
    # each.
    jobs = itertools.count(1)
    assert seconds(1, 1, next(jobs)) >= 1.8
    for sensitivity, least, most in ((0.5, 0.9, 1.8), (1, 0.45, 0.9)):
        took = wait_for(
            lambda of=sensitivity, most=most: (took := seconds(4, of, next(jobs))) < most and took,
            what=f"a run at sensitivity {sensitivity} on a fast GPU takes less than {most} s",
        )
        assert took >= least


def test_it_runs_by_hand_too(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", EXAMPLES / "digits" / "train.py", "--steps", "3"]
    run = subprocess.run(
        [*command, "--target-accuracy", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert run.stdout.startswith("step 1 loss=")
    assert run.stderr == ""
    assert (tmp_path / "checkpoint" / "digits.npz").exists()
