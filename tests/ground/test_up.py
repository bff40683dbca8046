"""`make up` as a user runs it: the real command and the real services, in a temporary folder."""

import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2
import pytest

from embedded.environment import Home
from embedded.leftovers import marked_processes
from embedded.processes import working_in
from embedded.servers import Postgres
from tests.ground.settings_read import ROOT, settings_names
from tests.waiting import PATIENCE, wait_for

SERVICES = ("postgres", "valkey", "web", "worker", "background", "beat", "watch")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("crashes")]


class Up:
    """A running `python -m embedded up`, whose output goes to a file."""

    def __init__(self, var):
        self.var = var
        self.home = Home(var.resolve())
        self.output = var / "output"
        with self.output.open("ab") as sink:
            self.offset = sink.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "embedded", "up"],
                env=environment(var), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
            )  # fmt: skip

    def said(self):
        return self.output.read_bytes()[self.offset :].decode()

    def wait_for(self, pattern):
        """Waits until the regular expression `pattern` matches the output; returns the first match.

        Fails if the process ends without a match.
        """

        def found():
            said = self.said()
            match = re.search(pattern, said, re.MULTILINE)
            assert match or self.process.poll() is None, said
            return match

        return wait_for(found, what=lambda: f"{pattern} in:\n{self.said()}")

    def wait_until_running(self):
        for name in SERVICES:
            self.wait_for(rf"^{name} +running")

    def pid(self, name):
        """Returns the pid of the service `name` from its last status line."""
        return int(re.findall(rf"^{name} +\w+ +pid (\d+)", self.said(), re.MULTILINE)[-1])

    def get(self, path):
        url = urlsplit(self.wait_for(r"^Fairlot: (\S+)")[1])
        link = http.client.HTTPConnection(url.hostname, url.port, timeout=PATIENCE)
        try:
            link.request("GET", path)
            return link.getresponse().status
        finally:
            link.close()

    def left(self):
        """Returns the command lines of the services and servers that still run in this folder, by pid; jobs are left
        out."""
        data = [self.home.var / name / "data" for name in ("postgres", "valkey")]
        pids = [*marked_processes(self.home), *(pid for folder in data for pid in working_in(folder))]
        return {pid: command for pid in pids if (command := command_line(pid))}

    def jobs(self):
        """Returns the command lines of the processes that run or supervise a job of this folder, by pid."""
        found = ((int(entry.name), command_line(entry.name)) for entry in Path("/proc").glob("[0-9]*"))
        return {pid: command for pid, command in found if f"{self.home.var}/jobs/" in command}

    def kill(self, *names):
        """Sends SIGKILL to the services `names`, and waits until each of them runs again as another process."""
        pids = {name: self.pid(name) for name in names}
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        for name in names:
            self.wait_for(rf"{name} was killed by SIGKILL")
        for name, pid in pids.items():
            self.wait_for(rf"^{name} +running +pid (?!{pid}\b)\d+ +since \S+ +restarted \d×")

    def stop(self, number=signal.SIGINT):
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


def command_line(pid):
    """Returns the command line of the process, with spaces between the arguments; "" if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def environment(var):
    """Returns the environment variables for `make up` in `var`, without those that Fairlot's settings read."""
    ours = {name: value for name, value in os.environ.items() if name not in settings_names()}
    return {**ours, "FAIRLOT_VAR": str(var)}


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


def wait_until_gone(left):
    wait_for(lambda: not left(), what=lambda: f"still there: {left()}")


def accounts(var):
    """Returns (user name, password hash) of every account."""
    connection = psycopg2.connect(Postgres(var).url)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT username, password FROM accounting_user ORDER BY username")
            return cursor.fetchall()
    finally:
        connection.close()


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
    """Waits until one of the demo's jobs runs as a process of this machine."""
    wait_for(run.jobs, what="a job of the demo runs", every=0.1)


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
