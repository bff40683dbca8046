"""`make up` as a user runs it: the real command and the real services, in a temporary folder."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.ground.settings_read import ROOT
from tests.ground.up import Up, accounts, environment, wait_until_gone
from tests.proof.marks import job_processes
from tests.waiting import PATIENCE, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("crashes")]


@pytest.fixture
def var():
    folder = Path(tempfile.mkdtemp(prefix="fairlot-up-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def up(var):
    runs = []

    def start():
        runs.append(Up(var))
        return runs[-1]

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()
    if runs:
        for pid in runs[0].jobs():  # jobs outlive their supervisor by design
            os.kill(pid, signal.SIGKILL)
        wait_until_gone(lambda: runs[0].left() | runs[0].jobs())


def test_up_serves_heals_stops_and_comes_back_with_its_data(up, var):
    first = up()
    first.wait_until_running()
    assert first.get("/healthz") == 200
    passwords = first.home.demo_passwords
    assert passwords.stat().st_mode & 0o777 == 0o600
    assert passwords.read_text().strip() in first.said(), "the first start prints the accounts' passwords"

    second = up()
    assert second.process.wait(PATIENCE) == 1
    assert f"Fairlot already runs in {var}" in second.said()

    beside = subprocess.run(
        [sys.executable, "-m", "embedded", "run", "--", sys.executable, "manage.py", "migrate", "--check"],
        env=environment(var), cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert beside.returncode == 0, beside.stderr

    first.kill("worker", "background", "web", "beat", "watch")
    first.kill("postgres", "valkey")
    assert first.get("/healthz") == 200
    before = accounts(var)
    assert before

    wait_for_jobs(first)
    assert first.stop() == 0
    assert first.left() | first.jobs() == {}, first.said()
    stopped = re.findall(r"^(\w+) +stopped", first.said(), re.MULTILINE)
    assert stopped == ["beat", "worker", "background", "web", "watch", "valkey", "postgres"]

    again = up()
    again.wait_for(r"^web +running")
    assert again.get("/healthz") == 200
    assert accounts(var) == before
    again.wait_until_running()
    assert passwords.read_text().strip() not in again.said(), "passwords are shown once"

    wait_for_jobs(again)
    again.process.kill()
    again.process.wait()
    wait_until_gone(again.left)
    # That the next start takes over these jobs is tested in tests/proof/test_crashes.py.
    assert again.jobs(), "jobs go on when their supervisor is killed"


def wait_for_jobs(run):
    """Waits until three of the demo's jobs run. Two of the demo's jobs end soon, so at least one of the three goes
    on."""

    def running():
        return len({process.job for process in job_processes(run.home.var / "jobs")})

    wait_for(lambda: running() >= 3, what=lambda: f"{running()} jobs of the demo run", every=0.1)


def test_up_stops_at_once_while_it_is_still_starting(up):
    starting = up()
    starting.wait_for("^preparing the database")
    assert starting.stop(signal.SIGTERM) == 0
    assert starting.left() == {}
    assert "Fairlot: http" not in starting.said()


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"HOST": "0.0.0.0"}, "FAIRLOT_LOCAL_BEYOND_LOOPBACK"),  # noqa: S104
        (
            {"DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none", "REDIS_URL": "redis://127.0.0.1:9/0"},
            "prepare",
        ),
    ],
)
def test_up_says_why_it_cannot_start(var, extra, message):
    done = subprocess.run(
        [sys.executable, "-m", "embedded", "up"],
        env=environment(var) | extra, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "error: " in done.stdout
    assert message in done.stdout
