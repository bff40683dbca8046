"""The watchdog kills a supervisor that hangs, which frees the GPUs. It spares a supervisor that is slow or lacks disk
space."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scheduling.backends import opening
from scheduling.backends.base import End, Gang, Observation, Phase
from scheduling.backends.local import backend, processes, removal, reports, sandbox, watchdog
from scheduling.backends.local.files import read_json
from scheduling.backends.local.supervisor import MOST_BEATS_WITHOUT_ROOT, Supervisor
from tests.scheduling.backends.local.test_crashes import CLEAN, DETACHING
from tests.scheduling.local_rig import Rig, until

SHORT = 4.0


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "PATIENCE", SHORT)
    monkeypatch.setattr(watchdog, "USUAL_GAP", SHORT / 2)


def running(rig: Rig, script: str = "echo ready; exec sleep 600", **changes: object) -> Gang:
    gang = rig.start(rig.gang(script, **changes))
    rig.wait(gang, Phase.RUNNING)
    return gang


def stop_supervisor(rig: Rig, gang: Gang) -> processes.Process:
    supervisor = processes.look(rig.supervisor(gang))
    assert supervisor is not None
    processes.send(supervisor, signal.SIGSTOP)
    until(lambda: (now := processes.look(supervisor.pid)) and now.is_stopped, "a stopped supervisor")
    return supervisor


def last_beat(rig: Rig) -> processes.Stamp:
    beat = read_json(rig.files().beat)
    assert beat is not None
    return tuple(beat["at"])


class Clock:
    """The watchdog's monotonic clock; the test sets `now`."""

    def __init__(self) -> None:
        self.now = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(watchdog, "PATIENCE", 30.0)
    monkeypatch.setattr(watchdog, "USUAL_GAP", 5.0)
    made = Clock()
    monkeypatch.setattr(watchdog, "_now", lambda: made.now)
    return made


def phase_of(rig: Rig, gang: Gang) -> Phase:
    seen = rig.look(gang)
    assert seen is not None
    return seen.phase


def phase_after(rig: Rig, gang: Gang, clock: Clock, patiences: float) -> Phase:
    """Advances the clock by `patiences` times PATIENCE, and looks at the gang each second. Returns the gang's phase at
    the end.

    PATIENCE is the time without a heartbeat after which the watchdog kills a supervisor.
    """
    for _ in range(int(patiences * watchdog.PATIENCE)):
        clock.now += 1.0
        rig.look(gang)
    return phase_of(rig, gang)


def test_a_stopped_supervisor_and_its_job_end_at_its_last_heartbeat(rig: Rig) -> None:
    gang = rig.start(rig.python(DETACHING + "time.sleep(600)"))
    rig.wait(gang, Phase.RUNNING)
    rig.wait_for_log("a child of", times=2)
    supervisor = stop_supervisor(rig, gang)
    last = last_beat(rig)
    least = processes.age(last)
    seen = rig.wait(gang)
    assert seen.end is End.LOST
    assert seen.message == f"the job's supervisor sent no heartbeat for {SHORT:g} s and was killed"
    assert seen.ended_age is not None
    assert least <= seen.ended_age <= processes.age(last)
    assert not rig.processes_of(gang)
    assert not processes.is_alive(supervisor.pid, supervisor.start)
    again = rig.start(rig.gang("echo again", epoch=2))
    assert rig.wait(again).end is End.SUCCEEDED


def test_processes_without_their_environment_are_found_by_descent(rig: Rig) -> None:
    gang = running(rig, f"mkfifo go; read line < go; {CLEAN}")
    fifo = rig.files().folder / "work" / "rank-0" / "go"
    until(fifo.exists, "the program")
    supervisor = stop_supervisor(rig, gang)
    fifo.write_text("on\n")

    def below() -> list[processes.Process]:
        """Returns the supervisor's descendant processes, except the init process of the job's PID namespace."""
        found = processes.descendants(supervisor.pid)
        return [each for each in found if not processes.is_namespace_init(each.pid)]

    until(lambda: len(below()) == 2, "both sleeps")
    sleeps = below()
    assert rig.wait(gang).end is End.LOST
    assert not any(processes.is_alive(each.pid, each.start) for each in sleeps)


def test_a_stop_of_a_job_whose_supervisor_hangs_ends_it(rig: Rig) -> None:
    gang = running(rig)
    stop_supervisor(rig, gang)
    rig.stop(gang)
    assert rig.wait(gang).phase is Phase.ENDED
    assert not rig.processes_of(gang)


def test_a_supervisor_that_only_pretends_to_run_is_ended(rig: Rig) -> None:
    """A supervisor that was stopped by a signal is killed, even if another process keeps its heartbeat file fresh."""
    gang = running(rig)
    stop_supervisor(rig, gang)
    beat = read_json(rig.files().beat)
    assert beat is not None

    def pretend() -> Observation | None:
        opening.write_json(rig.files().beat, beat | {"at": processes.stamp()})
        seen = rig.look(gang)
        return seen if seen is not None and seen.phase is Phase.ENDED else None

    assert until(pretend, "the end") is not None


def test_a_supervisor_that_continues_in_time_lives(rig: Rig, clock: Clock) -> None:
    gang = running(rig)
    rig.look(gang)
    for _ in range(3):
        supervisor, before = stop_supervisor(rig, gang), last_beat(rig)
        assert phase_after(rig, gang, clock, 0.9) is Phase.RUNNING
        processes.send(supervisor, signal.SIGCONT)
        until(lambda before=before: last_beat(rig) != before, "a heartbeat")
        assert phase_of(rig, gang) is Phase.RUNNING


def test_a_machine_that_slept_for_an_hour_loses_no_job(rig: Rig, clock: Clock) -> None:
    """However far the clock jumps between two checks of the watchdog, the check adds at most LONGEST_GAP seconds to the
    time without a heartbeat. So a machine that sleeps loses no job."""
    gang = running(rig)
    rig.look(gang)
    supervisor = stop_supervisor(rig, gang)
    for _ in range(int(watchdog.PATIENCE / watchdog.LONGEST_GAP)):
        assert phase_of(rig, gang) is Phase.RUNNING
        clock.now += 3600
    processes.send(supervisor, signal.SIGCONT)


def test_while_the_disk_takes_nothing_silence_counts_for_nothing(
    rig: Rig, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = running(rig)
    rig.look(gang)
    supervisor = stop_supervisor(rig, gang)
    with monkeypatch.context() as patched:
        patched.setattr(watchdog, "_takes_writes", lambda root: False)
        assert phase_after(rig, gang, clock, 2) is Phase.RUNNING
    # Once the disk takes writes again, the supervisor still has its whole patience.
    assert phase_after(rig, gang, clock, 0.9) is Phase.RUNNING
    assert phase_after(rig, gang, clock, 0.2) is Phase.ENDED
    assert not processes.is_alive(supervisor.pid, supervisor.start)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_full_disk_is_distinguished_from_a_damaged_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    (tmp_path / ".beats").mkdir()
    assert watchdog._takes_writes(tmp_path)
    assert list((tmp_path / ".beats").iterdir()) == []

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(opening, "replace_file", refuse)
        assert not watchdog._takes_writes(tmp_path)
    # A job that runs as the portal's own user could damage the folder; this must not keep a silent supervisor alive.
    (tmp_path / ".beats").rmdir()
    (tmp_path / ".beats").symlink_to(tmp_path)
    assert watchdog._takes_writes(tmp_path)


def test_another_process_with_the_supervisors_number_is_left_alone(rig: Rig, clock: Clock) -> None:
    gang = running(rig)
    rig.look(gang)
    supervisor = stop_supervisor(rig, gang)
    status = read_json(rig.files().status(1))
    assert status is not None
    with subprocess.Popen(["sleep", "600"]) as stranger:
        name = processes.look(stranger.pid)
        assert name is not None
        opening.write_json(rig.files().status(1), status | {"supervisor": (name.pid, name.start - 1)})
        assert not reports.terminate(rig.files(), 1, str(gang.token))
        assert phase_after(rig, gang, clock, 1.1) is Phase.ENDED
        now = processes.look(stranger.pid)
        assert now is not None
        assert now.state not in "TtZX", "it was stopped or killed"
        stranger.kill()
    processes.send(supervisor, signal.SIGKILL)


def test_a_supervisor_that_hangs_before_it_reports_its_pid_is_ended(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = rig.root / "shim.py"
    hanging.write_text("import os, signal\nif os.fork() == 0:\n    os.kill(os.getpid(), signal.SIGSTOP)\n")
    with monkeypatch.context() as patched:
        patched.setattr(backend, "SHIM", hanging)
        gang = rig.start(rig.gang("echo never"))
    until(lambda: reports.launched(rig.files()), "a supervisor that hangs")
    seen = rig.wait(gang)
    assert seen.end is End.START_FAILED
    assert reports.launched(rig.files()) == []
    again = rig.start(rig.gang("echo again", epoch=2))
    assert rig.wait(again).end is End.SUCCEEDED


def test_a_start_that_waits_for_the_previous_attempt_is_not_silent(rig: Rig, clock: Clock) -> None:
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready'); time.sleep(600)"
    old = rig.start(rig.python(stubborn, grace_seconds=600))
    rig.wait_for_log("ready")
    new = rig.start(rig.gang("echo new", epoch=2))
    rig.look(new)
    for _ in range(3):
        before = last_beat(rig)
        until(lambda before=before: last_beat(rig) != before, "a heartbeat")
        assert phase_after(rig, new, clock, 0.9) is Phase.STARTING
    rig.stop(old, grace=0)
    rig.stop(new)
    processes.send(stop_supervisor(rig, old), signal.SIGKILL)


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.FROZEN])
def test_a_healthy_supervisor_is_never_ended(rig: Rig, clock: Clock, phase: Phase) -> None:
    gang = running(rig)
    if phase is Phase.FROZEN:
        rig.freeze(gang)
        rig.wait(gang, phase)
    rig.look(gang)
    for _ in range(3):
        before = last_beat(rig)
        until(lambda before=before: last_beat(rig) != before, "a heartbeat")
        assert phase_after(rig, gang, clock, 0.9) is phase


def test_giving_a_large_tree_to_its_team_is_no_silence(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    files = rig.files()
    files.make()
    for number in range(100):
        (files.folder / "work" / str(number)).mkdir(parents=True)
    supervisor = Supervisor(files, rig.backend._gang_as_json(rig.gang("true"), files))
    beats = []

    def beat() -> None:
        beats.append(1)  # sets no time for the next heartbeat, which is therefore due at once

    monkeypatch.setattr(supervisor, "_beat", beat)
    monkeypatch.setattr(os, "chown", lambda *args, **named: None)  # an ordinary user may not call chown
    sandbox.prepare_folders(files.folder, os.getuid() + 1, go_on=supervisor._beat_if_due)
    assert len(beats) >= 100
    given: list[object] = []
    monkeypatch.setattr(
        sandbox, "prepare_folders", lambda folder, uid, go_on: given.append(go_on) or sys.exit()
    )
    with pytest.raises(SystemExit):
        supervisor._confine()
    assert given == [supervisor._beat_if_due]
    supervisor.shells.close()


def test_a_folder_tree_too_deep_to_change_owner_is_an_error(tmp_path: Path) -> None:
    inner = os.open(tmp_path, os.O_DIRECTORY)
    os.mkdir("work", dir_fd=inner)
    for name in ("work", *["d"] * 1500):
        deeper = os.open(name, os.O_DIRECTORY, dir_fd=inner)
        os.close(inner)
        inner = deeper
        os.mkdir("d", dir_fd=inner)
    os.close(inner)
    try:
        with pytest.raises(OSError, match=r"nested too deeply|Too many open files"):
            sandbox.prepare_folders(tmp_path, os.getuid() + 1)
    finally:  # too deep for pytest to delete
        with opening.folder(tmp_path) as folder:
            removal.clear("work", folder, seconds=600)


def test_processes_are_found_by_program_and_arguments() -> None:
    arguments = [
        sys.executable,
        "-c",
        "import sys; print(flush=True); sys.stdin.read()",
        "shim.py",
        "start",
        "/a",
        "1",
        "7",
    ]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        one.stdout.readline()
        found = processes.with_arguments("shim.py", ("start", "go-on"), "/a", "1")
        assert [process.pid for process in found] == [one.pid]
        for other in (("/a", "2"), ("/b", "1")):
            assert processes.with_arguments("shim.py", ("start", "go-on"), *other) == []
        assert processes.with_arguments("shim.py", ("check",), "/a", "1") == []
        assert os.getpid() not in {process.pid for process in found}
        one.kill()


def test_gangs_end_when_the_folder_of_all_jobs_was_removed(rig: Rig) -> None:
    """If the folder of all jobs is removed, supervisors end their gangs. They could not be stopped otherwise, because
    stop orders are files in this folder."""
    gang = running(rig, "trap '' TERM; sleep 600 & wait; sleep 600", grace_seconds=1.0)
    supervisor = processes.look(rig.supervisor(gang))
    assert supervisor is not None
    below = processes.descendants(supervisor.pid)
    assert below
    shutil.rmtree(rig.files().root)
    until(
        lambda: not any(processes.is_alive(one.pid, one.start) for one in [supervisor, *below]),
        "the end of the supervisor and all below it",
    )


def test_a_disk_that_refuses_or_is_away_for_a_moment_ends_no_gang(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = rig.files()
    supervisor = Supervisor(files, rig.backend._gang_as_json(rig.gang("true"), files))
    away, stat = files.root.with_name("away"), Path.stat

    def refused(path: Path, **named: bool) -> os.stat_result:
        if path == files.root:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return stat(path, **named)

    files.make()
    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(Path, "stat", refused)
            for _ in range(MOST_BEATS_WITHOUT_ROOT + 1):
                supervisor._beat()
        files.root.rename(away)
        for _ in range(MOST_BEATS_WITHOUT_ROOT - 1):
            supervisor._beat()
        away.rename(files.root)
        supervisor._beat()
    assert supervisor.verdict is None
    files.root.rename(away)
    for _ in range(MOST_BEATS_WITHOUT_ROOT):
        supervisor._beat()
    away.rename(files.root)
    assert supervisor.verdict is not None
    supervisor.shells.close()
