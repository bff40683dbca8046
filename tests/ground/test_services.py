"""A service that ends is restarted. Each time the service ends soon after its start, the delay before the next restart
grows."""

import subprocess
import sys

import pytest

from embedded import services
from embedded.processes import kill_group, working_in
from embedded.services import Program
from tests.waiting import wait_for


@pytest.fixture
def program(tmp_path):
    """Yields a function that creates a service from a line of Python; kills the services after the test."""
    started = []

    def make(line, **options):
        made = Program(
            "probe",
            ["-c", line],
            log=tmp_path / "log",
            environment={"PATH": "/usr/bin"},
            patience=5,
            **options,
        )
        started.append(made)
        return made

    yield make
    for made in started:
        if made.process is not None:
            kill_group(made.process.pid)
            made.process.wait()


def delays(service, deaths):
    return [service.plan_restart() for _ in range(deaths)]


def test_the_first_restart_is_at_once_and_later_ones_wait_ever_longer_up_to_a_bound(program):
    service = program("pass")
    service.start()
    service.process.wait()
    assert delays(service, 9) == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]


def test_a_service_that_lived_long_starts_from_the_first_delay_again(program, monkeypatch):
    service = program("pass")
    service.start()
    service.process.wait()
    delays(service, 5)
    service.start()
    service.process.wait()
    monkeypatch.setattr(services, "STEADY_AFTER", -1.0)
    assert service.plan_restart() == 0


def test_what_a_program_wants_people_to_know_is_passed_on_once_it_is_ready(program):
    say = "print('a line of its own'); print('probe: jobs share one user'); print('probe: ready')"
    service = program(f"{say}; import time; time.sleep(60)", ready_message=b"probe: ready")
    service.start()
    wait_for(service.check, what="ready")
    assert service.notices() == ["jobs share one user"]
    assert not service.check(), "only once"


def test_a_death_is_told_with_its_cause_and_last_words(program):
    service = program("print('out of luck'); raise SystemExit(3)")
    service.start()
    service.process.wait()
    assert (
        service.note_death()
        == "probe exited with code 3; restarting now. Last line of the log of probe: out of luck"
    )
    service = program("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    service.start()
    service.process.wait()
    assert service.note_death().startswith("probe was killed by SIGKILL; restarting now.")


def test_children_of_a_killed_service_do_not_stay_behind(program, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    child = [sys.executable, "-c", "import time; time.sleep(600)"]
    line = f"import subprocess; c = subprocess.Popen({child}, cwd={str(home)!r}); print('up', flush=True); c.wait()"
    service = program(line, ready_message=b"up")
    service.start()
    wait_until_running(service)
    assert list(working_in(home))
    service.process.kill()
    service.process.wait()
    service.note_death()
    wait_for(lambda: not list(working_in(home)), what="nothing works there")


def test_a_service_runs_only_once_it_says_so_in_this_life(program):
    service = program("import time; print('ready.', flush=True); time.sleep(600)", ready_message=b"ready.")
    service.log.write_text("ready.\n")  # written before this process started
    service.start()
    assert service.state == "starting"
    wait_until_running(service)


def wait_until_running(service):
    def runs():
        assert service.process.poll() is None, service.log.read_text()
        service.check()
        return service.state == "running"

    wait_for(runs, what=service.log.read_text)


def test_a_service_dies_with_its_supervisor(tmp_path):
    program = (
        "import sys, pathlib, signal; from embedded.processes import spawn\n"
        "home = pathlib.Path(sys.argv[1])\n"
        "p = spawn([sys.executable, '-c', 'import time; time.sleep(600)'], log=home / 'log', cwd=home)\n"
        "print('up', flush=True); signal.pause()"
    )
    starter = subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE)
    with starter:
        assert starter.stdout.readline() == b"up\n"
        starter.kill()
    wait_for(lambda: not list(working_in(tmp_path)), what="nothing works there")
