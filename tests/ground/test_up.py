"""`make up` as a user runs it: the real command, the real services, a folder of its own."""

import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2
import pytest

from embedded.environment import Home
from embedded.leftovers import marked_processes
from embedded.processes import working_in
from embedded.servers import Postgres
from tests.ground.settings_read import ROOT, settings_names

SERVICES = ("postgres", "valkey", "web", "worker", "beat", "watch")
pytestmark = pytest.mark.slow


class Up:
    """A running `python -m embedded up`; its output line by line."""

    def __init__(self, var):
        self.var = var
        self.home = Home(var.resolve())
        self.output = var / "output"
        self.started_at = time.monotonic()
        with self.output.open("ab") as sink:
            self.offset = sink.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "embedded", "up"],
                env=environment(var), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
            )  # fmt: skip

    def said(self):
        return self.output.read_bytes()[self.offset :].decode()

    def wait_for(self, pattern, seconds=90):
        """The first match of `pattern` in the output; fail when none comes in time."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.said(), re.MULTILINE)):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)
        return found

    def wait_until_running(self):
        for name in SERVICES:
            self.wait_for(rf"^{name} +running")

    def pid(self, name):
        """The pid in the last line about this service."""
        return int(re.findall(rf"^{name} +\w+ +pid (\d+)", self.said(), re.MULTILINE)[-1])

    def get(self, path):
        url = urlsplit(self.wait_for(r"^Fairlot: (\S+)")[1])
        link = http.client.HTTPConnection(url.hostname, url.port, timeout=10)
        try:
            link.request("GET", path)
            return link.getresponse().status
        finally:
            link.close()

    def left(self):
        """The pids of what still runs in this folder."""
        data = [self.home.var / name / "data" for name in ("postgres", "valkey")]
        return [*marked_processes(self.home), *(pid for folder in data for pid in working_in(folder))]

    def kill(self, name):
        """SIGKILL a service, and wait until it runs again as another process."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGKILL)
        self.wait_for(rf"{name} was killed by SIGKILL", seconds=5)
        found = self.wait_for(rf"^{name} +running +pid (?!{pid}\b)\d+ +since \S+ +restarted 1×")
        assert found

    def stop(self, number=signal.SIGINT):
        self.process.send_signal(number)
        return self.process.wait(120)


def environment(var):
    """Ours without what tests/conftest.py has set."""
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
        deadline = time.monotonic() + 20
        while run.left() and time.monotonic() < deadline:
            time.sleep(0.05)


def accounts(var):
    """Name and password hash of every account."""
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
    assert second.process.wait(20) == 1
    assert f"Fairlot already runs in {var}" in second.said()

    beside = subprocess.run(
        [sys.executable, "-m", "embedded", "run", "--", sys.executable, "manage.py", "migrate", "--check"],
        env=environment(var), cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert beside.returncode == 0, beside.stderr

    for name in ("worker", "web", "postgres", "valkey"):
        first.kill(name)
    assert first.get("/healthz") == 200
    before = accounts(var)
    assert before

    assert first.stop() == 0
    assert first.left() == [], first.said()
    stopped = re.findall(r"^(\w+) +stopped", first.said(), re.MULTILINE)
    assert stopped == ["beat", "worker", "web", "watch", "valkey", "postgres"]

    again = up()
    again.wait_for(r"^web +running", seconds=30)
    took = time.monotonic() - again.started_at
    assert again.get("/healthz") == 200
    assert took < 10, f"the second start took {took:.1f} s"
    assert accounts(var) == before
    again.wait_until_running()
    said = again.said()
    assert passwords.read_text().strip() not in said, "passwords are shown once"

    again.process.kill()
    again.process.wait()
    deadline = time.monotonic() + 20
    while again.left():
        assert time.monotonic() < deadline, "a service outlived its killed supervisor"
        time.sleep(0.05)


def test_up_stops_at_once_while_it_is_still_starting(up):
    starting = up()
    starting.wait_for("^preparing the database")
    assert starting.stop(signal.SIGTERM) == 0
    assert starting.left() == []
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
        env=environment(var) | extra, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "error: " in done.stdout
    assert message in done.stdout
