"""Gangs on the local backend start, stop, save checkpoints, are frozen, resume in a new attempt, and end."""

from __future__ import annotations

import dataclasses
import re
import threading
import time
import uuid

import pytest

from scheduling.backends.base import BackendError, End, Phase, Worker
from scheduling.backends.local import processes
from tests.scheduling.local_rig import Rig, until
from tests.waiting import PATIENCE

CHECKPOINTING = """
import os, pathlib, signal, time
file = pathlib.Path(os.environ["FAIRLOT_CHECKPOINT_DIR"], "steps")
steps = int(file.read_text()) if file.exists() else 0
print("began at", steps)
def save(*_):
    file.write_text(str(steps))
    raise SystemExit(0)
signal.signal(signal.SIGTERM, save)
while True:
    steps += 1
    print("step", steps)
    time.sleep(0.01)
"""
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready'); time.sleep(600)"
COUNTING = "import time\nn = 0\nwhile True:\n    n += 1\n    print('step', n)\n    time.sleep(0.005)"


def beginnings(rig: Rig, count: int) -> list[int]:
    """Waits until the program CHECKPOINTING has started `count` times. Returns the step from which it continued at each
    start."""

    def found() -> list[int]:
        return [int(step) for step in re.findall(r"^began at (\d+)\n", rig.log(), re.MULTILINE)]

    until(lambda: len(found()) >= count, f"{count} beginnings in the log")
    return found()


def test_a_gang_runs_and_succeeds(rig: Rig) -> None:
    gang = rig.start(rig.gang("echo step 41; echo step 42"))
    seen = rig.wait(gang)
    assert (seen.end, seen.exit_code, seen.steps) == (End.SUCCEEDED, 0, 42)
    assert seen.running_age is not None
    assert seen.ended_age is not None
    assert seen.running_age >= seen.ended_age
    assert rig.log() == "step 41\nstep 42\n"


def test_starts_and_ends_wake_the_watcher(rig: Rig) -> None:
    changes = rig.backend.changes(timeout=PATIENCE)
    next(changes)
    gang = rig.start(rig.gang("exit 0"))
    while True:
        next(changes)
        seen = rig.look(gang)
        assert seen is not None
        if seen.phase is Phase.ENDED:
            break
    assert seen.ended_age is not None
    assert seen.ended_age < PATIENCE / 2, "told when it happened, not when the wait was over"
    changes.close()


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("exit 3", 3, "exited with code 3"),
        ("kill -SEGV $$", 139, "was killed by SIGSEGV"),
        ("kill -KILL $$", 137, "was killed by SIGKILL, but not by Fairlot"),
        ("sh -c 'kill -KILL $$'; exit $?", 137, "exited with code 137 (SIGKILL, as shells report it)"),
    ],
)
def test_a_failure_keeps_its_reason(rig: Rig, script: str, code: int, words: str) -> None:
    seen = rig.wait(rig.start(rig.gang(script)))
    assert (seen.end, seen.exit_code) == (End.FAILED, code)
    assert words in seen.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"environment_name": "conda"},
            "there is no environment 'conda' on this machine (available: python)",
        ),
        ({"command": ["no-such-program"]}, "no-such-program: No such file or directory"),
        ({"command": ["/etc/passwd"]}, "/etc/passwd: Permission denied"),
    ],
)
def test_a_gang_that_cannot_start_reports_why(rig: Rig, changes: dict[str, object], words: str) -> None:
    seen = rig.wait(rig.start(rig.gang("true", **changes)))
    assert seen.end is End.START_FAILED
    assert words in seen.message


def test_a_working_folder_that_cannot_be_created_is_named(rig: Rig) -> None:
    rig.files().folder.mkdir()
    (rig.files().folder / "work").write_text("a file where a folder should be")
    seen = rig.wait(rig.start(rig.gang("true")))
    assert seen.end is End.START_FAILED
    assert "folder cannot be used" in seen.message


def test_if_one_worker_cannot_start_none_stays(rig: Rig) -> None:
    work = rig.files().folder / "work"
    work.mkdir(parents=True)
    (work / "rank-1").write_text("in the way")
    gang = rig.start(rig.gang("sleep 600", workers=2))
    seen = rig.wait(gang)
    assert seen.end is End.START_FAILED
    assert seen.message.startswith("worker 1: ")
    assert not rig.processes_of(gang)


def test_a_program_stopped_with_grace_saves_and_continues_from_there(rig: Rig) -> None:
    first = rig.start(rig.python(CHECKPOINTING))
    rig.wait_for_log("step 20")
    rig.stop(first, grace=PATIENCE)
    assert rig.wait(first).end is End.STOPPED
    second = rig.start(rig.python(CHECKPOINTING, epoch=2))
    assert beginnings(rig, 2)[1] >= 20
    assert rig.backend.read_log(job_id=1, rank=0, offset=0, limit=10**7).complete is False
    rig.stop(second)
    assert rig.wait(second).end is End.STOPPED


def test_a_program_that_ignores_sigterm_is_killed_after_its_grace(rig: Rig) -> None:
    gang = rig.start(rig.python(STUBBORN))
    rig.wait_for_log("ready")
    begun = time.monotonic()
    rig.stop(gang, grace=0.3)
    seen = rig.wait(gang)
    assert seen.end is End.STOPPED
    assert "killed" in seen.message
    assert time.monotonic() - begun >= 0.3
    assert not rig.processes_of(gang)


def test_a_second_stop_may_shorten_the_grace(rig: Rig) -> None:
    gang = rig.start(rig.python(STUBBORN))
    rig.wait_for_log("ready")
    rig.stop(gang, grace=600)
    rig.stop(gang, grace=0)
    assert rig.wait(gang).end is End.STOPPED


def test_one_failing_worker_ends_the_gang(rig: Rig) -> None:
    script = (
        'echo "rank $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT"; cd "$FAIRLOT_CHECKPOINT_DIR"; touch $RANK; '
        "[ $RANK = 1 ] || exec sleep 600; until [ -e 0 ] && [ -e 2 ]; do sleep 0.05; done; exit 7"
    )
    gang = rig.start(rig.gang(script, workers=3))
    seen = rig.wait(gang)
    assert (seen.end, seen.exit_code, seen.message) == (End.FAILED, 7, "worker 1 exited with code 7")
    assert not rig.processes_of(gang)
    assert list(rig.backend.log_ranks(job_id=1)) == [0, 1, 2]
    meeting_places = {rig.log(rank=rank).split(" at ")[1] for rank in range(3)}
    assert len(meeting_places) == 1


@pytest.mark.parametrize(("code", "end"), [(0, End.SUCCEEDED), (4, End.FAILED)])
def test_a_gang_succeeds_only_when_every_worker_does(rig: Rig, code: int, end: End) -> None:
    script = "[ $RANK = 0 ] || { mkfifo go; read code < go; exit $code; }"
    gang = rig.start(rig.gang(script, workers=2))
    fifo = rig.files().folder / "work" / "rank-1" / "go"
    until(fifo.exists, "rank 1")
    until(lambda: len(rig.processes_of(gang)) == 1, "the end of rank 0")
    rig.wait(gang, Phase.RUNNING)
    fifo.write_text(f"{code}\n")
    seen = rig.wait(gang)
    assert (seen.end, seen.exit_code) == (end, code)


def test_the_same_start_twice_at_once_runs_one_gang(rig: Rig) -> None:
    gang = rig.gang("echo begun; sleep 600", workers=2)
    starters = [threading.Thread(target=rig.another_backend().start, args=[gang]) for _ in range(4)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join()
    rig.wait(gang, Phase.RUNNING)
    rig.wait_for_log("begun")
    rig.stop(gang, grace=1)
    rig.wait(gang)
    rig.backend.start(gang)  # the start order arrives again after the end
    assert rig.wait(gang).end is End.STOPPED
    assert rig.log(rank=0) == rig.log(rank=1) == "begun\n"


def test_orders_of_an_older_epoch_are_void(rig: Rig) -> None:
    old = rig.gang("echo old; sleep 600", epoch=1)
    new = rig.start(rig.gang("echo new; sleep 600", epoch=2))
    rig.wait(new, Phase.RUNNING)
    rig.backend.start(old)
    rig.stop(old, grace=0)
    rig.freeze(old)
    assert rig.look(old) is None
    rig.stop(new, grace=1)
    assert rig.wait(new).end is End.STOPPED
    assert "old" not in rig.log()


def test_a_stop_before_the_start_voids_it(rig: Rig) -> None:
    gang = rig.gang("echo ran")
    rig.stop(gang)
    rig.backend.start(gang)
    seen = rig.wait(gang)
    assert (seen.end, seen.message) == (End.STOPPED, "the job was stopped before it started")
    assert rig.log() == ""


def test_a_forgotten_lease_never_runs_again(rig: Rig) -> None:
    gang = rig.start(rig.gang("echo ran"))
    rig.wait(gang)
    rig.backend.forget(job_id=1, epoch=1, token=gang.token)
    assert rig.backend.observe() == []
    rig.backend.start(gang)
    assert rig.backend.observe() == []
    chunk = rig.backend.read_log(job_id=1, rank=0, offset=0, limit=100)
    assert (chunk.data, chunk.complete) == (b"ran\n", True)


def test_a_running_lease_is_not_forgotten(rig: Rig) -> None:
    gang = rig.start(rig.gang("sleep 600"))
    rig.wait(gang, Phase.RUNNING)
    rig.backend.forget(job_id=1, epoch=1, token=gang.token)
    assert rig.look(gang) is not None


def test_another_lease_with_the_same_epoch_is_an_error(rig: Rig) -> None:
    gang = rig.start(rig.gang("sleep 600"))
    with pytest.raises(BackendError, match="another lease"):
        rig.backend.start(dataclasses.replace(gang, token=uuid.uuid4()))


def test_a_newer_start_waits_for_the_older_run_to_end(rig: Rig) -> None:
    old = rig.start(rig.python(CHECKPOINTING))
    rig.wait_for_log("step 20")
    new = rig.start(rig.python(CHECKPOINTING, epoch=2))
    rig.wait(new, Phase.RUNNING)
    assert rig.wait(old).end is End.STOPPED
    assert beginnings(rig, 2)[1] >= 20


def test_a_start_that_is_stopped_while_it_waits_for_the_older_run_never_runs(rig: Rig) -> None:
    old = rig.start(rig.python(STUBBORN, grace_seconds=0.5))
    rig.wait_for_log("ready")
    new = rig.start(rig.gang("echo new", epoch=2))
    rig.stop(new)
    assert rig.wait(new).message == "the job was stopped before it started"
    assert rig.wait(old).end is End.STOPPED
    assert rig.log() == "ready\n"
    newest = rig.start(rig.gang("echo newest", epoch=3))
    assert rig.wait(newest).end is End.SUCCEEDED


def cpu_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def test_freezing_stops_every_process_and_thawing_continues_without_a_restart(rig: Rig) -> None:
    busy = "python -c 'while True: pass' & exec python -c \"$COUNTING\""
    first = rig.start(rig.gang(busy, environment={"COUNTING": COUNTING}))
    rig.wait_for_log("step 20")
    rig.freeze(first)
    seen = rig.wait(first, Phase.FROZEN)
    assert seen.frozen_age is not None
    frozen = rig.processes_of(first)
    assert len(frozen) == 2
    assert all(process.is_stopped for process in frozen)
    before = [cpu_ticks(process.pid) for process in frozen]
    beat = rig.files().beat.stat().st_mtime_ns
    until(lambda: rig.files().beat.stat().st_mtime_ns > beat, "a heartbeat while frozen")
    assert [cpu_ticks(process.pid) for process in frozen] == before

    second = rig.gang(busy, epoch=2)
    rig.backend.thaw(second)
    rig.wait(second, Phase.RUNNING)
    assert {process.pid for process in rig.processes_of(first)} == {process.pid for process in frozen}
    assert rig.wait(first).message == "the job was suspended, and continued as attempt 2"
    steps = rig.log().count("step")
    until(lambda: rig.log().count("step") > steps, "more steps")
    rig.stop(first)  # a late order for the older lease is ignored
    rig.freeze(second)
    rig.wait(second, Phase.FROZEN)
    rig.stop(second, grace=5)
    assert rig.wait(second).end is End.STOPPED
    whole, _, _ = rig.log().rpartition("\n")  # the stop may cut the last line
    lines = [int(line.split()[1]) for line in whole.splitlines()]
    assert lines == list(range(1, len(lines) + 1))  # the program went on and did not restart


def test_a_frozen_program_may_use_its_grace_to_save(rig: Rig) -> None:
    gang = rig.start(rig.python(CHECKPOINTING))
    rig.wait_for_log("step 20")
    rig.freeze(gang)
    rig.wait(gang, Phase.FROZEN)
    rig.stop(gang, grace=PATIENCE)
    assert rig.wait(gang).end is End.STOPPED
    assert int((rig.files().folder / "checkpoint" / "steps").read_text()) >= 20


def test_a_thaw_on_other_gpus_is_a_start_from_the_checkpoint(rig: Rig) -> None:
    first = rig.start(rig.python(CHECKPOINTING))
    rig.wait_for_log("step 20")
    rig.freeze(first)
    rig.wait(first, Phase.FROZEN)
    elsewhere = [Worker(0, "node-7", (3,), (), 1.0)]
    second = rig.python(CHECKPOINTING, epoch=2, gpus=elsewhere)
    rig.backend.thaw(second)
    rig.wait(second, Phase.RUNNING)
    rig.wait_for_log("began at", times=2)
    assert rig.wait(first).end is End.STOPPED


def test_a_thaw_of_vanished_processes_is_a_start(rig: Rig) -> None:
    gang = rig.gang("echo step 1; sleep 600", epoch=4)
    rig.backend.thaw(gang)
    rig.wait(gang, Phase.RUNNING)


def test_a_supervisor_that_gets_sigterm_ends_its_gang_with_grace(rig: Rig) -> None:
    gang = rig.start(rig.python(CHECKPOINTING))
    rig.wait_for_log("step 20")
    supervisor = processes.look(rig.supervisor(gang))
    assert supervisor is not None
    processes.send(supervisor, 15)
    assert rig.wait(gang).end is End.LOST
    assert (rig.files().folder / "checkpoint" / "steps").exists()


def test_a_folder_that_refuses_is_a_backend_error(rig: Rig) -> None:
    rig.files().folder.write_text("no folder")
    with pytest.raises(BackendError, match="cannot be used"):
        rig.backend.start(rig.gang("true"))
    rig.files().folder.unlink()
