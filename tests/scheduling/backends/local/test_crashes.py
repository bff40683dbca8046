"""The local backend handles kill -9, reboots, and programs that detach from their parent."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from scheduling.backends.base import End, Gang, Phase
from scheduling.backends.local import processes
from scheduling.backends.local.files import read_json, write_json
from tests.scheduling.local_rig import Rig, until

DETACHING = """
import os, time
for detach in (False, True):
    if os.fork() == 0:
        if detach:
            os.setsid()
            if os.fork() > 0:
                os._exit(0)
        print("a child of", os.getppid() if not detach else "nobody", flush=True)
        time.sleep(600)
        os._exit(0)
"""
# clears the environment, by which processes are usually found
CLEAN = "exec env -i /bin/sh -c 'sleep 600 & exec sleep 600'"


def start_and_die(root: Path, gang: Gang) -> None:
    """Starts a gang, then kills its own process with SIGKILL, as if the portal were killed."""
    Rig(root).backend.start(gang)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_gang_outlives_the_killed_starter_and_is_adopted(rig: Rig) -> None:
    gang = rig.gang("echo step 1; mkfifo go; read line < go; echo step 2")
    starter = multiprocessing.get_context("spawn").Process(target=start_and_die, args=(rig.root, gang))
    starter.start()
    starter.join(20)
    assert starter.exitcode == -signal.SIGKILL
    rig.wait(gang, Phase.RUNNING)
    rig.wait_for_log("step 1")
    successor = rig.another_backend()
    successor.start(gang)  # the outbox repeats the start order after the crash
    fifo = rig.files().folder / "work" / "rank-0" / "go"
    until(fifo.exists, "the program")
    fifo.write_text("on\n")
    assert rig.wait(gang).end is End.SUCCEEDED
    assert rig.log() == "step 1\nstep 2\n"


def test_killing_a_starter_at_any_moment_leaves_at_most_one_gang(rig: Rig) -> None:
    chance = random.Random(7)
    for job in range(1, 11):
        gang = rig.gang("echo begun; exec sleep 600", job=job)
        starter = multiprocessing.get_context("fork").Process(target=rig.backend.start, args=(gang,))
        starter.start()
        starter.join(chance.uniform(0, 0.1))
        starter.kill()
        starter.join()
        starter.close()
        rig.backend.start(gang)  # the outbox repeats the start order
        rig.wait(gang, Phase.RUNNING)
        rig.wait_for_log("begun", job=job)
        rig.stop(gang)
        assert rig.wait(gang).end is End.STOPPED
        assert rig.log(job) == "begun\n"


def test_a_supervisor_killed_at_any_moment_leaves_nothing(rig: Rig) -> None:
    chance = random.Random(8)
    for job in range(1, 9):
        gang = rig.start(rig.gang("sleep 600 & exec sleep 600", job=job, workers=2))
        until(partial(rig.supervisor, gang), "a supervisor")
        threading.Event().wait(chance.uniform(0, 0.03))
        kill_supervisor(rig, gang)
        assert rig.wait(gang).end is End.LOST
        assert not rig.processes_of(gang)


def test_a_damaged_heartbeat_counts_as_missing(rig: Rig) -> None:
    gang = rig.start(rig.gang("exec sleep 600"))
    rig.wait(gang, Phase.RUNNING)
    kill_supervisor(rig, gang)
    rig.files().beat.write_bytes(b"\0\0\0")
    seen = rig.wait(gang)
    assert seen.end is End.LOST
    assert seen.ended_age == pytest.approx(seen.running_age, abs=0.01)


def kill_supervisor(rig: Rig, gang: Gang) -> None:
    supervisor = processes.look(rig.supervisor(gang))
    assert supervisor is not None
    processes.send(supervisor, signal.SIGKILL)
    processes.wait_for_end([supervisor], 20)


def test_a_killed_supervisor_means_lost_at_its_last_heartbeat_and_nothing_stays(rig: Rig) -> None:
    gang = rig.start(rig.python(DETACHING + "time.sleep(600)", workers=2))
    rig.wait(gang, Phase.RUNNING)
    rig.wait_for_log("a child of", rank=0, times=2)
    rig.wait_for_log("a child of", rank=1, times=2)
    assert len(rig.processes_of(gang)) == 6
    kill_supervisor(rig, gang)
    last = read_json(rig.files().beat)
    assert last is not None
    least = processes.age(tuple(last["at"]))
    seen = rig.wait(gang)
    assert seen.end is End.LOST
    assert seen.ended_age is not None
    assert least <= seen.ended_age <= processes.age(tuple(last["at"]))
    assert not rig.processes_of(gang)
    rig.backend.start(gang)
    assert rig.wait(gang).end is End.LOST  # a lost attempt is not started a second time
    again = rig.start(rig.gang("echo again", epoch=2))
    assert rig.wait(again).end is End.SUCCEEDED


def test_processes_without_their_environment_are_found_after_the_supervisor_died(rig: Rig) -> None:
    gang = rig.start(rig.gang(CLEAN))
    beat = rig.files().beat

    def recorded() -> list[tuple[int, int]]:
        return (read_json(beat) or {}).get("processes", [])

    until(lambda: len(recorded()) == 2, "both sleeps in the heartbeat")
    sleeps = recorded()
    assert not rig.processes_of(gang)
    kill_supervisor(rig, gang)
    rig.wait(gang)
    assert not any(processes.is_alive(*process) for process in sleeps)


def test_a_start_after_a_crash_ends_the_leftovers_first(rig: Rig) -> None:
    old = rig.start(rig.python(DETACHING + "time.sleep(600)"))
    rig.wait_for_log("a child of", times=2)
    kill_supervisor(rig, old)
    new = rig.start(rig.gang("echo new; sleep 600", epoch=2))
    assert not rig.processes_of(old)
    rig.wait(new, Phase.RUNNING)
    assert rig.wait(old).end is End.LOST


def test_after_a_reboot_gangs_are_lost_at_their_last_heartbeat(rig: Rig) -> None:
    gang = rig.start(rig.gang("exec sleep 600"))
    rig.wait(gang, Phase.RUNNING)
    kill_supervisor(rig, gang)
    until(lambda: not rig.processes_of(gang), "the end by the parent's death")
    # Makes the files look as after a reboot: another boot id, and the supervisor's PID belongs to another program.
    status, beat = read_json(rig.files().status(1)), read_json(rig.files().beat)
    assert status is not None
    assert beat is not None
    stranger = processes.own_identity()
    status |= {"ordered_at": ["another boot", 5.0, 1e9], "supervisor": stranger}
    beat |= {"at": ["another boot", 9.0, 1e9 + 4], "processes": [stranger]}
    write_json(rig.files().status(1), status)
    write_json(rig.files().beat, beat)
    seen = rig.wait(gang)
    assert (seen.end, seen.message) == (End.LOST, "the machine was restarted")
    assert seen.ended_age is not None
    assert seen.ended_age > 1e7  # more than 115 days ago, by the wall clock


def test_a_start_that_was_killed_before_its_supervisor_came_up_is_started_by_the_next(rig: Rig) -> None:
    gang = rig.gang("echo ran")
    files = rig.files()
    files.make()
    status = {"job_id": 1, "epoch": 1, "token": str(gang.token), "ordered_at": processes.stamp()}
    status |= {"phase": "starting", "supervisor": None, "marker": str(gang.token)}
    write_json(files.status(1), status)
    assert rig.wait(gang, Phase.STARTING)
    rig.backend.start(gang)
    assert rig.wait(gang).end is End.SUCCEEDED


def test_processes_that_a_program_leaves_behind_end_with_it(rig: Rig) -> None:
    gang = rig.start(rig.python(DETACHING + "time.sleep(0)"))
    seen = rig.wait(gang)
    assert seen.end is End.SUCCEEDED
    assert not rig.processes_of(gang)


def test_a_program_that_hops_from_process_to_process_is_caught(rig: Rig) -> None:
    # Each process forks the next one and exits, so every list of processes is out of date.
    hop = "import os\nprint('hopping', flush=True)\nwhile True:\n    if os.fork() > 0: os._exit(0)"
    gang = rig.start(rig.gang(f'python -c "{hop}" & sleep 600'))
    rig.wait_for_log("hopping")
    rig.stop(gang, grace=0)
    assert rig.wait(gang).end is End.STOPPED
    assert not rig.processes_of(gang)


def test_stopping_reaches_processes_in_their_own_session(rig: Rig) -> None:
    gang = rig.start(rig.python(DETACHING + "time.sleep(600)"))
    rig.wait_for_log("a child of", times=2)
    rig.stop(gang, grace=10)
    assert rig.wait(gang).end is End.STOPPED
    assert not rig.processes_of(gang)


def test_a_damaged_report_hides_no_other(rig: Rig) -> None:
    gang = rig.start(rig.gang("sleep 600"))
    rig.files().status(1).with_name("77-1.json").write_text("")
    rig.wait(gang, Phase.RUNNING)
    rig.files().status(1).with_name("77-1.json").unlink()


def test_orders_from_many_processes_at_once_end_in_one_state(rig: Rig) -> None:
    gang = rig.gang("echo begun; sleep 600")
    verbs = [lambda: rig.start(gang), lambda: rig.freeze(gang), lambda: rig.look(gang)] * 4
    threads = [threading.Thread(target=verb) for verb in verbs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rig.stop(gang, grace=1)
    assert rig.wait(gang).end is End.STOPPED
    assert rig.log().count("begun") <= 1


def test_the_supervisor_is_small(rig: Rig) -> None:
    gang = rig.start(rig.gang("sleep 600"))
    rig.wait(gang, Phase.RUNNING)
    assert memory_of(rig.supervisor(gang)) < 40_000_000
    assert sys.executable in Path(f"/proc/{rig.supervisor(gang)}/cmdline").read_text()


def memory_of(pid: int) -> int:
    """Returns the peak resident memory of the process in bytes (VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a small file system")
    yield folder
    until(
        lambda: subprocess.run(["umount", str(folder)], capture_output=True, check=False).returncode == 0,
        "umount",
    )


def test_a_full_disk_ends_no_job_and_its_end_is_reported_when_there_is_room(small_disk: Path) -> None:
    rig = Rig(small_disk / "jobs")
    gang = rig.start(rig.gang("head -c 1000000 /dev/zero; sleep 0.2; exit 5"))
    rig.wait(gang, Phase.RUNNING)
    supervisor = rig.supervisor(gang)
    until(lambda: os.statvfs(small_disk).f_bavail == 0, "a full disk")
    until(lambda: not rig.processes_of(gang), "the end of the program")
    assert processes.look(supervisor) is not None
    os.truncate(rig.files().log(0), 1000)
    seen = rig.wait(gang)
    assert (seen.end, seen.exit_code) == (End.FAILED, 5)
    until(lambda: processes.look(supervisor) is None, "the supervisor's end")
